"""What both roles' training steps share: the engine that samples from the model in training, and the books."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from scope_selfplay.engines import in_process_engine, policy_format_for
from scope_selfplay.episodes import PolicyFormat
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.inference.served_model import ServedModel
from scope_selfplay.inference.stepped_engine import SteppedEngine
from scope_selfplay.run_context import RunContext
from scope_selfplay.schemas import Role, Rollout, RolloutStatus
from scope_selfplay.training.grpo import GrpoJob, RewardedRollout
from scope_selfplay.training.rows import rows_from


@dataclass(frozen=True)
class Learner:
    """The policy in training and how it is spoken to."""

    engine: InProcessModel | SteppedEngine | ServedModel
    policy_format: PolicyFormat

    def renew(self, step: int) -> None:
        """Sample the coming step from the weights as they are now."""
        self.engine.refresh(f"{self.policy_format.checkpoint}@{step}")


class RolloutClock:
    """How long the rollouts of a step take, and how long their rewards keep it waiting after the last of them."""

    def __init__(self) -> None:
        self._begun = self._last = perf_counter()

    def finished(self) -> None:
        """A rollout has ended."""
        self._last = perf_counter()

    def seconds(self) -> dict[str, float | None]:
        return {"rollout_seconds": self._last - self._begun, "reward_seconds": perf_counter() - self._last}


def make_learner(model: Any, job: GrpoJob, context: RunContext, role: Role, checkpoint: str) -> Learner:
    """`model` is the model in training, or a PolicyModel that samples from it."""
    engine = (
        model
        if isinstance(model, SteppedEngine | ServedModel)
        else in_process_engine(context, job.codec, role, model, identity=checkpoint, say=job.say)
    )
    return Learner(engine, policy_format_for(context, job.codec, role, checkpoint))


def scored(rollout: Rollout, reward: float | None, policy_format: PolicyFormat) -> RewardedRollout:
    """The rows that a rollout is trained on, with its reward."""
    rows = rows_from(rollout, per_turn=policy_format.dialect.drops_earlier_thinking)
    return RewardedRollout(rows.rows, reward, rollout.status is RolloutStatus.TRUNCATED, rows.split)


def conduct(rollouts: Sequence[Rollout]) -> dict[str, float | None]:
    """How the policy behaved in a step: searches, turns, finished share."""
    finished = [rollout.status is RolloutStatus.FINISHED for rollout in rollouts]
    return {
        "searches": mean([rollout.searches for rollout in rollouts]),
        "turns": mean([len(rollout.turns) for rollout in rollouts]),
        "finished": mean(finished),
    }


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
