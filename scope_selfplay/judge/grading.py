"""A rollout's answer against a whole rubric: one verdict per criterion, all asked at once."""

import asyncio
import re

from scope_selfplay.judge.protocol import Judge
from scope_selfplay.keys import Key
from scope_selfplay.maths.boxed_answers import boxed_reward, last_box
from scope_selfplay.rewards import rubric_score
from scope_selfplay.schemas import Check, Fault, Grade, Rollout, RolloutStatus, Rubric, Task, Verdict
from scope_selfplay.text_match import exact_match
from scope_selfplay.untrusted_text import is_blank
from scope_selfplay.untrusted_text.characters import plain

# Answers that only announce an answer have fooled model judges into full marks; they hold nothing to grade.
OPENERS = (
    *(
        "",
        "thought process",
        "let's solve this step by step",
        "solution",
        "answer",
        "final answer",
        "conclusion",
    ),
    *("let's solve this problem step by step", "let's think step by step", "let me solve this step by step"),
    *("the solution", "the answer is", "the final answer is", "response", "final response"),
    *(
        "\u89e3",
        "\u89e3\u7b54",
        "\u7b54\u6848",
        "\u7b54",
        "\u6700\u7ec8\u7b54\u6848",
        "\u89e3\u51b3\u65b9\u6848",
    ),
    *("\u304b\u3044\u305b\u3064", "\u89e3\u8aac", "\ub2f5", "\uc815\ub2f5"),
    *("\u0440\u0435\u0448\u0435\u043d\u0438\u0435", "\u043e\u0442\u0432\u0435\u0442"),
    *(
        "respuesta",
        "soluci\u00f3n",
        "r\u00e9ponse",
        "l\u00f6sung",
        "antwort",
        "resposta",
        "soluzione",
        "risposta",
    ),
)
_LONGEST_OPENER = 80


async def grade_answer(judge: Judge, task: Task, rubric: Rubric, rollout: Rollout, *, key: Key) -> Grade:
    """Equation 1; a criterion with a `check` is decided by its rule.

    An absent or opener-only answer scores 0 without a call; a failed rollout has no score, and without criteria there
    is none.
    """
    if rollout.status is RolloutStatus.FAILED or not rubric.criteria:
        return Grade(rollout_id=rollout.id, verdicts=(), score=None)
    answer = rollout.answer
    if answer is None or is_opener(answer):
        reason = "no answer" if answer is None else "the answer holds nothing but an opener"
        verdicts = [Verdict(value=False, reasoning=reason, attempts=0) for _ in rubric.criteria]
    else:
        calls = [
            judge.grade(task, criterion, answer, key=(*key, row))
            if criterion.check is None
            else _verified(task, criterion.check, answer)
            for row, criterion in enumerate(rubric.criteria)
        ]
        verdicts = list(await asyncio.gather(*calls))
    weights = [criterion.weight for criterion in rubric.criteria]
    score = rubric_score([verdict.value for verdict in verdicts], weights)
    return Grade(rollout_id=rollout.id, verdicts=tuple(verdicts), score=score)


async def _verified(task: Task, check: Check, answer: str) -> Verdict:
    """A rule's verdict on an answer, given the reference; no judge is asked."""
    match check:
        case Check.TEXT:
            found = last_box(answer) or answer
            is_right = exact_match(found, [task.reference or ""]) == 1.0
            reasoning = f"text {found!r}, reference {task.reference!r}"
            return Verdict(value=is_right, reasoning=reasoning, attempts=0)
        case Check.BOXED:
            # In a thread: a hostile answer may keep the verifier busy for seconds.
            reward = await asyncio.to_thread(boxed_reward, answer, task.reference or "")
    if reward is None:
        return Verdict(
            value=None, fault=Fault.UNREADABLE, reasoning=f"cannot verify {task.reference!r}", attempts=0
        )
    return Verdict(
        value=reward == 1.0, reasoning=f"boxed {last_box(answer)!r}, reference {task.reference!r}", attempts=0
    )


def is_opener(answer: str) -> bool:
    """Whether an answer says nothing, or only announces one."""
    if is_blank(answer):
        return True
    return len(answer) < _LONGEST_OPENER and _OPENERS.fullmatch(_bare(answer)) is not None


def _bare(text: str) -> str:
    """The words alone, in small letters."""
    letters = plain(text.replace("'", "").replace("\u2019", "")).casefold()
    return " ".join("".join(each if each.isalnum() else " " for each in letters).split())


# One behind the other announces no more than one.
_OPENERS = re.compile(
    f"(?:(?:{'|'.join(sorted(filter(None, map(_bare, OPENERS)), key=len, reverse=True))}) ?)+"
)
