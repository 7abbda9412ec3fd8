"""Checkpoints with chosen answers, and judges with chosen habits."""

from collections.abc import Sequence

from scope_selfplay.evaluation.pairings import CheckpointAnswers
from scope_selfplay.schemas import (
    Candidate,
    CandidateStatus,
    Comparison,
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

UNREADABLE = Verdict(value=None, fault=Fault.UNREADABLE)


def candidate(number: int) -> Candidate:
    task = Task(id=f"t{number}", text=f"Question {number}?", type="long_form_qa", document_id=f"d{number}")
    return Candidate(
        id=f"c{number}",
        status=CandidateStatus.ACCEPTED,
        reason=Reason.ACCEPTED,
        task=task,
        rubric=Rubric(task_id=task.id, criteria=(Criterion(text="Says it."),)),
        provenance=Provenance(run="r", iteration=0, stage="tasks", document_id=f"d{number}"),
    )


def contestant(
    name: str,
    answers: Sequence[str | None],
    *,
    failed: Sequence[int] = (),
    scores: Sequence[float | None] = (),
) -> CheckpointAnswers:
    """Answer i is to task i; its score is 0 unless `scores` says otherwise."""
    rollouts, grades = {}, {}
    for row, answer in enumerate(answers):
        status = RolloutStatus.FAILED if row in failed else RolloutStatus.FINISHED
        rollout = Rollout(
            id=f"{name}-{row}",
            role=Role.SOLVER,
            checkpoint=name,
            subject_id=f"t{row}",
            turns=(),
            answer=answer,
            status=status,
        )
        score = scores[row] if scores else 0.0
        verdict = UNREADABLE if score is None else Verdict(value=score > 0)
        rollouts[f"t{row}"] = rollout
        grades[f"t{row}"] = Grade(rollout_id=rollout.id, verdicts=(verdict,), score=score)
    return CheckpointAnswers(name, rollouts, grades)


def comparison(first: str, second: str, outcome: Outcome | None, *, attempts: int = 1) -> Comparison:
    verdict = UNREADABLE if outcome is None else Verdict(value=True, attempts=attempts)
    return Comparison(first_id=first, second_id=second, outcome=outcome, verdict=verdict)
