"""docs/kubernetes.md begins with at most ten commands from an empty namespace to a running `qwen3-8b`.

They are typed as they stand there, on a real API server, with a simulated node of eight GPUs and a volume that waits
for the claim.
"""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from scope_selfplay.config.load import load_config
from tests.cluster.conftest import fit_to_server, kubectl
from tests.cluster.simulated_node import SimulatedNode
from tests.commands import ran
from tests.doc_commands import REPOSITORY, commands_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

RUN = "k8s/runs/qwen3-8b"
ASKED = [each.text for each in commands_of(REPOSITORY / "docs" / "kubernetes.md")]
PATH = ASKED[ASKED.index("pip install '.[k8s]'") : ASKED.index("scope k8s status qwen3-8b") + 1]


@pytest.fixture
def node(api: object, namespace: str, tmp_path: Path) -> Iterator[SimulatedNode]:
    with SimulatedNode(api, namespace, tmp_path / "stages") as found:
        # The run's controller is not in this image: its pod runs, and is what was asked for.
        found.holds = lambda pod: "controller" in pod
        yield found


@pytest.fixture
def place(node: SimulatedNode, namespace: str, volume: Path, tmp_path: Path) -> Path:
    """A checkout and a kubeconfig of somebody who begins: the namespace is the context's, the images are named."""
    top = tmp_path / "checkout"
    for part in ("k8s", "prompts"):
        shutil.copytree(REPOSITORY / part, top / part, symlinks=True)
    settings = top / RUN / "setup" / "run.yaml"
    config = yaml.safe_load(settings.read_text())
    config["cluster"]["pod"] = {"spec": {"nodeSelector": node.selector}}
    settings.write_text(yaml.safe_dump(config))
    fit_to_server(top / RUN)
    context = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    for each in context["contexts"]:
        each["context"]["namespace"] = namespace
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(context))
    return top


def test_the_path_has_at_most_ten_commands() -> None:
    assert 6 <= len(PATH) <= 10, PATH
    assert load_config(REPOSITORY / RUN / "run.yaml").name == "qwen3-8b"


def test_a_stranger_gets_from_an_empty_namespace_to_a_running_run(place: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig"), "PYTHONPATH": str(REPOSITORY)}
    said: dict[str, str] = {}
    for command in PATH[1:]:
        # By a shell, as it would be typed; there may be no `scope` on its path.
        typed = re.sub(r"^scope ", f"{shlex.quote(sys.executable)} -m scope_selfplay ", command)
        done = ran(["bash", "-c", typed], cwd=place, env=environment, timeout=240)
        said[command] = done.stdout + done.stderr
        assert done.returncode == 0, f"{command}: {said[command]}"
    assert "0 problem(s)" in said[next(each for each in PATH if "k8s check" in each)]
    waited = said[next(each for each in PATH if "kubectl wait" in each)]
    jobs = ("probe-volume", "fetch-model", "fetch-encoder", "fetch-corpus", "build-index")
    for job in jobs:
        assert f"job.batch/qwen3-8b-{job} condition met" in waited

    where = yaml.safe_load((tmp_path / "kubeconfig").read_text())["contexts"][0]["context"]["namespace"]
    pods = json.loads(kubectl("get", "pods", "-n", where, "-l", "scope/run=qwen3-8b", "-o", "json").stdout)
    assert [pod["status"]["phase"] for pod in pods["items"]] == ["Running"]
    assert "qwen3-8b-controller" in said[PATH[-1]]
