"""Which servers a stage needs beside it, what they serve, and how its Job is told where they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from scope_selfplay import schedule
from scope_selfplay.config import RunConfig, ServerConfig
from scope_selfplay.controller.names import PORT, Component, RunStep, server_name
from scope_selfplay.store import RunFolder, Stage

VOLUME = "/data"
RUNS = f"{VOLUME}/runs"
KEY_VARIABLE = "VLLM_API_KEY"


class Server(NamedTuple):
    """`step` is the stage that it serves, None for the whole run; `model` a folder on the volume, or `embedded`."""

    part: Component
    name: str
    model: str
    step: RunStep | None

    @property
    def url(self) -> str:
        return f"http://{self.name}:{PORT}"


def servers_of(config: RunConfig, step: RunStep, promoted: Sequence[bool]) -> tuple[Server, ...]:
    """The servers of one stage; `promoted[t]` says whether S_t was promoted, for every t before the iteration.

    A and B meet the Solver that was promoted last, C none, D only the Solver that was just trained.
    """
    policies: dict[Component, str] = {}
    match step.stage:
        case Stage.CHALLENGER:
            policies[Component.SOLVER] = promoted_solver(config, step.iteration - 1, promoted)
        case Stage.TASKS:
            policies[Component.CHALLENGER] = challenger_model(config, step.iteration)
            if step.iteration > 0:
                policies[Component.SOLVER] = promoted_solver(config, step.iteration - 1, promoted)
        case Stage.COMPARE:
            policies[Component.SOLVER] = solver_model(config, step.iteration)
        case Stage.SOLVER:
            pass
    own = [
        Server(part, server_name(config.name, part, step), model, step)
        for part, model in policies.items()
        if settings_of(config, part).serve
    ]
    return (*servers_of_run(config), *own)


def servers_of_run(config: RunConfig) -> tuple[Server, ...]:
    """Judge and retriever: they serve from the first stage to the last."""
    models = {
        Component.JUDGE: config.cluster.judge.model,
        Component.RETRIEVER: config.cluster.retriever.index,
    }
    return tuple(
        Server(part, server_name(config.name, part, None), model, None)
        for part, model in models.items()
        if settings_of(config, part).serve
    )


def settings_of(config: RunConfig, part: Component) -> ServerConfig:
    found: ServerConfig = getattr(config.cluster, part.value)
    return found


def endpoint_settings(servers: Sequence[Server], *, with_key: bool) -> list[str]:
    """`key=value` overrides that tell a stage where its servers are, and which variable holds their key."""
    groups = {
        Component.JUDGE: ("judge.endpoint", "base_url={}/v1"),
        Component.SOLVER: ("partners.solver", "base_url={}/v1"),
        Component.CHALLENGER: ("partners.challenger", "base_url={}/v1"),
        Component.RETRIEVER: ("search", "url={}"),
    }
    settings: list[str] = []
    for each in servers:
        group, address = groups[each.part]
        settings.append(f"{group}.{address.format(each.url)}")
        if with_key:
            settings.append(f"{group}.api_key_env={KEY_VARIABLE}")
    return settings


def challenger_model(config: RunConfig, iteration: int) -> str:
    """C_t; with `challenger.frozen`, and in iteration 0, the base model."""
    return _model_of(config, schedule.challenger_of(config, iteration))


def solver_model(config: RunConfig, iteration: int) -> str:
    """S_t as trained in iteration t, promoted or not."""
    return _model_of(config, schedule.solver_of(iteration))


def promoted_solver(config: RunConfig, iteration: int, promoted: Sequence[bool]) -> str:
    """The newest S_t up to `iteration` that was promoted; the base model when none was."""
    return _model_of(config, schedule.promoted_solver(iteration, lambda number: promoted[number]))


def _model_of(config: RunConfig, policy: schedule.PolicyVersion) -> str:
    """Where a server finds a policy on the volume; the base model as the config names it."""
    return str(policy.checkpoint(RunFolder(Path(RUNS) / config.name)) or config.model.path)
