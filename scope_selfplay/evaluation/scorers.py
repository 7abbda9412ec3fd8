"""What an answer is worth, by name: rules, and judges (`judge_scorers`). Each scores the items that have what it needs.

score = await score_answer(SCORERS["f1"], item, rollout, judge=None, key=key, checkpoint="S_3", sample=0)
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from scope_selfplay.evaluation.items import Item
from scope_selfplay.evaluation.judge_scorers import JUDGES
from scope_selfplay.evaluation.scoring import Judged, Needs, Scorer
from scope_selfplay.judge import Judge
from scope_selfplay.keys import Key
from scope_selfplay.maths.boxed_answers import boxed_reward, last_box
from scope_selfplay.schemas import Rollout
from scope_selfplay.text_match import (
    cover_exact_match,
    exact_match,
    f1,
    hotpot_f1,
    squad_normal,
    trivia_normal,
)

Rule = Callable[[str, tuple[str, ...]], float | None]


@dataclass(frozen=True)
class RuleScorer:
    """A rule over the answer and the right ones. `vote` is what equal answers have in common, for a majority."""

    name: str
    title: str
    rule: Rule
    vote: Callable[[str], str | None] = squad_normal
    needs: Needs = Needs.ANSWERS
    asks_judge: bool = False
    is_slow: bool = False

    def score(self, item: Item, answer: str | None) -> float | None:
        """0 without an answer; None where the rule cannot say."""
        return 0.0 if answer is None else self.rule(answer, item.answers)

    async def judged(self, item: Item, rollout: Rollout, judge: Judge | None, *, key: Key) -> Judged:
        answer = rollout.answer or ""
        # In a thread: a hostile answer may keep a verifier busy for seconds.
        score = asyncio.to_thread(self.score, item, answer) if self.is_slow else None
        value = self.score(item, answer) if score is None else await score
        return Judged(value=value, label=self.vote(answer) or "")


def _boxed(answer: str, right: tuple[str, ...]) -> float | None:
    """1 where the last box equals one of the right answers; None where no right one can be read."""
    rewards = [boxed_reward(answer, each) for each in right]
    known = [reward for reward in rewards if reward is not None]
    return max(known) if known else None


def _boxed_vote(answer: str) -> str | None:
    box = last_box(answer)
    return None if box is None else "".join(box.split())


_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Z](?![A-Za-z])")


def _letter(answer: str) -> str | None:
    """The one capital letter that stands alone in the last box, as in `(C)` or `\\text{C}`."""
    letters = set(_LETTER.findall(last_box(answer) or ""))
    return letters.pop() if len(letters) == 1 else None


def _choice(answer: str, right: tuple[str, ...]) -> float:
    return float(_letter(answer) in right)


_TRIVIA_EXACT, _TRIVIA_F1 = partial(exact_match, normal=trivia_normal), partial(f1, normal=trivia_normal)
RULES = (
    RuleScorer("exact_match", "exact match (SQuAD)", exact_match),
    RuleScorer("f1", "F1 over words (SQuAD)", f1),
    RuleScorer(
        "cover_exact_match", "the right answer occurs in the one given (Search-R1)", cover_exact_match
    ),
    RuleScorer("hotpot_f1", "F1, yes and no right or wrong (HotpotQA)", hotpot_f1),
    RuleScorer("trivia_exact_match", "exact match (TriviaQA)", _TRIVIA_EXACT, trivia_normal),
    RuleScorer("trivia_f1", "F1 over words (TriviaQA)", _TRIVIA_F1, trivia_normal),
    RuleScorer(
        "boxed", "the last box equals the right answer (Math-Verify)", _boxed, _boxed_vote, is_slow=True
    ),
    RuleScorer("choice", "the letter in the last box is the right choice", _choice, _letter),
)
SCORERS: MappingProxyType[str, Scorer] = MappingProxyType({each.name: each for each in (*RULES, *JUDGES)})
"""All scorers by name."""
