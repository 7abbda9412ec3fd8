"""Whole runs that are killed again and again, at writes and within judge calls: nothing is lost, doubled or changed.

Up to twenty kills make a chain: each attempt goes on where the one before was killed, and the last comes to the end.
Candidates are made one at a time: which of those started ahead of the quota still ask the judge is a matter of timing.
"""

import signal
from pathlib import Path
from random import Random

import pytest

from benchmarks.faults.counting import FaultCounts, points
from tests.integration.loop.served_runs import CONCURRENCY, CallLog, records, served_judge, start_served

pytestmark = pytest.mark.timeout(3600)

ONE_AT_A_TIME = "tasks.in_flight=1"


@pytest.fixture(scope="module")
def whole(speaking_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, CallLog]:
    """A run that nothing disturbed, its writes, and the judge calls that it paid for."""
    root = tmp_path_factory.mktemp("whole")
    with served_judge(speaking_policy) as (log, _, url):
        assert start_served(log, speaking_policy, root, url, None, ONE_AT_A_TIME) == 0
    assert log.again == 0
    return root, int((root / "writes").read_text()), log


@pytest.mark.fault(1)
@pytest.mark.parametrize("chain", range(points(10, 200) // 15 or 1))
def test_a_run_killed_again_and_again_is_the_run_that_nothing_disturbed(
    whole: tuple[Path, int, CallLog], speaking_policy: Path, tmp_path: Path, counts: FaultCounts, chain: int
) -> None:
    undisturbed, writes, asked = whole
    rng, kills, most = Random(chain), 0, min(20, points(10, 200))
    with served_judge(speaking_policy) as (log, _, url):
        while True:
            is_write, ends = kills % 2 == 0, kills == most
            write = rng.randint(1, 2 * writes // most) if is_write and not ends else None
            call = rng.randint(1, 2 * len(asked.paid) // most) if not is_write and not ends else None
            ended = start_served(log, speaking_policy, tmp_path, url, write, ONE_AT_A_TIME, kill_at=call)
            if ended == 0:
                break
            assert ended == -signal.SIGKILL, f"after {kills} kills"
            kills += 1
    counts.compare(records(undisturbed), records(tmp_path), tried=kills)
    counts.add(paid_again=log.again, in_flight=kills * CONCURRENCY)
    counts.check()
    assert log.again <= kills * CONCURRENCY and kills >= most // 2
    assert log.paid.keys() == asked.paid.keys()
