"""Flat groups of a step replaced by groups of other tasks (dynamic sampling, DAPO, section 3.2).

A group whose rewards are all equal teaches nothing. Up to so many times a step, all groups that are still flat give way
to groups of tasks that the step does not have yet; what is flat after the last round is trained on as it is. Which task
comes next depends on the place of the group in the whole step, so it does not matter how many processes share it.
"""

from collections.abc import Sequence

from scope_selfplay.keys import rng_from
from scope_selfplay.measures import Mean, Measures, Total, in_turn
from scope_selfplay.ranking.routing import is_flat
from scope_selfplay.training.job import GrpoJob, StepResult, StepSampler
from scope_selfplay.training.rows import RewardedRollout

Group = Sequence[RewardedRollout]


def resampled(sample_step: StepSampler, job: GrpoJob, tasks: Sequence[str], rounds: int) -> StepSampler:
    """`sample_step` with flat groups sampled again from the other `tasks`, at most `rounds` times a step."""
    if not rounds:
        return sample_step
    size, batch = job.settings.group_size, job.settings.batch

    async def sample(records: Sequence[str], step: int) -> StepResult:
        fresh = _fresh_tasks(job, tasks, step)
        first = job.ranks.number * len(records) // size
        found = await sample_step(records, step)
        groups, measures = _groups_of(found.rollouts, size), [found.metrics]
        for number in range(rounds):
            flat = {place: number * batch + first + place for place in _flat_places(groups)}
            again = {place: fresh[turn] for place, turn in flat.items() if turn < len(fresh)}
            # All processes take part in a round, because a step has collective calls; one without flat groups has none.
            if not any(job.ranks.gather(bool(again))):
                break
            found = await sample_step([task for task in again.values() for _ in range(size)], step)
            for place, group in zip(again, _groups_of(found.rollouts, size), strict=True):
                groups[place] = group
            measures.append({**found.metrics, "resampled": Total(len(again))})
        return StepResult([rollout for group in groups for rollout in group], _joined(measures, groups))

    return sample


def _fresh_tasks(job: GrpoJob, tasks: Sequence[str], step: int) -> list[str]:
    """The tasks that the step does not have, in an order of its own."""
    batch = job.settings.batch
    had = set(job.records[step * batch : (step + 1) * batch])
    fresh = [task for task in tasks if task not in had]
    rng_from(job.options.seed, "resample", step).shuffle(fresh)
    return fresh


def _groups_of(rollouts: Sequence[RewardedRollout], size: int) -> list[Group]:
    return [rollouts[start : start + size] for start in range(0, len(rollouts), size)]


def _flat_places(groups: Sequence[Group]) -> list[int]:
    return [place for place, group in enumerate(groups) if is_flat([rollout.reward for rollout in group])]


def _joined(measures: Sequence[Measures], groups: Sequence[Group]) -> Measures:
    """What all rounds cost; `zero_variance` is of the groups that are trained on."""
    flat = set(_flat_places(groups))
    return {
        "resampled": Total(0),
        **in_turn(measures),
        "zero_variance": Mean.of(place in flat for place in range(len(groups))),
    }
