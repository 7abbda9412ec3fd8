"""What a run with one fault raises, and that the same run without it raises nothing."""

import shutil
from itertools import count
from pathlib import Path

import pytest

from scope_selfplay.base.values import Grade, Rollout, Verdict
from scope_selfplay.report.health import examine
from scope_selfplay.report.signals import Checkup
from scope_selfplay.store.files import write_atomic
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.ratings import Ratings
from scope_selfplay.store.reader import RunReader
from tests.unit.health.invented_run import Course, write_invented
from tests.unit.store.runs import rewrite

pytestmark = pytest.mark.integration

# What the run does, and what its two iterations raise.
FAULTS = {
    "a Solver that is worse": (Course(asked=(0.4, 0.6, 0.4)), "", "solver_gain"),
    "asked criteria are lost": (
        Course(asked=(0.6, 0.5, 0.4), hidden=(0.1, 0.8, 0.9)),
        "kind_gain",
        "solver_gain kind_gain",
    ),
    "hidden criteria alone": (
        Course(asked=(0.45, 0.45, 0.45), hidden=(0.1, 0.7, 0.8)),
        "kind_gain",
        "kind_gain",
    ),
    "repetition": (Course(repeats=(0.05, 0.4, 0.6)), "repeated_sentences", "repeated_sentences"),
    "one thing asked": (Course(aspects=(20, 1)), "", "common_pattern"),
    "length decides": (Course(longest_wins=True), "length_correlation", "length_correlation"),
}


def checkups_of(path: Path) -> list[Checkup]:
    with RunReader(path) as reader:
        return examine(reader)


def names_of(checkup: Checkup) -> set[str]:
    return {found.name for found in checkup.warnings}


STILL = Course(asked=(0.5, 0.5, 0.5), hidden=(0.4, 0.4, 0.4))


@pytest.mark.parametrize(("course", "seed"), [(STILL, 1), *((Course(), seed) for seed in range(1, 7))])
def test_a_run_that_stands_still_or_learns_what_is_asked_raises_nothing(
    tmp_path: Path, course: Course, seed: int
) -> None:
    found = checkups_of(write_invented(tmp_path / "run", course, seed=seed))
    assert [warning.warning for checkup in found for warning in checkup.warnings] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_raises_its_own_warnings_with_tasks(tmp_path: Path, fault: str) -> None:
    course, first, second = FAULTS[fault]
    found = checkups_of(write_invented(tmp_path / "run", course, seed=2))
    assert [names_of(each) for each in found] == [set(first.split()), set(second.split())]
    for warning in (warning for checkup in found for warning in checkup.warnings):
        assert warning.behind, warning.warning


def test_nothing_is_said_about_fewer_than_twenty_tasks(tmp_path: Path) -> None:
    for fault, (course, _, _) in FAULTS.items():
        found = checkups_of(write_invented(tmp_path / fault, course, seed=2, tasks=19))
        assert all(names_of(each) <= {"mean_score"} for each in found), fault


def test_a_solver_is_compared_with_the_one_that_it_was_trained_from(tmp_path: Path) -> None:
    path = write_invented(tmp_path / "run", Course(asked=(0.35, 0.65, 0.5), hidden=(0.3, 0.6, 0.45)))
    _, second = checkups_of(path)
    assert names_of(second) == {"solver_gain"}
    # S_1 was not promoted, so S_2 began where S_1 did.
    ratings = Ratings(promoted=True, starts=("S_0", "S_0"))
    write_atomic(RunFolder(path).stage(2, Stage.COMPARE).ratings, ratings.model_dump_json())
    _, second = checkups_of(path)
    assert names_of(second) == set()
    assert {signal.name: signal.value for signal in second.signals}["solver_gain"] > 0.05  # type: ignore[operator]


def test_a_run_on_given_tasks_has_its_answers_examined(tmp_path: Path) -> None:
    path = write_invented(tmp_path / "run", Course(repeats=(0.05, 0.6, 0.6)))
    for iteration in (1, 2):
        shutil.rmtree(RunFolder(path).stage(iteration, Stage.TASKS).path)
    found = checkups_of(path)
    assert [checkup.iteration for checkup in found] == [1, 2]
    assert [names_of(each) for each in found] == [{"repeated_sentences"}] * 2


def test_a_missing_answer_is_neither_short_nor_repeated(tmp_path: Path) -> None:
    path = write_invented(tmp_path / "run", STILL)
    file, numbers = RunFolder(path).stage(0, Stage.COMPARE).rollouts, count()
    rewrite(
        file, Rollout, lambda each: each.model_copy(update={"answer": None}) if next(numbers) % 2 else each
    )
    first, _ = checkups_of(path)
    values = {signal.name: signal.value for signal in first.signals}
    assert values["answer_growth"] == pytest.approx(1, abs=0.05)
    assert not first.warnings


def test_a_warning_waits_until_the_whole_interval_is_outside(tmp_path: Path) -> None:
    slightly_worse = Course(asked=(0.4, 0.5, 0.49), hidden=(0.3, 0.4, 0.39))
    _, second = checkups_of(write_invented(tmp_path / "run", slightly_worse))
    signal = next(signal for signal in second.signals if signal.name == "solver_gain")
    assert signal.interval is not None and signal.interval[1] > 0 and not signal.warning


def test_a_task_that_lost_its_answer_is_shown_without_one(tmp_path: Path) -> None:
    path = write_invented(tmp_path / "run", Course())
    stage = RunFolder(path).stage(1, Stage.COMPARE)
    unmet = {"verdicts": (Verdict(value=False),) * 4, "score": 0.0}
    rewrite(stage.rollouts, Rollout, lambda each: each.model_copy(update={"answer": None}))
    rewrite(stage.grades, Grade, lambda each: each.model_copy(update=unmet))
    first, _ = checkups_of(path)
    behind = {found.name: found.behind for found in first.warnings}
    assert set(behind) == {"solver_gain"}
    assert {task.shown for task in behind["solver_gain"]} == {"(no answer)"}
