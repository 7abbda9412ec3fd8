"""A whole run whose random policy searches, opens documents and calls an MCP server that dies on the way."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("mcp", reason="needs the extra mcp")

from benchmarks.embedded_speech import SPEECH
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Rollout, RolloutStatus, ToolCall
from scope_selfplay.cli import cli
from scope_selfplay.config.load import load_config
from scope_selfplay.driver.local import run_all
from scope_selfplay.run.begin import open_run
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import Stage
from tests.integration.loop.policies import write_speaking_policy
from tests.integration.loop.test_run import SETTINGS

ROOT = Path(__file__).parents[3]


def test_a_run_with_search_open_and_flights_completes_though_the_server_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    flight = {"date": "2026-03-01", "origin": f"dies-once:{tmp_path / 'died'}", "destination": "Verrin"}
    calls = (
        '<open>{"document": "world-4-0000"}</open>',
        f"<search_flights>{json.dumps(flight)}</search_flights>",
        "<open>Orsk</open>",
    )
    speech = {
        **SPEECH,
        "</think>": {**SPEECH["</think>"], **dict.fromkeys(calls, 2)},
        **{call: {"<answer>": 1} for call in calls},
    }
    policy = write_speaking_policy(tmp_path / "policy", speech, calls=calls)
    flights = {
        "command": [sys.executable, "-m", "tests.flights_server"],
        "env": {"PYTHONPATH": "PYTHONPATH"},
        "only": ["search_flights"],
    }
    tools = json.dumps(["open", {"mcp": flights}])
    settings = [*SETTINGS.split(), "iterations=1", f"model.path={policy}", f"tools={tools}"]
    settings += ["solver.max_response=400", "model.max_length=640"]
    opened = open_run(load_config(None, settings), tmp_path / "runs", Progress())
    try:
        run_all(opened)
    finally:
        opened.close()
    assert (tmp_path / "died").exists(), "the server died"
    made = [
        rollout
        for stage in (Stage.TASKS, Stage.COMPARE)
        for rollout in read_records(opened.folder.stage(1, stage).rollouts, Rollout)
    ]
    assert made and all(rollout.status is not RolloutStatus.FAILED for rollout in made)
    found = [turn.call for rollout in made for turn in rollout.turns if turn.call is not None]
    opening = [call for call in found if call.tool == "open" and call.fault is None]
    assert opening and all(call.sources == ("world-4-0000",) and call.result for call in opening)
    assert {str(call.fault) for call in found if call.tool == "open"} >= {"None", "bad_arguments"}
    asked = [call for call in found if call.tool == "search_flights"]
    assert asked and {call.result for call in asked if call.fault is None} == {"No flights."}
    assert all(isinstance(call, ToolCall) and call.fault != "error" for call in found)
    listed = CliRunner().invoke(cli, ["tasks", "ls", str(opened.folder.path), "--tool", "search_flights"])
    assert listed.exit_code == 0 and listed.output.strip()
