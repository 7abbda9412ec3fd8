"""One of several ranks that run cases one after the other: a fork of a process that has imported the trainer.

What a case returns goes into `<folder>/<function>/rank-<number>.json`; one that raises ends its rank, and so all.
"""

import importlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import planned_rank
from scope_selfplay.training.ranks import ranks
from tests.fsdp.place import Place
from tests.integration.loop.policies import write_random_policy, write_speaking_policy


def preload() -> None:
    importlib.import_module("peft")
    planned_rank.preload()


def run(arguments: Sequence[str]) -> None:
    """A folder, and cases as MODULE:FUNCTION."""
    torch.set_num_threads(1)
    folder, team = Path(arguments[0]), ranks()
    policies = _policies(folder, leads=team.leads)
    for name in arguments[1:]:
        module, _, function = name.partition(":")
        place = Place(folder / function, policies / "random", policies / "speaking", team)
        place.folder.mkdir(exist_ok=True)
        found = getattr(importlib.import_module(module), function)(place)
        (place.folder / f"rank-{team.number}.json").write_text(json.dumps(found))


def _policies(folder: Path, *, leads: bool) -> Path:
    written, part = folder / "policies", folder / "part"
    if leads and not written.is_dir():
        write_random_policy(part / "random")
        write_speaking_policy(part / "speaking")
        part.rename(written)
    while not written.is_dir():
        time.sleep(0.1)
    return written
