"""What every session of a person in a role works on: the run, its people's folder, the console, and who plays."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scope_selfplay.config import RunConfig, load_config
from scope_selfplay.engines import policy_format_for
from scope_selfplay.episodes import Episode, PolicyFormat
from scope_selfplay.keys import Key
from scope_selfplay.play.console import Console
from scope_selfplay.play.person import Person
from scope_selfplay.progress import Progress
from scope_selfplay.prompts import Pack, load_pack
from scope_selfplay.run import Run
from scope_selfplay.schemas import Provenance, Role, Rollout
from scope_selfplay.store import RunFolder, Stage
from scope_selfplay.store.human import HUMAN, HumanFolder
from scope_selfplay.store.weights import Policy

_NO_LIMIT = 1_000_000


@dataclass(frozen=True)
class Session:
    """One person at one console, in one run."""

    run: Run
    console: Console
    name: str
    """Who plays."""

    @cached_property
    def human(self) -> HumanFolder:
        return HumanFolder(self.run.folder)

    def key(self, *parts: str | int) -> Key:
        return (self.run.config.seed, HUMAN, self.name, *parts)

    def policy_format(self, role: Role) -> PolicyFormat:
        """As the policy's in every budget and tag; the checkpoint is `human`."""
        return policy_format_for(self.run.context, self.run.codec, role, HUMAN)

    async def play(self, episode: Episode, policy_format: PolicyFormat, role: Role, key: Key) -> Rollout:
        """The rollout of a person. Raises PersonLeftError; an outage of the retriever ends the session."""
        run = self.run
        tools = run.context.other_tools if role is Role.SOLVER else ()
        family = policy_format.dialect.with_tools([tool.form for tool in tools])
        person = Person(self.console, run.codec, family, role, end=run.codec.end_of_turn)
        rollout = await run.context.sample_rollout(episode, person, key)
        run.check_outages()
        return rollout

    def provenance(self, iteration: int, solver: Policy | None) -> Provenance:
        run = self.run
        writer = Policy(HUMAN, run.base)
        made = run.provenance(iteration, Stage.TASKS, writer, solver)
        return made.model_copy(update={"challenger": HUMAN})


def run_at(path: Path, progress: Progress, *, pack: Pack | None = None) -> Run:
    """A run that exists, with its own prompts and documents, or another pack over these documents.

    Nothing of it is changed. It samples in this process alone: a person is one rollout at a time.
    """
    folder = RunFolder(path)
    config = load_config(folder.config)
    return Run(alone(config), folder, pack or load_pack(folder.prompts), progress)


def roomy(config: RunConfig) -> RunConfig:
    """The paper's budgets, and prompts of any length: those of the laptop's run fit the embedded world alone."""
    plain = RunConfig()
    challenger = {"max_prompt": _NO_LIMIT, "max_response": plain.challenger.max_response}
    solver = {"max_prompt": _NO_LIMIT, "max_response": plain.solver.max_response}
    search = {"max_tokens": plain.search.max_tokens, "topk": plain.search.topk}
    return config.model_copy(
        update={
            "challenger": config.challenger.model_copy(update=challenger),
            "solver": config.solver.model_copy(update=solver),
            "search": config.search.model_copy(update=search),
        }
    )


def alone(config: RunConfig) -> RunConfig:
    """The same run in one process."""
    return config.model_copy(update={"model": config.model.model_copy(update={"processes": 1})})
