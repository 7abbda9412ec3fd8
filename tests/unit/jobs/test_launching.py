"""Several processes of one training on a node: what each is told, and which of their endings becomes the job's."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from jobs.launch import RankEnding, TrainingNode, most_telling, node_of, rank_environments, run_ranks
from scope_selfplay.base.errors import ConfigError

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((0, 0), 0),
        ((0, 143), 143),
        ((143, 0, 143), 143),
        ((75, 1, 1), 75),
        ((1, 75), 75),
        ((1, 1, 64), 64),
        ((75, 64), 64),
        ((1, 137, 134), 137),
        ((143, 1), 143),
        ((134, 1, 0), 134),
        ((137, 143), 137),
        ((130, 130), 130),
    ],
)
def test_the_ending_that_explains_the_others_is_the_jobs(codes: tuple[int, ...], expected: int) -> None:
    assert most_telling([RankEnding(rank, code) for rank, code in enumerate(codes)]).code == expected


def test_ranks_of_one_node_meet_on_a_port_of_their_own() -> None:
    first, second = rank_environments(TrainingNode(2))
    assert (first["RANK"], second["RANK"], second["LOCAL_RANK"], second["WORLD_SIZE"]) == ("0", "1", "1", "2")
    assert first["MASTER_ADDR"] == "127.0.0.1" and int(first["MASTER_PORT"]) > 1023
    assert first["MASTER_PORT"] == second["MASTER_PORT"]


def test_a_later_nodes_ranks_go_on_counting_and_meet_at_the_first_node() -> None:
    told = {"SCOPE_NODES": "3", "JOB_COMPLETION_INDEX": "2", "SCOPE_RENDEZVOUS": "job-0.ranks:29500"}
    last = rank_environments(node_of(told, processes=4))[-1]
    assert last == {
        "RANK": "11",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "12",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "job-0.ranks",
        "MASTER_PORT": "29500",
    }


SECOND_OF_TWO = {"SCOPE_NODES": "2", "JOB_COMPLETION_INDEX": "1", "SCOPE_RENDEZVOUS": "job-0.ranks:29500"}


@pytest.mark.parametrize(("sharding", "sharers"), [("full", 8), ("hybrid", 4)])
def test_copies_are_shared_by_all_processes_or_by_those_of_a_node(sharding: str, sharers: int) -> None:
    node = node_of(SECOND_OF_TWO | {"SCOPE_SHARDING": sharding}, processes=4)
    assert (node.world, node.sharers) == (8, sharers)
    assert node_of({"SCOPE_SHARDING": sharding}, processes=4).sharers == 4
    # One process has nobody on its node to share with.
    assert node_of(SECOND_OF_TWO | {"SCOPE_SHARDING": sharding}, processes=1).sharers == 2


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"SCOPE_NODES": "two"}, "SCOPE_NODES='two'"),
        ({"SCOPE_NODES": "2"}, "JOB_COMPLETION_INDEX=None.* .an Indexed Job tells it, from Kubernetes 1.24"),
        ({"SCOPE_NODES": "2", "JOB_COMPLETION_INDEX": "1"}, "SCOPE_RENDEZVOUS=None"),
        ({"SCOPE_NODES": "2", "JOB_COMPLETION_INDEX": "1", "SCOPE_RENDEZVOUS": "job-0"}, "HOST:PORT"),
        (
            {"SCOPE_NODES": "2", "JOB_COMPLETION_INDEX": "2", "SCOPE_RENDEZVOUS": "a:1"},
            "INDEX='2'.* this node, from 0",
        ),
        (SECOND_OF_TWO | {"SCOPE_SHARDING": "node"}, "SCOPE_SHARDING='node'.* full or hybrid"),
    ],
)
def test_half_a_description_of_nodes_is_refused(told: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        node_of(told, processes=1)


def test_without_nodes_there_is_one() -> None:
    assert node_of({}, processes=1).world == 1 and node_of({"SCOPE_NODES": "1"}, processes=4) == TrainingNode(
        4
    )


def ranks(*programs: str, lines: list[str], grace: float = 60.0, after_failure: float = 60.0) -> RankEnding:
    """Runs one program for each rank; each sees `rank`."""
    body = "\n".join(f"if rank == {rank}: {program}" for rank, program in enumerate(programs))
    start = f"import os, sys, time, signal; rank = int(os.environ['RANK'])\n{body}"
    told = rank_environments(TrainingNode(len(programs)))
    command = [sys.executable, "-S", "-c", start]
    return run_ranks(command, told, lines.append, grace=grace, after_failure=after_failure)


def test_of_equal_endings_the_rank_with_the_newest_line_decides() -> None:
    """Those that end because another one failed say nothing more."""
    first = "print('step 1', file=sys.stderr); sys.exit(75)"
    second = "time.sleep(0.3); print('the judge is down', file=sys.stderr); time.sleep(0.5); sys.exit(75)"
    assert ranks(first, second, lines=[]) == RankEnding(1, 75, "the judge is down")


def test_a_rank_that_ends_with_64_ends_those_that_wait_for_it() -> None:
    lines: list[str] = []
    wrong = "print('wrong setting', file=sys.stderr); sys.exit(64)"
    waits = "time.sleep(60); print('waited to the end', file=sys.stderr)"
    ending = ranks(waits, wrong, after_failure=0.2, lines=lines)
    assert ending == RankEnding(1, 64, "wrong setting")
    assert lines == ["[rank 1] wrong setting"]
    assert ending.describe(2) == "rank 1 of 2 ended with 64: wrong setting"


def test_ranks_that_had_to_be_killed_beside_a_failed_one_explain_nothing() -> None:
    assert ranks("time.sleep(60)", "sys.exit(1)", after_failure=0.2, lines=[]).code == 1


KILLED = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the memory of a process is read from /proc"
)
def test_a_rank_that_was_killed_is_reported_with_the_memory_that_it_held() -> None:
    held = f"kept = bytearray(os.urandom(1)) * 300_000_000; time.sleep(0.5); {KILLED}"
    ending = ranks("time.sleep(60)", held, after_failure=0.2, lines=[])
    assert (ending.rank, ending.code) == (1, 137) and 3e8 < ending.held < 4e8
    assert ending.describe(4) == "rank 1 of 4 ended with 137 (killed; it held 0.3 GB, see the memory limit)"


def test_a_rank_that_a_signal_ends_takes_the_others_along() -> None:
    assert ranks("time.sleep(60)", "sys.exit(143)", lines=[]).code == 143


SAVES = "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), sys.exit(143)));"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN);"


@pytest.mark.parametrize(("second", "grace", "code"), [(SAVES, 60, 143), (DEAF, 0.5, 137)])
def test_sigterm_reaches_every_rank_which_has_the_grace_to_save(second: str, grace: float, code: int) -> None:
    lines: list[str] = []

    def stop_when_ready() -> None:
        end = time.monotonic() + 30
        while len(lines) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop_when_ready)
    stopper.start()
    waits = "print('ready', file=sys.stderr, flush=True); time.sleep(60)"
    ending = ranks(SAVES + waits, second + waits, grace=grace, after_failure=0.2, lines=lines)
    stopper.join()
    assert (ending.code, ending.held) == (code, 0)
