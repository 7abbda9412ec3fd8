"""One judgement asked again in one way."""

from scope_selfplay.evaluation.judge_scorers import share_won
from scope_selfplay.judge.protocol import Judge
from scope_selfplay.judge_audit.judgements import Judgement
from scope_selfplay.keys import rng_from
from scope_selfplay.schemas import Rollout, Verdict
from scope_selfplay.store.judge_checks import AskedAgain, AuditWay, JudgementKind

WAYS_OF = {
    JudgementKind.GATE: (AuditWay.AGAIN, AuditWay.REWORDED, AuditWay.ELSEWHERE),
    JudgementKind.GRADE: (AuditWay.AGAIN, AuditWay.LONGER, AuditWay.REWORDED, AuditWay.ELSEWHERE),
    JudgementKind.COMPARISON: tuple(AuditWay),
}
"""In which ways a judgement of each kind can be asked again."""
_PADDING = (
    "This is all that there is to say about it. Nothing else belongs to this answer. What was said above stands as it "
    "is. There is no more to add to it here. The answer ends with what has been said."
)
_TIMES = 4
_MOST = 600


async def ask_again(judgement: Judgement, way: AuditWay, judge: Judge) -> AskedAgain:
    """`judge` is the one that this way asks; with a fault there is no verdict now."""
    padded_first = rng_from("audit", judgement.id).random() < 0.5
    now, verdict = await _asked(judgement, way, judge, padded_first=padded_first)
    texts = [rollout.answer or "" for rollout in judgement.rollouts]
    shown = [judgement.task.text, *([judgement.criterion.text] if judgement.criterion else []), *texts]
    return AskedAgain(
        id=judgement.id,
        way=way,
        kind=judgement.kind,
        by=judge.identity,
        iteration=judgement.iteration,
        stage=judgement.stage,
        task_id=judgement.task.id,
        about=judgement.about,
        shown="\n---\n".join(text[:_MOST] for text in shown),
        then=judgement.then,
        now=now,
        padded_first=padded_first,
        then_reasoning=judgement.reasoning[:_MOST],
        now_reasoning=verdict.reasoning[:_MOST],
        fault=verdict.fault,
        attempts=verdict.attempts,
        cached=verdict.cached,
    )


async def _asked(
    judgement: Judgement, way: AuditWay, judge: Judge, *, padded_first: bool
) -> tuple[float | None, Verdict]:
    task = judgement.task
    match judgement.kind:
        case JudgementKind.GATE:
            assert judgement.gate is not None
            verdict = await judge.gate(judgement.gate, task, judgement.document)
        case JudgementKind.GRADE:
            assert judgement.criterion is not None
            answer = judgement.rollouts[0].answer or ""
            if way is AuditWay.LONGER:
                answer = padded(answer)
            key = ("audit", way.value, judgement.id)
            verdict = await judge.grade(task, judgement.criterion, answer, key=key)
        case JudgementKind.COMPARISON:
            return await _compared(judgement, way, judge, padded_first=padded_first)
    return None if verdict.value is None else float(verdict.value), verdict


async def _compared(
    judgement: Judgement, way: AuditWay, judge: Judge, *, padded_first: bool
) -> tuple[float | None, Verdict]:
    first, second = judgement.rollouts
    if way is AuditWay.LONGER:
        first, second = (_longer(first), second) if padded_first else (first, _longer(second))
    pair = (second, first) if way is AuditWay.SWAPPED else (first, second)
    assert judgement.style is not None
    # Of another repeat: the same question would be the same draw.
    repeat = 1 + list(AuditWay).index(way)
    found = await judge.compare(
        judgement.task, *pair, style=judgement.style, rubric=judgement.rubric, repeat=repeat
    )
    return share_won(found, first.id), found.verdict


def padded(answer: str) -> str:
    """The same answer with about 150 words behind it that say nothing."""
    return "\n\n".join([answer.rstrip(), *[_PADDING] * _TIMES])


def _longer(rollout: Rollout) -> Rollout:
    longer = padded(rollout.answer or "")
    turns = rollout.turns
    if turns and rollout.answer:
        text = turns[-1].text.replace(rollout.answer, longer)
        turns = (*turns[:-1], turns[-1].model_copy(update={"text": text}))
    # Another id: a judge by rule takes rollouts of one id for one and the same.
    return rollout.model_copy(update={"answer": longer, "turns": turns, "id": f"{rollout.id}-longer"})
