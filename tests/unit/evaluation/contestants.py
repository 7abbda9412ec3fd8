"""Checkpoints with chosen answers, and judges with chosen habits."""

from collections.abc import Sequence
from typing import Any

from scope_selfplay.base.values import (
    Candidate,
    CandidateStatus,
    Criterion,
    Fault,
    Grade,
    Outcome,
    Provenance,
    Reason,
    Role,
    Rollout,
    RolloutStatus,
    Rubric,
    Task,
    Verdict,
)
from scope_selfplay.evaluation.pairs import PairVerdict
from scope_selfplay.evaluation.ratings import GradedAnswers

UNREADABLE = Verdict(value=None, fault=Fault.UNREADABLE)


def candidate(number: int, text: str = "", dimensions: Sequence[str] = ("",)) -> Candidate:
    text = text or f"Question {number}?"
    task = Task(id=f"t{number}", text=text, type="long_form_qa", document_id=f"d{number}")
    criteria = tuple(Criterion(text=f"Says {each or 'it'}.", dimension=each) for each in dimensions)
    return Candidate(
        id=f"c{number}",
        status=CandidateStatus.ACCEPTED,
        reason=Reason.ACCEPTED,
        task=task,
        rubric=Rubric(task_id=task.id, criteria=criteria),
        provenance=Provenance(run="r", iteration=0, stage="tasks", document_id=f"d{number}"),
    )


def answering(
    name: str, subject: str, answer: str | None, status: RolloutStatus = RolloutStatus.FINISHED
) -> Rollout:
    own = {"id": f"{name}-{subject[1:]}", "checkpoint": name, "subject_id": subject}
    return Rollout(role=Role.SOLVER, turns=(), answer=answer, status=status, **own)


def judged_pair(item: str, first: str, second: str, outcome: Outcome | None, **more: Any) -> PairVerdict:
    ids = {"first_id": f"{first}-{item[1:]}", "second_id": f"{second}-{item[1:]}"}
    given = {"verdict": Verdict(value=True), **more}
    return PairVerdict(item_id=item, first=first, second=second, outcome=outcome, **ids, **given)


def contestant(
    name: str,
    answers: Sequence[str | None],
    *,
    failed: Sequence[int] = (),
    scores: Sequence[float | None] = (),
) -> GradedAnswers:
    """Answer i is to task i; its score is 0 unless `scores` says otherwise."""
    rollouts, grades = {}, {}
    for row, answer in enumerate(answers):
        status = RolloutStatus.FAILED if row in failed else RolloutStatus.FINISHED
        rollout = answering(name, f"t{row}", answer, status)
        score = scores[row] if scores else 0.0
        verdict = UNREADABLE if score is None else Verdict(value=score > 0)
        rollouts[f"t{row}"] = rollout
        grades[f"t{row}"] = Grade(rollout_id=rollout.id, verdicts=(verdict,), score=score)
    return GradedAnswers(rollouts, grades)
