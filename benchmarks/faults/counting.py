"""The faults, by number, and what a test counts that injects one.

A test names its fault with `pytest.mark.fault(number)` and counts with the fixture `counts`. How many points it tries
is `points(few, many)`: few in an ordinary run of the tests, many under `python -m benchmarks.faults`.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

POINTS = "SCOPE_FAULT_POINTS"
"""Environment: how many points every fault is tried at; 0 means as many as the reliability page says."""
RESULTS = "SCOPE_FAULT_RESULTS"
"""Environment: the file to which every test that injects a fault adds a line."""
EVERY = "SCOPE_EVERY_KILL"
"""Environment: tests of kills try all their points, whoever runs them."""
ONLY = "SCOPE_FAULTS"
"""Environment: the numbers of the faults to inject, between commas; all when it is empty."""


class Fault(NamedTuple):
    name: str
    what: str


FAULTS = {
    1: Fault("kills", "a process killed at a write or within a judge call"),
    2: Fault("garbage", "a judge that answers garbage"),
    3: Fault("transport", "a judge that is busy, fails, resets, sends half a body or drips"),
    4: Fault("hang", "a judge that accepts and never answers"),
    5: Fault("retriever", "a retriever that goes away"),
    6: Fault("index", "a retriever of another index or shape"),
    7: Fault("disk", "a disk that is full"),
    8: Fault("bits", "torn lines, tails of zeros, flipped bits"),
    9: Fault("sigterm", "SIGTERM to a training, Ctrl-C to a run"),
    10: Fault("saves", "SIGKILL while a checkpoint is saved"),
    11: Fault("checkpoint", "the newest checkpoint damaged"),
    12: Fault("leaders", "two controllers at once, an old leader that wakes up"),
    13: Fault("calls", "the controller killed around an API call"),
    14: Fault("api", "API calls that fail, also after they took effect; an API server that is away"),
    15: Fault("watch", "watches that expire, end, hang or lie"),
    16: Fault("pods", "pods that fail, are lost or never start"),
    17: Fault("deleted", "Jobs that the cluster or somebody deletes"),
    18: Fault("clocks", "clocks that are skewed, jump or step back"),
    19: Fault("edits", "settings or prompts edited in mid-run"),
    20: Fault("ranks", "one of several ranks lost"),
    21: Fault("endless", "a server pod that does not end"),
    22: Fault("release", "a run folder of another release"),
}

NAMES = {fault.name: number for number, fault in FAULTS.items()}


def points(few: int, many: int) -> int:
    asked = os.environ.get(POINTS) or ("0" if os.environ.get(EVERY) else str(few))
    return int(asked) or many


def read_results(file: Path) -> list[dict[str, Any]]:
    """The newest result of every test."""
    if not file.exists():
        return []
    results = map(json.loads, file.read_text().splitlines())
    return list({result["test"]: result for result in results}.values())


class FaultCounts:
    """What became of faults. `values` fills while the test runs; a test that counts nothing has tried once."""

    def __init__(self, values: dict[str, int]) -> None:
        self.values = values

    def add(self, **more: int) -> None:
        for name, count in more.items():
            self.values[name] = self.values.get(name, 0) + count

    def compare(self, expected: Mapping[str, bytes], found: Mapping[str, bytes], *, tried: int = 1) -> None:
        """Count what became of the records of a run that met `tried` faults, beside those of an undisturbed one."""
        harm = harm_to(expected, found)
        self.add(tried=tried, survived=0 if any(harm.values()) else tried, **harm)

    def check(self) -> None:
        bad = {name: self.values.get(name, 0) for name in ("lost", "duplicated", "wrong")}
        survived, tried = self.values.get("survived", 0), self.values.get("tried", 0)
        assert survived == tried > 0 and not any(bad.values()), self.values


def harm_to(expected: Mapping[str, bytes], found: Mapping[str, bytes]) -> dict[str, int]:
    """Records that are gone, that are there more often than they should, and that differ; a record is a line, and a
    file that holds none is one record."""
    lost = duplicated = wrong = 0
    for name in expected.keys() | found.keys():
        want, have = (Counter(_records(name, each.get(name))) for each in (expected, found))
        missing, extra = (want - have).total(), have - want
        again = sum(count for record, count in extra.items() if record in want)
        other = extra.total() - again
        changed = min(missing, other)
        lost += missing - changed
        duplicated += again
        wrong += other
    return {"lost": lost, "duplicated": duplicated, "wrong": wrong}


def _records(name: str, content: bytes | None) -> list[bytes]:
    if content is None:
        return []
    return content.splitlines() if name.endswith(".jsonl") else [content]
