"""What everything of a run is called on the cluster: deterministic, so that doing a thing twice does it once."""

from enum import StrEnum
from typing import NamedTuple

from scope_selfplay.store import Stage

RUN = "scope/run"
ITERATION = "scope/iteration"
STAGE = "scope/stage"
ATTEMPT = "scope/attempt"
SHARD = "scope/shard"
SHARDS = "scope/shards"
SERVER = "scope/server"
SPEC_HASH = "scope/spec-hash"
BODY_HASH = "scope/body-hash"
FENCE = "scope/fence"
PORT = 8000


class Component(StrEnum):
    """What a pod is for: NetworkPolicies select it by the label `app.kubernetes.io/component`."""

    CONTROLLER = "controller"
    TRAINER = "trainer"
    WORKER = "worker"
    JUDGE = "judge"
    SOLVER = "solver"
    CHALLENGER = "challenger"
    RETRIEVER = "retriever"


class RunStep(NamedTuple):
    """One stage of one iteration."""

    iteration: int
    stage: Stage

    @property
    def name(self) -> str:
        return f"i{self.iteration:02d}-{self.stage.job_name}"

    @property
    def labels(self) -> dict[str, str]:
        return {ITERATION: f"{self.iteration:02d}", STAGE: self.stage.job_name}


class StageShard(NamedTuple):
    """One of several Jobs that share the documents of a stage; counted from 0, None for the one that collects."""

    number: int | None
    of: int


def job_name(run: str, step: RunStep, attempt: int, shard: StageShard | None = None) -> str:
    """At most 61 characters for the longest run id, so that pod names still end in the Job's whole name."""
    return f"{run}-{shard_name(step, shard)}-a{attempt}"


def shard_name(step: RunStep, shard: StageShard | None) -> str:
    """A shard of a stage, or the stage itself: what attempts are counted of."""
    return step.name if shard is None or shard.number is None else f"{step.name}-s{shard.number:02d}"


def server_name(run: str, component: Component, step: RunStep | None) -> str:
    """`step` is None for servers of the whole run."""
    return f"{run}-{component}" if step is None else f"{run}-i{step.iteration:02d}-{component}"


def status_name(run: str) -> str:
    return f"{run}-status"


def lease_name(run: str) -> str:
    return f"{run}-controller"
