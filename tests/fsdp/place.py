"""Cases that several ranks work on: how a test names one, where it works, and how ranks are started for it.

A case is a function of a `Place` that every rank calls; it returns what its tests look at, as JSON. A test names it
with `@on_ranks(case)` and gets from the fixture `found` what each rank returned:

    def first_steps(place: Place) -> dict[str, Any]: ...

    @on_ranks(first_steps)
    def test_a_sentence(found: list[dict[str, Any]]) -> None: ...

All cases of the selected tests run in the same two ranks, but for those that need fresh ones (`alone`). A case that
ends its ranks is started by `start_ranks`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.config.cluster import Sharding
from scope_selfplay.training.launching import (
    RankEnding,
    RankTimeouts,
    TrainingNode,
    accelerate_environment,
    module_command,
    node_environment,
    rank_environments,
    run_ranks,
    sharding_file,
)
from scope_selfplay.training.ranks import Ranks

SETTINGS = Path("k8s/base/accelerate")
RANKS = 2


@dataclass(frozen=True)
class Place:
    """`folder` is the case's own, shared by its ranks; the policies are tiny and belong to all cases."""

    folder: Path
    random_policy: Path
    speaking_policy: Path
    ranks: Ranks


Case = Callable[[Place], dict[str, Any]]


def on_ranks(case: Case, *, alone: bool = False) -> pytest.MarkDecorator:
    """Marks a test of what this case returned on every rank; `alone`, in ranks that run nothing else."""
    return pytest.mark.on_ranks.with_args(case, alone=alone)


def name_of(case: Case) -> str:
    return f"{case.__module__}:{case.__name__}"


def start_ranks(
    cases: Sequence[str],
    folder: Path,
    say: Callable[[str], None],
    *,
    ranks: int = RANKS,
    gpus: int = 4,
    grace: float = 60.0,
) -> RankEnding:
    """Two ranks of the project's own launcher under the settings for that many GPUs; returns how they ended.

    A signal to this process reaches both, as in a pod.
    """
    sharding = accelerate_environment(sharding_file(gpus, SETTINGS), ranks)
    return _start(cases, folder, say, sharding, TrainingNode(ranks), grace)


def start_nodes(
    cases: Sequence[str], folder: Path, say: Callable[[str], None], *, sharding: Sharding
) -> RankEnding:
    """Four ranks of this machine, told what those of two nodes with two GPUs each are told."""
    told = node_environment(TrainingNode(2, 2, sharding=sharding), SETTINGS)
    # Those of two GPUs keep shards in host memory, and the others do not.
    return _start(cases, folder, say, told | {"FSDP_OFFLOAD_PARAMS": "false"}, TrainingNode(4), 60.0)


def _start(
    cases: Sequence[str],
    folder: Path,
    say: Callable[[str], None],
    told: Mapping[str, str],
    node: TrainingNode,
    grace: float,
) -> RankEnding:
    environments = [{**told, **rank} for rank in rank_environments(node)]
    command = module_command("tests.fsdp.rank", [str(folder), *cases])
    return run_ranks(command, environments, RankTimeouts(grace, after_failure=10.0), say)
