"""`group_tournament`: repeated rounds in which a judge picks the winners of small groups (Tournament-GRPO)."""

from scope_selfplay.config.rewards import GroupTournamentReward
from scope_selfplay.judge.metered import MeteredJudge
from scope_selfplay.ranking import GroupTopology, group_tournament, min_max, play_groups
from scope_selfplay.reward_designs.answers import Entrants, Rewards, whole_structure
from scope_selfplay.reward_designs.design import Found, GroupDesign
from scope_selfplay.reward_designs.groups import RolloutGroup
from scope_selfplay.schemas import Key, Rollout, rng_from


class GroupTournamentDesign(GroupDesign):
    """Points for every won group over all repeats, min-max, plus the format (Algorithm 1, equations 8-9)."""

    def __init__(self, settings: GroupTournamentReward) -> None:
        self._settings = settings
        super().__init__(settings.rubrics)
        self.in_pairs = settings.group_size == 2

    async def compare(self, group: RolloutGroup, entrants: Entrants, desk: MeteredJudge) -> Found:
        if len(entrants.members) <= self._settings.final:
            # Nothing to decide: nobody has points, as in Algorithm 1, and nobody was left unjudged by a fault.
            return Found([0.0] * len(entrants.members))
        rubric = await self.shelf.find(group.task, group.rubric, desk)

        async def select(members: list[int]) -> list[int] | None:
            shown = [entrants.rollouts[number] for number in members]
            chosen = await desk.select(group.task, rubric, shown, self._settings.winners)
            return None if chosen is None else [members[place] for place in chosen]

        topology = self._topology(len(entrants.members), group.key)
        played = await play_groups(topology, select, identity=entrants.says)
        return Found(played.strengths, played.graph)

    def normalised(self, strengths: Rewards) -> Rewards:
        return min_max(strengths)

    def total(self, value: float, rollout: Rollout) -> float:
        return value + whole_structure(rollout)

    def planned_calls(self, entrants: int) -> int:
        topology = self._topology(entrants, ())
        count = 0
        try:
            wave = next(topology)
            while True:
                count += len(wave)
                wave = topology.send([members[: self._settings.winners] for members in wave])
        except StopIteration:
            return count

    def _topology(self, n: int, key: Key) -> GroupTopology:
        settings = self._settings
        return group_tournament(
            n,
            rng_from(*key, "groups"),
            group_size=settings.group_size,
            winners=settings.winners,
            final=settings.final,
            repeats=settings.repeats,
        )
