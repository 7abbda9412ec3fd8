"""A person's own rubric: written without the judge's, scored by, compared with the judge's scores, and used again."""

from pathlib import Path

import pytest

from scope_selfplay.errors import UserError
from scope_selfplay.given_tasks import read_given_tasks
from scope_selfplay.schemas import Grade, Priority, Rollout
from scope_selfplay.store import RunFolder, Stage, read_records, write_records
from scope_selfplay.store.human import HumanFolder
from tests.unit.play.test_judging import play, stats
from tests.unit.store.runs import write_run

pytestmark = pytest.mark.integration

TASK = "task-1-002"
RUBRIC = ["critical: Names the guild.", "Is one sentence.", "/done"]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Two different answers to each task of iteration 1."""
    made = write_run(tmp_path / "demo")
    stage = made.stage(1, Stage.TASKS)
    answers = read_records(stage.rollouts, Rollout)
    write_records(stage.rollouts, [row.model_copy(update={"answer": f"Answer {row.id}."}) for row in answers])
    return made


def scores_of_judge(folder: RunFolder, names: tuple[str, ...]) -> dict[str, float | None]:
    grades = read_records(folder.stage(1, Stage.TASKS).grades, Grade)
    return {grade.rollout_id: grade.score for grade in grades if grade.rollout_id in names}


def test_a_rubric_is_written_unseen_scored_by_and_read_as_given_tasks(folder: RunFolder) -> None:
    done = play(folder, "rubric", "--task", TASK, replies=[*RUBRIC, "y it is there", "n", "n", "?"])
    assert done.exit_code == 0, done.output
    assert "Identifies the builder." not in done.stdout and "2 of 2 answers scored" in done.stderr
    own = HumanFolder(folder).rubrics("ann")
    (candidate,) = read_given_tasks(str(own.path / "candidates.jsonl"), "compare.given")
    assert candidate.rubric is not None and candidate.rubric == own.of_task(TASK)
    assert [(each.text, each.priority, each.weight) for each in candidate.rubric.criteria] == [
        ("Names the guild.", Priority.CRITICAL, 3.0),
        ("Is one sentence.", Priority.IMPORTANT, 1.0),
    ]
    first, second = (own.grades()[name] for name in candidate.rollout_ids)
    assert (first.score, second.score) == (0.75, 0.0) and candidate.mean == 0.375
    assert first.verdicts[0].reasoning == "it is there" and second.verdicts[1].value is None


def test_judge_and_person_agree_where_the_same_answer_scores_higher(folder: RunFolder) -> None:
    play(folder, "rubric", "--task", TASK, replies=["One thing.", "/done", "y", "n"])
    own = HumanFolder(folder).rubrics("ann")
    better, worse = own.candidates()[0].rollout_ids
    judged = scores_of_judge(folder, (better, worse))
    found = stats(folder)
    (row,) = [row for row in found["agreement"] if row["name"] == "rubrics"]  # type: ignore[attr-defined]
    assert found["rubrics"] == 1 and row["questions"] == 1
    assert judged[better] != judged[worse]
    assert row["agreed"] == (judged[better] > judged[worse])  # type: ignore[operator]


def test_a_session_that_was_left_goes_on_with_its_rubric(folder: RunFolder) -> None:
    left = play(folder, "rubric", replies=["One thing.", "/done", "y", "/quit"])
    assert left.exit_code == 0 and "1 of 2 answers scored" in left.stderr
    (candidate,) = HumanFolder(folder).rubrics("ann").candidates()
    assert play(folder, "rubric", replies=["n"]).exit_code == 0
    (again,) = HumanFolder(folder).rubrics("ann").candidates()
    assert len(again.rollout_ids) == 2 and again.rollout_ids[0] == candidate.rollout_ids[0]
    play(folder, "rubric", replies=["Another.", "/done", "y", "n"])
    assert len(HumanFolder(folder).rubrics("ann").candidates()) == 2
    assert HumanFolder(folder).rubrics("../bob").candidates() == [], "a name is no path"
    assert HumanFolder(folder).rubrics("../bob").path.parent == HumanFolder(folder).path / "rubrics"


@pytest.mark.parametrize("replies", [["/done"], ["A criterion.", "/finish"]])
def test_a_rubric_has_a_criterion(folder: RunFolder, replies: list[str]) -> None:
    done = play(folder, "rubric", "--task", TASK, replies=replies)
    assert isinstance(done.exception, UserError) and "One criterion a reply" in str(done.exception)
    assert HumanFolder(folder).rubrics("ann").candidates() == []


def test_where_nothing_is_left_it_says_so(folder: RunFolder) -> None:
    replies = ["One.", "/done", "y", "n"]
    play(folder, "rubric", "--task", TASK, replies=replies)
    done = play(folder, "rubric", "--task", TASK, replies=replies)
    assert isinstance(done.exception, UserError) and "has no answers that ann has not scored" in str(
        done.exception
    )
