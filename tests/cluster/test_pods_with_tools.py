"""A run with search, open and an MCP server behind a Service, in pods; the server's pod is deleted in mid-training."""

from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("transformers", reason="needs the train extra")

from benchmarks.embedded_speech import SPEECH
from scope_selfplay.base.values import Rollout, RolloutStatus, ToolFault
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import Stage
from tests.cluster.conftest import kubectl
from tests.cluster.image import Image, served
from tests.cluster.test_pods import SHORT, Kill, play, written
from tests.integration.loop.policies import write_speaking_policy

pytestmark = [pytest.mark.pods, pytest.mark.full, pytest.mark.timeout(3600)]

LABELS = {
    "app.kubernetes.io/name": "scope-selfplay",
    "app.kubernetes.io/component": "tools",
    "tool": "flights",
}
SERVER = Path(__file__).parents[1] / "flights_server.py"
CALLS = (
    '<open>{"document": "world-0-0000"}</open>',
    '<search_flights>{"date": "2026-03-01", "origin": "Orsk", "destination": "Verrin"}</search_flights>',
)
WITH_TOOLS: dict[str, Any] = {
    **SHORT,
    "model": {"path": "/data/policy", "max_length": 640},
    "tools": [
        "open",
        {"mcp": {"url": "http://flights:9000/mcp", "only": ["search_flights"], "outage": 600.0}},
    ],
    # The Challenger calls no tools, and what it writes at random passes no gate.
    "judge": {"gates": []},
    "challenger": {**SHORT["challenger"], "freeze_after": 0},
    "solver": {**SHORT["solver"], "steps": 3, "max_response": 400},
}
FLIGHTS: Kill = (Stage.SOLVER, "tool=flights")


def flights(image: Image) -> list[dict[str, Any]]:
    """The server in the run's own image, its program from a ConfigMap."""
    metadata, source = {"name": "flights", "labels": LABELS}, {"configMap": {"name": "flights"}}
    program = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    container = {
        "command": ["python", "/srv/flights_server.py", "--host", "0.0.0.0", "--port", "9000"],
        "ports": [{"name": "http", "containerPort": 9000}],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "readinessProbe": {"tcpSocket": {"port": "http"}},
    }
    mounted = {"name": "program", "path": "/srv", "source": source}
    servers = served(image, "flights", LABELS, mounted, port=9000, **container)
    return [{**program, "data": {SERVER.name: SERVER.read_text()}}, *servers]


def test_a_run_with_search_open_and_a_server_of_tools_completes_though_its_pod_is_deleted(
    pods_image: Image, namespace: str, volume: Path, tmp_path: Path
) -> None:
    speech = {
        **SPEECH,
        "</think>": {**SPEECH["</think>"], **dict.fromkeys(CALLS, 4)},
        **{call: {"<answer>": 1} for call in CALLS},
    }
    policy = write_speaking_policy(volume / "policy", speech, calls=CALLS)
    for file in (policy, *policy.rglob("*")):
        file.chmod(0o755 if file.is_dir() else 0o644)
    kubectl("apply", "--namespace", namespace, "-f", "-", stdin=yaml.safe_dump_all(flights(pods_image)))
    folder = written(tmp_path, pods_image, WITH_TOOLS, "tool-servers")
    run = play(folder, namespace, volume, [FLIGHTS], minutes=50)
    made = [
        rollout
        for stage in (Stage.TASKS, Stage.SOLVER, Stage.COMPARE)
        for rollout in read_records(run.stage(1, stage).rollouts, Rollout)
    ]
    assert made and all(rollout.status is not RolloutStatus.FAILED for rollout in made)
    turns = [turn for rollout in made for turn in rollout.turns]
    calls = [turn.call for turn in turns if turn.call is not None and turn.query is None]
    assert any(turn.passages for turn in turns), "it searched"
    # A policy that calls at random may call too often.
    assert {call.fault for call in calls} <= {None, ToolFault.SPENT}
    calls = [call for call in calls if call.fault is None]
    opened = [call for call in calls if call.tool == "open"]
    assert opened and all(call.sources == ("world-0-0000",) and call.result for call in opened)
    flown = {call.result for call in calls if call.tool == "search_flights"}
    assert flown == {"FL101 08:10-09:55, 120 EUR\nFL102 17:30-19:15, 95 EUR"}
