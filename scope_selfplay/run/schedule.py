"""The schedule of a run: its stages in order, the policy that each starts from, and when the run ends.

The loop in one process, the controller of a cluster and everything that shows a run ask here, so they agree.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scope_selfplay.base.values import Role
from scope_selfplay.config.judge import JudgeRole
from scope_selfplay.config.run import RunConfig
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.ratings import Decision, Ratings


@dataclass(frozen=True)
class PolicyVersion:
    """C_t or S_t: a role's policy as iteration t trained it; both are the base model at iteration 0."""

    role: Role
    iteration: int

    @property
    def name(self) -> str:
        return f"{'C' if self.role is Role.CHALLENGER else 'S'}_{self.iteration}"

    def checkpoint(self, folder: RunFolder) -> Path | None:
        """Where its training left it; None for the base model, whose path is `model.path`."""
        if self.iteration == 0:
            return None
        stage = Stage.CHALLENGER if self.role is Role.CHALLENGER else Stage.SOLVER
        return folder.stage(self.iteration, stage).checkpoint


def stages_of(config: RunConfig) -> list[tuple[int, Stage]]:
    """Every (iteration, stage) of a run in order; iteration 0 makes the held-out tasks and compares S_0."""
    stages = [(0, Stage.TASKS), (0, Stage.COMPARE)]
    last = config.iterations if config.stop_after is None else min(config.iterations, config.stop_after)
    for iteration in range(1, last + 1):
        needed = {
            Stage.CHALLENGER: is_challenger_trained(config, iteration),
            Stage.TASKS: config.solver.tasks is None,
        }
        stages += [(iteration, stage) for stage in Stage if needed.get(stage, True)]
    return stages


def is_challenger_trained(config: RunConfig, iteration: int) -> bool:
    """Whether an iteration has the stage `challenger`: not once it is frozen, and not where the tasks are given."""
    last = config.challenger.freeze_after
    return config.solver.tasks is None and (last is None or iteration <= last)


def challenger_of(config: RunConfig, iteration: int) -> PolicyVersion:
    """The Challenger that writes the tasks of an iteration, and from which the next one's training starts."""
    last = config.challenger.freeze_after
    return PolicyVersion(Role.CHALLENGER, iteration if last is None else min(iteration, last))


def promoted_solver(iteration: int, is_promoted: Callable[[int], bool]) -> PolicyVersion:
    """The newest Solver up to S_t that was promoted, else S_0: iteration t + 1 starts from it and is measured by it.

    `is_promoted` answers for the comparison of each iteration from 1 on.
    """
    newest = next((number for number in range(iteration, 0, -1) if is_promoted(number)), 0)
    return PolicyVersion(Role.SOLVER, newest)


def stop_message(config: RunConfig, iteration: int, ratings: Ratings) -> str | None:
    """Why the run ends with this iteration, if its comparison said so and the config still asks for it."""
    if config.compare.stop == "never" or ratings.decision is not Decision.STOP:
        return None
    return f"stopped after iteration {iteration}: {ratings.reason}; with compare.stop=never it goes on all the same"


def promotion_warning(config: RunConfig) -> str | None:
    """What to say where the judge that the Solver is rewarded by also decides about its promotion: what a policy learns
    to please will find it better.
    """
    judge, settings = config.judge, config.compare
    decides = settings.promotion != "always" or settings.stop != "never"
    if judge.kind != "model" or not decides:
        return None
    asked = JudgeRole.GRADE if settings.evidence == "scores" else JudgeRole.COMPARE
    decider = judge.evaluate[0] if judge.evaluate else judge.endpoint_of(asked)
    design, routing = config.solver.reward.design, config.solver.routing
    grades = design == "rubric" or (routing is not None and routing.by != "verifier")
    roles = {JudgeRole.COMPARE: design not in ("rubric", "verifier"), JudgeRole.GRADE: grades}
    rewarding = [judge.endpoint_of(role) for role, is_asked in roles.items() if is_asked]
    if (decider.base_url, decider.model) not in {(each.base_url, each.model) for each in rewarding}:
        return None
    return (
        f"warning: {decider.model or decider.base_url} rewards the Solver and decides whether it is promoted "
        "(compare.promotion, compare.stop): set judge.evaluate to another judge, or read the gain as what this judge "
        "has been taught to see"
    )
