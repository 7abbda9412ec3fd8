"""Group tournaments: the judge picks the winners of small groups (Tournament-GRPO, Algorithm 1)."""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from scope_selfplay.ranking.matches import GroupTopology


def group_tournament(
    n: int,
    rng: random.Random,
    *,
    group_size: int,
    winners: int,
    final: int,
    repeats: int,
    points: float = 1.0,
    neutral_byes: bool = True,
) -> GroupTopology:
    """A strength is the sum of points over all repeats; a win in a judged group scores `points` (omega_t).

    Each repeat starts from all entrants, shuffles and splits them every round, and ends with at most `final`
    left. Groups are as even as can be and never larger than `group_size`. One of at most `winners` goes on
    whole, without call or points: a bye, which nobody gets twice while others had none. Should a round
    consist only of byes, the repeat ends there. In a group without verdict nobody scores and the first
    `winners` of the shuffled order go on. The repeats run side by side: wave t holds the groups of round t
    of all of them.

    `neutral_byes` scales what an entrant scored in a repeat by rounds reached over rounds contested, so that a
    bye neither earns nor costs. It is on by default because without it a bye can cost the best entrant its
    place: of 5 entrants in groups of 4 with 2 winners a perfect judge puts the best first in 68 % of the runs
    only, with it in all. The paper has only sizes without byes, for which both are the same.

    Raises ValueError unless 1 <= winners < group_size, winners <= final and repeats >= 1, and when it is sent
    anything but `winners` different members of a group.
    """
    if not (1 <= winners < group_size and winners <= final and repeats >= 1):
        raise ValueError(
            f"group_size={group_size}, winners={winners}, final={final}, repeats={repeats}:"
            " a group tournament needs 1 <= winners < group_size, winners <= final and repeats >= 1"
        )
    runs = [_Repeat(n, group_size, winners) for _ in range(repeats)]
    while True:
        waves = [run.draw(rng) if len(run.entrants) > final else [] for run in runs]
        wave = [group for groups in waves for group in groups]
        if not wave:
            break
        verdicts = iter((yield wave))
        for run, groups in zip(runs, waves, strict=True):
            if groups:
                run.settle(verdicts)
    judged = set().union(*(run.judged for run in runs))
    return [
        points * sum(run.score(entrant, neutral_byes) for run in runs) if entrant in judged else None
        for entrant in range(n)
    ]


class _Repeat:
    """One tournament from all entrants down to the last, one round at a time."""

    def __init__(self, n: int, group_size: int, winners: int) -> None:
        self.entrants = list(range(n))
        self.judged: set[int] = set()
        self._group_size = group_size
        self._winners = winners
        self._groups: list[list[int]] = []
        self._wins: Counter[int] = Counter()
        self._contested: Counter[int] = Counter()
        self._byes: Counter[int] = Counter()

    def draw(self, rng: random.Random) -> list[list[int]]:
        """Splits those who are left at random, larger groups first; returns those that need a verdict."""
        order = list(self.entrants)
        rng.shuffle(order)
        count = -(-len(order) // self._group_size)
        size, larger = divmod(len(order), count)
        playing = larger * (size + 1)
        if size <= self._winners:
            # The smaller groups are byes: whoever had one before plays now.
            order.sort(key=self._byes.__getitem__, reverse=True)
            contested = order[:playing]
            rng.shuffle(contested)
            order[:playing] = contested
        bounds = [*range(0, playing, size + 1), *range(playing, len(order), size), len(order)]
        self._groups = [order[low:high] for low, high in pairwise(bounds)]
        return [group for group in self._groups if len(group) > self._winners]

    def settle(self, verdicts: Iterator[list[int] | None]) -> None:
        """Ends the round, with one verdict for each group that needed one."""
        self.entrants = [entrant for group in self._groups for entrant in self._going_on(group, verdicts)]

    def score(self, entrant: int, neutral_byes: bool) -> float:
        won, contested = self._wins[entrant], self._contested[entrant]
        return won * (1 + self._byes[entrant] / contested) if neutral_byes and contested else won

    def _going_on(self, group: list[int], verdicts: Iterator[list[int] | None]) -> list[int]:
        if len(group) <= self._winners:
            self._byes.update(group)
            return group
        self._contested.update(group)
        chosen = next(verdicts)
        if chosen is None:
            return group[: self._winners]
        if len(chosen) != self._winners or len(set(group) & set(chosen)) != self._winners:
            raise ValueError(f"{self._winners} of the group {group} were to be chosen, not {chosen}")
        self.judged.update(group)
        self._wins.update(chosen)
        return [entrant for entrant in group if entrant in chosen]
