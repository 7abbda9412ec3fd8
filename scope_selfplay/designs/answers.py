"""Which rollouts enter a comparison, what tells them apart, formats, what a Challenger's task earns, and measures of
these. Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unicodedata import combining, normalize

from scope_selfplay.base.text import form_of, letters_of, names_of, plain, spaced, stem_of
from scope_selfplay.base.values import Candidate, CandidateStatus, Grade, Reason, Rollout, RolloutStatus, Turn
from scope_selfplay.config.run import TasksConfig
from scope_selfplay.config.training import ChallengerConfig, SolverConfig
from scope_selfplay.dialects.families import ANSWER_TAGS, DIALECTS, THINK_CLOSE, split_thinking
from scope_selfplay.judge.account import JudgeRecords
from scope_selfplay.judge.fences import View, is_opener, shown
from scope_selfplay.rewards.equations import (
    TOLERANCE,
    challenger_format,
    challenger_reward,
    difficulty_reward,
    frontier_reward,
    in_window,
    length_factor,
    search_reward,
    solver_format,
)
from scope_selfplay.rewards.measures import Mean, Measure

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


def entrants_of(rollouts: Sequence[Rollout], view: View) -> Entrants:
    """`view` is what the judge will be shown of them."""
    members = tuple(
        number
        for number, rollout in enumerate(rollouts)
        if rollout.status is not RolloutStatus.FAILED and not is_opener(rollout.answer)
    )
    entered = tuple(rollouts[number] for number in members)
    finished = sum(rollout.status is not RolloutStatus.FAILED for rollout in rollouts)
    identities = tuple(shown(rollout, view).identity for rollout in entered)
    return Entrants(members, entered, identities, below=finished - len(members))


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


_ALIKE = 0.5
"""Of the words and pairs of words that are in either of two tasks; so many shared ones are asking alike."""


def shares_alike(own: Sequence[str], tasks: Sequence[str]) -> list[float]:
    """Of each task the share of the others that ask alike, names and numbers left out; `tasks` are all of a step, its
    own among them. An empty text is no task and has 0, as one that nothing is beside.
    """
    forms, others = [form_of(task) for task in tasks], max(1, len(tasks) - 1)

    def alike(form: frozenset[str]) -> int:
        return sum(len(form & each) >= _ALIKE * len(form | each) for each in forms)

    return [(alike(form_of(text)) - 1) / others if text else 0.0 for text in own]


def without_subject(task: str, title: str) -> str:
    """What a task asks, in letters without accents, but for the words that name what its document's title does."""
    names = {stem_of(letters_of(word)) for name in names_of(title) for word in spaced(name).split()} - {""}
    bare = "".join(each for each in normalize("NFKD", plain(task)) if not combining(each))
    words = ((letters_of(word), word) for word in spaced(bare).split())

    def names_it(letters: str) -> bool:
        return any(letters == name or (len(name) > 2 and name in letters) for name in names)

    return " ".join(word for letters, word in words if not names_it(letters)) or "?"


def reward_of_candidate(
    rollout: Rollout, candidate: Candidate, format_score: float, alike: float, settings: ChallengerConfig
) -> float | None:
    """SCOPE, equation 4, or the reward of the frontier. A candidate that a fault left unresolved has no reward."""
    if rollout.status is RolloutStatus.FAILED or candidate.status is CandidateStatus.UNRESOLVED:
        return None
    # Only a task that passed the gates and has a rubric is tried, and so has a mean.
    if settings.reward == "frontier":
        return frontier_reward(format_score, candidate.mean, alike, settings)
    return challenger_reward(format_score, candidate.mean, settings)


def answer_metrics(
    settings: SolverConfig,
    rollouts: Sequence[Rollout],
    records: Sequence[JudgeRecords],
    count: Callable[[str], int],
) -> dict[str, Measure]:
    """The parts of SCOPE's reward (equation 6) without their weights, whatever the design rewards."""
    grades = [grade.score for group in records for grade in group.of(Grade)]
    lengths = [count(rollout.answer) for rollout in rollouts if rollout.answer]
    limits = (settings.length_soft, settings.length_hard, settings.length_floor)
    return {
        **({"rubric": Mean.of(grades)} if grades else {}),
        "format": Mean.of([format_score(rollout) for rollout in rollouts]),
        "search": Mean.of([search_reward(rollout.searches) for rollout in rollouts]),
        "answer_tokens": Mean.of(lengths),
        "length_factor": Mean.of([length_factor(tokens, *limits) for tokens in lengths]),
    }


def task_metrics(
    candidates: Sequence[Candidate],
    format_scores: Sequence[float],
    alike: Sequence[float],
    settings: ChallengerConfig,
    limits: TasksConfig,
) -> dict[str, Measure]:
    """The parts of the Challenger's reward (equation 4) without their weights, and how often tasks ask alike."""
    known = [candidate.mean for candidate in candidates if candidate.mean is not None]
    unresolved = [candidate.status is CandidateStatus.UNRESOLVED for candidate in candidates]
    # Failed gates count as 0: this is the term that equation 4 adds, not the mean over passing tasks.
    difficulties = [
        0.0 if candidate.mean is None else difficulty_reward(candidate.mean, settings.target)
        for candidate in candidates
        if candidate.status is not CandidateStatus.UNRESOLVED
    ]
    return {
        "difficulty": Mean.of(difficulties),
        "format": Mean.of(format_scores),
        "alike": Mean.of(
            share for each, share in zip(candidates, alike, strict=True) if each.task is not None
        ),
        "gates": Mean.of([candidate.mean is not None for candidate in candidates]),
        "mean_score": Mean.of(known),
        "in_window": Mean.of([in_window(value, limits.low, limits.high) for value in known]),
        "unresolved": Mean.of(unresolved),
        "no_task": Mean.of([candidate.reason is Reason.NO_TASK for candidate in candidates]),
    }


def behaviour_metrics(rollouts: Sequence[Rollout]) -> dict[str, Measure]:
    """How the policy behaved in a step: searches, turns, finished share."""
    return {
        "searches": Mean.of(rollout.searches for rollout in rollouts),
        "turns": Mean.of(len(rollout.turns) for rollout in rollouts),
        "finished": Mean.of(rollout.status is RolloutStatus.FINISHED for rollout in rollouts),
    }
