"""Demands without a criterion and criteria without evidence: told by the judge, seen in health, lists and pages."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from scope_selfplay.cli import cli
from scope_selfplay.health.checkup import examine
from scope_selfplay.health.signals import Measured, signal_of
from scope_selfplay.schemas import Candidate, CandidateStatus, Criterion, Rubric
from scope_selfplay.store import RunFolder, Stage, read_records, write_records
from scope_selfplay.store.query import Flaw, TaskQuery
from scope_selfplay.store.reader import RunReader
from tests.unit.store.runs import write_run

pytestmark = pytest.mark.integration


def write_coverage(
    folder: RunFolder, unmet: dict[str, tuple[str, ...]], evidence: dict[str, tuple[str, ...]]
) -> None:
    """Let the judge have said this of tasks of iteration 1, by id; it says nothing of others."""
    stage = folder.stage(1, Stage.TASKS)

    def told(candidate: Candidate) -> Candidate:
        task, rubric = candidate.task, candidate.rubric
        if task is None or rubric is None:
            return candidate
        first, *others = rubric.criteria
        found = first.model_copy(update={"evidence": evidence.get(task.id)})
        changes = {"unmet": unmet.get(task.id), "criteria": (found, *others)}
        return candidate.model_copy(update={"rubric": rubric.model_copy(update=changes)})

    write_records(stage.candidates, [told(each) for each in read_records(stage.candidates, Candidate)])


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = write_run(tmp_path / "demo")
    unmet = {"task-1-002": (), "task-1-003": ("the year of the bridge",), "task-1-007": ()}
    write_coverage(made, unmet, {"task-1-002": (), "task-1-003": ("doc-003",), "task-1-007": ("doc-007",)})
    return made


def signals(folder: RunFolder, iteration: int) -> dict[str, tuple[float | None, str]]:
    with RunReader(folder.path) as reader:
        found = {checkup.iteration: checkup for checkup in examine(reader)}[iteration]
    return {signal.name: (signal.value, signal.warning) for signal in found.signals}


def test_only_tasks_of_which_the_judge_spoke_count(folder: RunFolder) -> None:
    found = signals(folder, 1)
    assert found["unmet_demands"][0] == pytest.approx(1 / 3) and "over 0.1" in found["unmet_demands"][1]
    assert found["unfounded_criteria"][0] == pytest.approx(1 / 3)
    assert signals(folder, 2)["unmet_demands"] == (None, ""), "what nobody said is no number"


def test_searches_that_were_not_made_and_how_far_rubrics_tell_answers_apart_are_measured(
    tmp_path: Path,
) -> None:
    folder = write_run(tmp_path / "demo")
    assert signals(folder, 1)["fewer_searches"] == (None, ""), "nobody wrote down what was assigned"
    # The two answers to a task differ in one criterion of two.
    assert signals(folder, 1)["rubric_spread"][0] == pytest.approx(0.5 / 2**0.5)
    file = folder.stage(1, Stage.TASKS).candidates
    rows = read_records(file, Candidate)
    tasks = [row.task and row.task.model_copy(update={"assigned_turns": 2}) for row in rows]
    write_records(
        file, [row.model_copy(update={"task": task}) for row, task in zip(rows, tasks, strict=True)]
    )
    kept = [row.task for row in rows if row.task and row.status is CandidateStatus.ACCEPTED]
    found = signals(folder, 1)
    fewer = sum(task.search_turns < 2 for task in kept) / len(kept)
    assert 0.2 < fewer < 1 and found["fewer_searches"][0] == pytest.approx(fewer)
    assert "over 0.2" in found["fewer_searches"][1]
    made = sum(task.search_turns for task in kept) / len(kept)
    assert found["searches_made"] == (pytest.approx(made), "")


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
    assert signal_of("task_words", 7.0).verdict == ""


def test_the_demand_stands_behind_the_warning(folder: RunFolder) -> None:
    with RunReader(folder.path) as reader:
        warnings = {found.signal: found for checkup in examine(reader) for found in checkup.warnings}
    (behind,) = warnings["unmet_demands"].behind
    assert behind.task_id == "task-1-003" and "the year of the bridge" in behind.shown


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


def test_a_rubric_says_nothing_where_its_judge_did_not() -> None:
    rubric = Rubric(task_id="t", criteria=(Criterion(text="c"),))
    assert rubric.unmet is None and rubric.criteria[0].evidence is None
