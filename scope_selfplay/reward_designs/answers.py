"""Which rollouts enter a comparison, what tells them apart, formats, and what a Challenger's task earns. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from scope_selfplay.config import ChallengerConfig
from scope_selfplay.dialects import DIALECTS
from scope_selfplay.dialects.turn import ANSWER_TAGS, THINK_CLOSE, split_thinking
from scope_selfplay.judge.grading import is_opener
from scope_selfplay.judge.protocol import View
from scope_selfplay.judge.shown import shown
from scope_selfplay.rewards import TOLERANCE, challenger_format, challenger_reward, solver_format
from scope_selfplay.schemas import Candidate, CandidateStatus, Rollout, RolloutStatus, Turn

Rewards = list[float | None]
_BLOCKS = (ANSWER_TAGS, *dict.fromkeys(dialect.search_tags for dialect in DIALECTS))
"""What a turn may hold besides its thought: an answer, or a search as some family writes it."""


@dataclass(frozen=True)
class Entrants:
    """The rollouts of a group that have something to compare; entrant i is the group's member `members[i]`.

    Two with the same identity would look the same to the judge: each identity is all that it is shown of a rollout.
    `below`: how many others finished without anything to compare. Every entrant ranks above them, without a call.
    """

    members: tuple[int, ...]
    rollouts: tuple[Rollout, ...]
    identities: tuple[str, ...]
    below: int = 0

    @property
    def different(self) -> int:
        """How many of them a judge can tell apart."""
        return len(set(self.identities))

    def equalised(self, values: Sequence[float | None]) -> Rewards:
        """Equal ones get the mean of their values: they differ only in whom they happened to meet."""
        known: dict[str, list[float]] = {}
        for who, value in zip(self.identities, values, strict=True):
            if value is not None:
                known.setdefault(who, []).append(value)
        return [sum(known[who]) / len(known[who]) if who in known else None for who in self.identities]


def has_answer(rollout: Rollout) -> bool:
    """Whether there is anything to judge; a text that only announces an answer does not count as one."""
    return rollout.answer is not None and not is_opener(rollout.answer)


def is_entrant(rollout: Rollout) -> bool:
    return rollout.status is not RolloutStatus.FAILED and has_answer(rollout)


def entrants_of(rollouts: Sequence[Rollout], view: View) -> Entrants:
    """`view` is what the judge will be shown of them."""
    members = tuple(number for number, rollout in enumerate(rollouts) if is_entrant(rollout))
    entered = tuple(rollouts[number] for number in members)
    finished = sum(rollout.status is not RolloutStatus.FAILED for rollout in rollouts)
    identities = tuple(shown(rollout, view).identity for rollout in entered)
    return Entrants(members, entered, identities, below=finished - len(members))


def rewards_of_group(
    rollouts: Sequence[Rollout], entrants: Entrants, values: Sequence[float | None]
) -> Rewards:
    """Entrants' values as the group's: 0 for a rollout without a valid answer, None for one that failed."""
    own = dict(zip(entrants.members, values, strict=True))
    return [
        own.get(number, None if rollout.status is RolloutStatus.FAILED else 0.0)
        for number, rollout in enumerate(rollouts)
    ]


def format_score(rollout: Rollout) -> float:
    """SCOPE appendix F.2, where a call of any tool counts as a search; 0 for a rollout without turns."""
    if not rollout.turns:
        return 0.0
    before_last = sum(turn.uses_tool for turn in rollout.turns[:-1])
    return solver_format(rollout.thinking_turns, len(rollout.turns), before_last, rollout.answer is not None)


def whole_structure(rollout: Rollout) -> float:
    """1 where every part of the format holds, else 0 (Tournament-GRPO section 3.2, appendix B): each turn thinks, each
    but the last searches, there is at least one search, the last holds a closed answer, and no turn holds anything
    but one thought, which is not empty, and behind it one search or the answer.
    """
    whole = format_score(rollout) >= 1.0 - TOLERANCE
    return float(whole and all(_is_thought_and_block(turn) for turn in rollout.turns))


def _is_thought_and_block(turn: Turn) -> bool:
    thought, rest = split_thinking(turn.text, may_begin_inside=turn.thinking is not None)
    if not thought or turn.text.count(THINK_CLOSE) != 1:
        return False
    block = rest.strip()
    own = () if turn.call is None else ((f"<{turn.call.tool}>", f"</{turn.call.tool}>"),)
    return any(
        block.startswith(opener)
        and block.endswith(closer)
        and block.count(opener) == block.count(closer) == 1
        for opener, closer in (*_BLOCKS, *own)
    )


def task_format_score(rollout: Rollout, expected_searches: int) -> float:
    """Of a Challenger's rollout (SCOPE, appendix F.1)."""
    if not rollout.turns:
        return 0.0
    has_task = rollout.task is not None
    turns, searches = len(rollout.turns), rollout.searches
    return challenger_format(rollout.thinking_turns, turns, searches, expected_searches, has_task)


def reward_of_candidate(
    rollout: Rollout, candidate: Candidate, format_score: float, settings: ChallengerConfig
) -> float | None:
    """SCOPE, equation 4. A candidate that a fault left unresolved has no reward."""
    if rollout.status is RolloutStatus.FAILED or candidate.status is CandidateStatus.UNRESOLVED:
        return None
    return challenger_reward(
        format_score,
        # Only a task that passed the gates and has a rubric is tried, and so has a mean.
        candidate.mean is not None,
        candidate.mean,
        format_weight=settings.format_weight,
        difficulty_weight=settings.difficulty_weight,
        target=settings.target,
    )
