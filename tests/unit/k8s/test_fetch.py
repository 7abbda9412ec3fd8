"""A run's results fetched through a pod: what comes, what is left alone, and what a broken connection costs.

The pod's program runs for real, on a folder of this machine: the stand-in for kubectl starts it where an `exec` would.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from scope_selfplay.base.errors import ConfigError, OutsideError
from scope_selfplay.cli import cli
from scope_selfplay.cluster.check import schema_problems
from scope_selfplay.cluster.fetch import NOTE, TRIES, reader_pod
from scope_selfplay.cluster.kubectl import Body
from scope_selfplay.store.files import place_of
from tests.unit.k8s.conftest import QWEN, REPOSITORY, rendered, take_as_kubectl

_KUBECTL = """#!{python}
import json, pathlib, re, subprocess, sys
here = pathlib.Path({here!r})
words = sys.argv[1:]
said = " ".join(words)
with (here / "said").open("a") as log:
    log.write(said + chr(10))
if " create " in " " + said:
    (here / "pod.json").write_text(sys.stdin.read())
elif "get jobs" in said:
    print((here / "jobs.json").read_text())
elif "get pods" in said:
    print((here / "status.json").read_text())
elif "exec" in words:
    program = sys.stdin.readline().replace("/data/runs", str(here / "volume"))
    done = subprocess.run([sys.executable, *words[words.index("--") + 2:]], input=program.encode(), capture_output=True)
    cuts = here / "cuts"
    left = json.loads(cuts.read_text()) if cuts.exists() and "send" in program.split("json.loads(")[-1] else []
    out = done.stdout[:left[0]] if left else done.stdout
    if left:
        cuts.write_text(json.dumps(left[1:]))
    with (here / "sent").open("a") as log:
        log.write(str(len(out)) + chr(10))
    sys.stdout.buffer.write(out)
    if left or done.returncode:
        sys.stderr.write("error: stream error: connection reset" if left else done.stderr.decode())
        sys.exit(1)
elif words[0] == "kustomize":
    sys.exit(subprocess.run([{kubectl!r}, *words]).returncode)
"""
FILES = {
    "run.yaml": b"name: r1\n",
    "report.html": b"<p>done</p>",
    "iteration-01/tasks/candidates.jsonl": b'{"id":"a"}\n' * 200_000,
    "iteration-01/solver/metrics.jsonl": b'{"step":1}\n',
}
WEIGHTS = {"iteration-01/solver/checkpoint/model.safetensors": bytes(range(256)) * 5_000}
LEFT_OUT = {"iteration-01/tasks/.work/rows": b"x", ".beginning": b"", "cache/judge/compiled": b"y"}


class World:
    """A volume with the run r1, and the kubectl that stands in for its cluster."""

    def __init__(self, here: Path) -> None:
        self.here, self.to = here, here / "to"
        self.run, self.fetched = here / "volume" / "r1", here / "to" / "r1"
        for name, content in (FILES | WEIGHTS | LEFT_OUT).items():
            self.write(name, content)
        (self.run / "best").symlink_to("iteration-01/solver/checkpoint")
        self.say("jobs", {"items": [controller(QWEN)]})
        self.say("status", {"status": {"phase": "Running"}})

    def say(self, name: str, body: Any) -> None:
        (self.here / f"{name}.json").write_text(json.dumps(body))

    def write(self, name: str, content: bytes) -> None:
        (self.run / name).parent.mkdir(parents=True, exist_ok=True)
        (self.run / name).write_bytes(content)

    def cut(self, *lengths: int) -> None:
        """The next connections break after so many bytes."""
        (self.here / "cuts").write_text(json.dumps(lengths))

    def fetch(self, *more: str) -> Result:
        return CliRunner().invoke(cli, ["k8s", "fetch", "r1", "--to", str(self.to), "--json", *more])

    def refused(self, error: type[Exception], match: str, *more: str) -> None:
        with pytest.raises(error, match=match):
            raise self.fetch(*more).exception or AssertionError("it came")

    def brought(self, *more: str) -> list[str]:
        done = self.fetch(*more)
        assert done.exit_code == 0, f"{done.output} {done.exception!r}"
        told = json.loads(done.stdout)
        assert told["folder"] == str(self.fetched)
        return sorted(told["files"])

    def here_are(self) -> dict[str, bytes]:
        files = [path for path in self.fetched.rglob("*") if path.is_file() and not path.is_symlink()]
        return {str(path.relative_to(self.fetched)): path.read_bytes() for path in files if path.name != NOTE}

    def said(self) -> str:
        return (self.here / "said").read_text()


def controller(folder: Path) -> Body:
    (job,) = [body for body in rendered(folder) if body["kind"] == "Job"]
    return job


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    kubectl = shutil.which("kubectl") or "kubectl"
    made = World(tmp_path)
    program = _KUBECTL.format(python=sys.executable, here=str(tmp_path), kubectl=kubectl)
    take_as_kubectl(program, tmp_path, monkeypatch)
    return made


def test_results_come_and_weights_only_when_asked(world: World) -> None:
    assert world.brought() == sorted(FILES)
    assert world.here_are() == FILES
    assert world.brought() == []
    assert world.brought("--checkpoints") == [*WEIGHTS]
    assert world.here_are() == FILES | WEIGHTS
    assert (world.fetched / "best" / "model.safetensors").is_file()
    pod = json.loads((world.here / "pod.json").read_text())
    assert f"delete pod {pod['metadata']['name']} --wait=false" in world.said()
    # Of a run at work only what grew comes again.
    world.write("iteration-01/solver/metrics.jsonl", b'{"step":1}\n{"step":2}\n')
    assert world.brought() == ["iteration-01/solver/metrics.jsonl"]
    assert (world.fetched / "iteration-01/solver/metrics.jsonl").read_bytes().count(b"\n") == 2


def test_what_differs_here_is_never_lost_silently(world: World) -> None:
    world.brought()
    (world.fetched / "report.html").write_text("my own notes")
    world.write("run.yaml", b"name: r1\nseed: 1\n")
    world.refused(ConfigError, r"report\.html did not come")
    assert (world.fetched / "run.yaml").read_bytes() == b"name: r1\n", "nothing is written before all may be"
    assert world.brought("--force") == ["report.html", "run.yaml"]
    assert world.here_are()["report.html"] == FILES["report.html"]


def test_what_was_copied_by_hand_is_the_same_by_its_sum(world: World) -> None:
    world.fetched.mkdir(parents=True)
    (world.fetched / "report.html").write_bytes(FILES["report.html"])
    assert "report.html" not in world.brought()


@pytest.mark.parametrize("cuts", [[1_000_000, 700_000], [10], [0, 0, 0, 0], [2_200_100]])
def test_a_broken_connection_costs_what_was_under_way_alone(world: World, cuts: list[int]) -> None:
    world.cut(*cuts)
    world.brought()
    assert world.here_are() == FILES
    sent = sum(map(int, (world.here / "sent").read_text().split()))
    assert sent < sum(map(len, FILES.values())) + sum(cuts) + (1 + len(cuts)) * 30_000


def test_a_connection_that_always_breaks_is_given_up_and_the_same_command_goes_on(world: World) -> None:
    world.cut(*[1_000_000] + [500] * (TRIES - 1))
    world.refused(OutsideError, "connection reset.* the same command goes on")
    assert set(world.here_are()) < FILES.keys(), "no half of a file"
    assert "delete pod" in world.said()
    assert world.brought() and world.here_are() == FILES


def test_without_its_controller_a_run_is_fetched_by_its_folder(world: World) -> None:
    world.say("jobs", {"items": []})
    world.refused(ConfigError, "name the run's folder with --folder")
    assert world.brought("--folder", str(QWEN)) == sorted(FILES)


def test_a_run_that_is_not_there_is_told_with_those_that_are(world: World) -> None:
    world.run.rename(world.run.with_name("r2"))
    world.refused(ConfigError, "r1; the runs there: r2$")


def test_a_pod_that_does_not_start_says_why_and_is_deleted(world: World) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    status = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}
    world.say("status", {"status": status})
    world.refused(OutsideError, "ImagePullBackOff no such image", "--patience", "0")
    assert "delete pod" in world.said()


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", ""])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutsideError, match="no path inside a folder"):
        place_of(tmp_path, name)


def test_the_pod_may_read_and_nothing_else() -> None:
    pod = reader_pod(controller(QWEN), "r1")
    assert schema_problems([pod]) == []
    spec, (main,) = pod["spec"], pod["spec"]["containers"]
    assert spec["serviceAccountName"] == "scope-worker" and spec["automountServiceAccountToken"] is False
    assert spec["activeDeadlineSeconds"] > 0 and "env" not in main
    mounts = {each["name"]: each.get("readOnly", False) for each in main["volumeMounts"]}
    assert mounts == {"data": True, "tmp": False}
    assert {each["name"] for each in spec["volumes"]} == mounts.keys(), "neither token nor config"
    assert "component: reader" not in (REPOSITORY / "k8s/shared/network.yaml").read_text()
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] == "scope-selfplay", "default-deny applies"
