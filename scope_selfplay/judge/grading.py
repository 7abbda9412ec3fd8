"""A rollout's answer against a whole rubric: one verdict per criterion, all asked at once."""

import asyncio

from scope_selfplay.judge.protocol import Judge
from scope_selfplay.rewards import rubric_score
from scope_selfplay.schemas import Grade, Key, Rollout, RolloutStatus, Rubric, Task, Verdict

# Answers that only announce an answer have fooled model judges into full marks; they hold nothing to grade.
OPENERS = ("", "thought process", "let's solve this step by step", "solution", "answer", "final answer")


async def grade_rollout(judge: Judge, task: Task, rubric: Rubric, rollout: Rollout, *, key: Key) -> Grade:
    """Equation 1. An absent or opener-only answer scores 0 without a call; a failed rollout has no score."""
    if rollout.status is RolloutStatus.FAILED:
        return Grade(rollout_id=rollout.id, verdicts=(), score=None)
    answer = rollout.answer
    if answer is None or is_opener(answer):
        reason = "no answer" if answer is None else "the answer holds nothing but an opener"
        verdicts = [Verdict(value=False, reasoning=reason, attempts=0) for _ in rubric.criteria]
    else:
        calls = [
            judge.grade(task, criterion, answer, key=(*key, row))
            for row, criterion in enumerate(rubric.criteria)
        ]
        verdicts = list(await asyncio.gather(*calls))
    weights = [criterion.weight for criterion in rubric.criteria]
    score = rubric_score([verdict.value for verdict in verdicts], weights)
    return Grade(rollout_id=rollout.id, verdicts=tuple(verdicts), score=score)


def is_opener(answer: str) -> bool:
    bare = answer.strip().strip(":.!-*# \n").lower()
    return bare in OPENERS
