"""Which tasks the Solver trains on, and the records of several processes, also in another number of them."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.values import Grade
from scope_selfplay.config.load import load_config
from scope_selfplay.stages.train import given_order, steps_that_tasks_last
from scope_selfplay.store.columns import begin_records, merge_records
from scope_selfplay.store.files import Appender, read_records
from scope_selfplay.store.folder import StageFolder

IDS = ["a", "b", "c", "d", "e", "f"]


class Training:
    """Every start grades what each of its processes has; the score says which start it was."""

    def __init__(self, folder: Path) -> None:
        self.folder = StageFolder(folder)
        self.start = 0

    def records_of(self, number: int) -> Path:
        return self.folder.grades if number == 0 else self.folder.work / f"rank-{number}" / "grades.jsonl"

    def run(self, processes: int, ids: str) -> None:
        self.start += 1
        begin_records(self.folder, processes)
        for number in range(processes):
            path = self.records_of(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            with Appender(path) as file:
                own = [each for each in ids if IDS.index(each) % processes == number]
                file.append(*(Grade(rollout_id=each, score=self.start / 10, verdicts=()) for each in own))

    def merged(self) -> dict[str, float | None]:
        merge_records(self.folder)
        grades = read_records(self.folder.grades, Grade)
        assert [each.rollout_id for each in grades] == sorted({each.rollout_id for each in grades})
        return {each.rollout_id: each.score for each in grades}


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


@pytest.mark.parametrize(
    "numbers", [(2, 2), (2, 1), (1, 2), (2, 3), (3, 2), (3, 1), (4, 2), (2, 3, 1, 2, 3), (1, 3, 2, 1, 4)]
)
def test_the_newest_record_is_kept_whatever_the_number_of_processes(
    training: Training, numbers: tuple[int, ...]
) -> None:
    """Every start leaves one id more to those before it."""
    for start, processes in enumerate(numbers):
        training.run(processes, "abcdef"[start:])
    expected = {each: min(place + 1, len(numbers)) / 10 for place, each in enumerate(IDS)}
    assert training.merged() == expected


def test_a_kill_between_merging_and_what_follows_changes_nothing(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    training.run(2, "abcdef")

    class Killed(BaseException): ...

    def killed(folder: Path, pattern: str) -> None:
        raise Killed

    with monkeypatch.context() as once, pytest.raises(Killed):
        # Merging asks for the folders, what comes after it for their files.
        glob = Path.glob
        once.setattr(
            Path,
            "glob",
            lambda folder, pattern: killed(folder, pattern) if "/" in pattern else glob(folder, pattern),
        )
        begin_records(training.folder, 1)
    training.run(1, "cdef")
    assert training.merged() == {"a": 0.1, "b": 0.1, "c": 0.2, "d": 0.2, "e": 0.2, "f": 0.2}


CASES = json.loads((Path(__file__).parents[2] / "reference" / "step_cases.json").read_text())["cases"]
NAMES = [f"t{number}" for number in range(10)]


def test_an_iteration_goes_on_where_the_last_one_ended() -> None:
    order = list(islice(given_order(NAMES, seed=1, batch=2), 12))
    first, second, third = order[:4], order[4:8], order[8:]
    assert not set(first) & set(second) and set(first + second + third[:2]) == set(NAMES)


def test_passes_are_shuffled_anew_whole_and_a_batch_across_two_has_no_task_twice() -> None:
    for seed in range(50):
        order = list(islice(given_order(NAMES, seed=seed, batch=7), 70))
        assert all(len(set(order[row : row + 7])) == 7 for row in range(0, 70, 7))
        passes = {tuple(order[row : row + 10]) for row in range(0, 70, 10)}
        assert len(passes) == 7 and all(sorted(each) == NAMES for each in passes)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['accepted']} {case['settings']}")
def test_the_steps_follow_the_tasks_that_there_are(case: dict[str, Any]) -> None:
    """Appendix G."""
    config = load_config(None, case["settings"])
    assert steps_that_tasks_last(config, case["accepted"]) == case["steps"], case["why"]
