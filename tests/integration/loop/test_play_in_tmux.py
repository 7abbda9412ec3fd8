"""A person's session at a real terminal, keys and all: what it leaves is exported, compared and learnt from."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("transformers", reason="needs the train extra")
pytest.importorskip("prompt_toolkit", reason="needs the play extra")

from scope_selfplay.cli import cli
from scope_selfplay.run import Run
from scope_selfplay.schemas import CandidateStatus, Rollout
from scope_selfplay.stages.warm_start import warm_start_rows
from scope_selfplay.store import RunFolder, Stage, read_records, write_records
from scope_selfplay.store.human import HumanFolder
from tests.integration.loop.test_play import as_written, run  # noqa: F401 - a fixture
from tests.tmux import Tmux, tmux
from tests.unit.store.runs import write_run

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux"),
]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Tmux]:
    with tmux(tmp_path / "tmux") as session:
        yield session


def ended(terminal: Tmux) -> str:
    screen = terminal.wait_for("ended: 0")
    assert "Traceback" not in screen
    return screen


def stats(folder: RunFolder) -> dict[str, object]:
    done = CliRunner().invoke(cli, ["tasks", "stats", str(folder.path), "--json"])
    found: dict[str, object] = json.loads(done.stdout)["people"]
    return found


def test_a_task_is_written_and_answered_and_both_are_exported_and_learnt_from(
    run: Run,  # noqa: F811
    terminal: Tmux,
    tmp_path: Path,
) -> None:
    options, replies = as_written(run)
    terminal.scope(f"play challenger --run {run.folder.path} {' '.join(options)} --person ann")
    for turn, reply in enumerate(replies, start=1):
        terminal.wait_for("challenger>", turn)
        thought, command = reply.split("\n")
        terminal.type(thought, enter=False)
        # Alt-Enter begins a line, Enter sends.
        terminal.press("M-Enter")
        terminal.type(command)
    assert "accepted: accepted" in ended(terminal)
    human = HumanFolder(run.folder)
    (made,) = human.candidates()
    assert made.status is CandidateStatus.ACCEPTED and made.task is not None
    terminal.scope(f"play solver --run {run.folder.path} --task {made.task.id} --person ann")
    terminal.wait_for("solver>")
    terminal.type("/answer It is not knowm", enter=False)
    terminal.press("BSpace")
    terminal.type("n.")
    terminal.wait_for("[y/N]")
    terminal.type("y")
    ended(terminal)
    (answer,) = human.answers_to(made.task.id, 1)
    assert answer.answer == "It is not known."
    out = tmp_path / "exported"
    done = CliRunner().invoke(cli, ["export", str(human.path), "--format", "inspect", "-o", str(out)])
    assert done.exit_code == 0, done.output
    (line,) = [json.loads(row) for file in out.glob("*.jsonl") for row in file.read_text().splitlines()]
    assert line["target"] == "It is not known."
    rows = warm_start_rows(Run(run.config, run.folder, run.pack), min_score=0.0)
    assert rows.rollouts == 2 and rows.refused == 0


def test_a_judge_a_rubric_and_a_blind_comparison_are_counted_beside_the_runs_own(
    terminal: Tmux, tmp_path: Path
) -> None:
    folder = write_run(tmp_path / "demo")
    for iteration, stage in ((1, Stage.TASKS), (2, Stage.COMPARE)):
        file = folder.stage(iteration, stage).rollouts
        rows = [row.model_copy(update={"answer": f"By {row.id}."}) for row in read_records(file, Rollout)]
        write_records(file, rows)
    terminal.scope(f"play judge {folder.path} --task task-1-002 --person ann")
    for number, key in enumerate(("y", "n", "y because", "n", "?"), start=1):
        terminal.wait_for("y/n/?>", number)
        terminal.type(key)
    ended(terminal)
    terminal.scope(f"play compare {folder.path} S_1 S_2 --n 2 --person ann")
    for number, key in enumerate(("1", "2"), start=1):
        terminal.wait_for("1/2/=/?>", number)
        terminal.type(key)
    ended(terminal)
    found = stats(folder)
    names = {row["name"] for row in found["agreement"]}  # type: ignore[attr-defined]
    assert {"gate_source", "criteria"} <= names
    assert found["verdicts"] == 5
    (duel,) = found["duels"]  # type: ignore[misc]
    assert duel["wins"] + duel["ties"] + duel["losses"] == 2
