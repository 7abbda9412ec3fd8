"""Demands without a criterion and criteria without evidence: told by the judge, seen in lists and pages."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from scope_selfplay.base.values import Candidate
from scope_selfplay.cli import cli
from scope_selfplay.report.signals import Measured, signal_of
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.query import Flaw, TaskQuery
from scope_selfplay.store.reader import RunReader
from tests.unit.store.runs import rewrite, write_run

pytestmark = pytest.mark.integration


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A judge said this of three tasks of iteration 1, by id; it says nothing of others."""
    made = write_run(tmp_path / "demo")
    stage = made.stage(1, Stage.TASKS)
    unmet = {"task-1-002": (), "task-1-003": ("the year of the bridge",), "task-1-007": ()}
    evidence = {"task-1-002": (), "task-1-003": ("doc-003",), "task-1-007": ("doc-007",)}

    def told(candidate: Candidate) -> Candidate:
        task, rubric = candidate.task, candidate.rubric
        if task is None or rubric is None:
            return candidate
        first, *others = rubric.criteria
        found = first.model_copy(update={"evidence": evidence.get(task.id)})
        changes = {"unmet": unmet.get(task.id), "criteria": (found, *others)}
        return candidate.model_copy(update={"rubric": rubric.model_copy(update=changes)})

    rewrite(stage.candidates, Candidate, told)
    return made


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (0.05, "low"),
        (0.5, "fine"),
        (0.9, "high"),
        (Measured(0.9, (0.6, 1.0)), "by chance"),
        (Measured(0.9, (0.8, 1.0)), "high"),
        (None, ""),
    ],
)
def test_a_verdict_says_on_which_side_of_its_bounds_a_value_is(
    measured: float | Measured | None, verdict: str
) -> None:
    signal = signal_of("mean_score", measured)
    assert signal.verdict == verdict and bool(signal.warning) == (verdict in ("low", "high"))


@pytest.mark.parametrize(("flaw", "task"), [(Flaw.DEMAND, "task-1-003"), (Flaw.EVIDENCE, "task-1-002")])
def test_lists_are_filtered_by_what_a_rubric_lacks(folder: RunFolder, flaw: Flaw, task: str) -> None:
    with RunReader(folder.path) as reader:
        assert [line.task_id for line in reader.tasks(TaskQuery(flaw=flaw)).lines] == [task]
    done = CliRunner().invoke(cli, ["tasks", "ls", str(folder.path), "--flaw", flaw.value])
    assert done.stdout.count("\n") == 2 and task[-3:] in done.stdout


def test_a_task_shows_what_its_rubric_lacks_and_what_was_searched(folder: RunFolder) -> None:
    shown = CliRunner().invoke(cli, ["tasks", "show", str(folder.path), "task-1-003"]).stdout
    assert "no criterion for: the year of the bridge" in shown and "1 search)" in shown
    assert (
        "(no evidence)" in CliRunner().invoke(cli, ["tasks", "show", str(folder.path), "task-1-002"]).stdout
    )
