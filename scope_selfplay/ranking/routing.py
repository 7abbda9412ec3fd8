"""Which groups go to a tournament: those whose own rewards cannot tell their rollouts apart.

Reasoning Arena, equations 3 to 5. The rewards may come from a verifier or from a rubric; a reward that
could not be determined is None and is no evidence either way.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

_EQUAL = 1e-9


class Routing(NamedTuple):
    """Per group of a step: are its rewards flat, and does it go to a tournament; and what that will cost.

    `flat` and not `routed` is a group for which the budget did not last: it keeps its rewards and teaches
    nothing.
    """

    flat: tuple[bool, ...]
    routed: tuple[bool, ...]
    calls: int

    @property
    def routed_share(self) -> float:
        """Share of the step's groups that go to a tournament; 0.0 for an empty step."""
        return sum(self.routed) / len(self.routed) if self.routed else 0.0


def is_flat(rewards: Sequence[float | None]) -> bool:
    """D(G) = 0 of equation 3: at least two rewards are known and all of these are equal, to within 1e-9."""
    known = [reward for reward in rewards if reward is not None]
    return len(known) > 1 and max(known) - min(known) <= _EQUAL


def route(
    groups: Sequence[Sequence[float | None]],
    prices: Sequence[int],
    rng: random.Random,
    *,
    budget: int | None = None,
) -> Routing:
    """Sends the flat groups of a step to tournaments, as many as the budget of judge calls pays for.

    `prices` are the calls that each group may take. Without a budget all flat groups go. With one they are
    drawn in random order, so that no task is always served first, and a group that no longer fits is passed
    over for a cheaper one. Raises ValueError for a negative budget.
    """
    if budget is not None and budget < 0:
        raise ValueError(f"the budget of judge calls is {budget}; it is at least 0, or None for no limit")
    flat = [is_flat(rewards) for rewards in groups]
    routed = [False] * len(groups)
    spent = 0
    candidates = [group for group, level in enumerate(flat) if level]
    rng.shuffle(candidates)
    for group in candidates:
        if budget is None or spent + prices[group] <= budget:
            routed[group] = True
            spent += prices[group]
    return Routing(tuple(flat), tuple(routed), spent)


def routed_rewards(
    rewards: Sequence[Sequence[float | None]],
    judged: Sequence[Sequence[float | None]],
    routed: Sequence[bool],
) -> list[list[float | None]]:
    """Equation 5: a routed group takes the judge's rewards, every other keeps its own."""
    rows = zip(rewards, judged, routed, strict=True)
    return [list(by_judge if goes else own) for own, by_judge, goes in rows]


def informative_share(advantages: Sequence[Sequence[float]]) -> float:
    """Share of a step's samples with a non-zero advantage, the quantity that routing raises; 0.0 for none."""
    samples = [advantage for group in advantages for advantage in group]
    return sum(advantage != 0.0 for advantage in samples) / len(samples) if samples else 0.0


class LiveRoute:
    """The same decision while the rollouts of one group still finish.

    Nothing is compared until a second known reward equals the first; from then on arrivals join the board
    at once, until one differs: the group is not flat, and the calls made are spent.
    """

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._reward: float | None = None
        self._differs = False

    @property
    def is_flat(self) -> bool:
        """True while at least two known rewards have arrived and none differed."""
        return self._reward is not None and not self._waiting and not self._differs

    def arrive(self, entrant: int, reward: float | None) -> list[int]:
        """Who joins the board now, in order of arrival."""
        if reward is None or self._differs:
            return []
        if self._reward is None:
            self._reward, self._waiting = reward, [entrant]
            return []
        self._differs = abs(reward - self._reward) > _EQUAL
        joining = [] if self._differs else [*self._waiting, entrant]
        self._waiting = []
        return joining
