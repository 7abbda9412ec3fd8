"""Cases that several ranks work on: how a test names one, where it works, and how ranks are started for it.

A case is a function of a `Place` that every rank calls; it returns what its tests look at, as JSON. A test names it
with `@on_ranks(case)` and gets from the fixture `found` what each rank returned:

    def first_steps(place: Place) -> dict[str, Any]: ...

    @on_ranks(first_steps)
    def test_a_sentence(found: list[dict[str, Any]]) -> None: ...

All cases of the selected tests run in the same two ranks. A case that ends its ranks, or needs other ones, is started
by `start_ranks`.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobs.launch import RankEnding, TrainingNode, rank_environments, run_ranks
from scope_selfplay.training.ranks import Ranks

RANKS = 2


@dataclass(frozen=True)
class Place:
    """`folder` is the case's own, shared by its ranks; the policies are tiny and belong to all cases."""

    folder: Path
    random_policy: Path
    speaking_policy: Path
    ranks: Ranks


Case = Callable[[Place], dict[str, Any]]


def on_ranks(case: Case) -> pytest.MarkDecorator:
    """Marks a test of what this case returned on every rank."""
    return pytest.mark.on_ranks.with_args(case)


def name_of(case: Case) -> str:
    return f"{case.__module__}:{case.__name__}"


def start_ranks(
    command: Sequence[str],
    cases: Sequence[str],
    folder: Path,
    say: Callable[[str], None],
    *,
    ranks: int = RANKS,
    sharers: int | None = None,
) -> RankEnding:
    """Ranks of the project's own launcher, told what those of GPUs are told: all share one copy, or so many do.

    `command`: the fixture `forks`. Returns how they ended. A signal to this process reaches all, as in a pod.
    """
    told = {"SCOPE_FSDP_SHARERS": str(sharers or ranks), "SCOPE_FSDP_OFFLOAD": "0"}
    environments = [{**told, **rank} for rank in rank_environments(TrainingNode(ranks))]
    return run_ranks([*command, str(folder), *cases], environments, say, grace=60.0, after_failure=10.0)


@contextmanager
def offloading() -> Iterator[None]:
    """What the launcher tells two GPUs: weights and optimizer lie in the host's memory."""
    os.environ["SCOPE_FSDP_OFFLOAD"] = "1"
    try:
        yield
    finally:
        os.environ["SCOPE_FSDP_OFFLOAD"] = "0"
