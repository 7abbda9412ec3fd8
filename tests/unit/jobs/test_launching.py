"""Several processes of one training on a node: what each is told, and which of their endings becomes the job's;
`python -m jobs build-index`: it waits for what other Jobs bring, and a Job that was stopped goes on; how a job ends,
seen from outside: its exit code and one line that says what to do."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from jobs.__main__ import jobs
from jobs.launch import RankEnding, TrainingNode, most_telling, node_of, rank_environments, run_ranks
from retrieval.folder import SHARDS, read_manifest
from scope_selfplay.base.errors import ConfigError, ExitCode, OutsideError
from scope_selfplay.prompts.folder import shipped_prompts
from tests.commands import ran
from tests.models import write_model

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((0, 143), 143),
        ((75, 1, 1), 75),
        ((75, 64), 64),
        ((1, 137, 134), 137),
        ((143, 1), 143),
        ((137, 143), 137),
    ],
)
def test_the_ending_that_explains_the_others_is_the_jobs(codes: tuple[int, ...], expected: int) -> None:
    assert most_telling([RankEnding(rank, code) for rank, code in enumerate(codes)]).code == expected


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


TWO = {"SCOPE_NODES": "2", "JOB_COMPLETION_INDEX": "1", "SCOPE_RENDEZVOUS": "job-0.ranks:29500"}


@pytest.mark.parametrize(("sharding", "sharers"), [("full", 8), ("hybrid", 4)])
def test_copies_are_shared_by_all_processes_or_by_those_of_a_node(sharding: str, sharers: int) -> None:
    told = {"SCOPE_SHARDING": sharding}
    assert node_of(TWO | told, processes=4).sharers == sharers
    assert node_of(told, processes=4).sharers == 4
    # One process has nobody on its node to share with.
    assert node_of(TWO | told, processes=1).sharers == 2


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"SCOPE_NODES": "2"}, "JOB_COMPLETION_INDEX=None.* .an Indexed Job tells it, from Kubernetes 1.24"),
        ({"SCOPE_NODES": "2", "JOB_COMPLETION_INDEX": "1"}, "SCOPE_RENDEZVOUS=None"),
        (TWO | {"SCOPE_RENDEZVOUS": "job-0"}, "HOST:PORT"),
        (TWO | {"JOB_COMPLETION_INDEX": "2"}, "INDEX='2'.* this node, from 0"),
        (TWO | {"SCOPE_SHARDING": "node"}, "SCOPE_SHARDING='node'.* full or hybrid"),
    ],
)
def test_half_a_description_of_nodes_is_refused(told: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        node_of(told, processes=1)


def ranks(*programs: str, lines: list[str], grace: float = 60.0, after_failure: float = 60.0) -> RankEnding:
    """Runs one program for each rank; each sees `rank`."""
    body = "\n".join(f"if rank == {rank}: {program}" for rank, program in enumerate(programs))
    start = f"import os, sys, time, signal; rank = int(os.environ['RANK'])\n{body}"
    told = rank_environments(TrainingNode(len(programs)))
    command = [sys.executable, "-S", "-c", start]
    return run_ranks(command, told, lines.append, grace=grace, after_failure=after_failure)


def until(file: Path) -> str:
    """A rank waits for this file."""
    return f"[time.sleep(0.01) for _ in iter(lambda: os.path.exists({str(file)!r}), True)]"


def test_of_equal_endings_the_rank_with_the_newest_line_decides(tmp_path: Path) -> None:
    """Those that end because another one failed say nothing more."""

    class Heard(list[str]):
        def append(self, line: str) -> None:
            (tmp_path / "heard").touch()

    first = "print('step 1', file=sys.stderr); sys.exit(75)"
    second = f"{until(tmp_path / 'heard')}; print('the judge is down', file=sys.stderr); sys.exit(75)"
    assert ranks(first, second, lines=Heard()) == RankEnding(1, 75, "the judge is down")


def test_a_rank_that_ends_with_64_ends_those_that_wait_for_it() -> None:
    lines: list[str] = []
    wrong = "print('wrong setting', file=sys.stderr); sys.exit(64)"
    waits = "time.sleep(60); print('waited to the end', file=sys.stderr)"
    ending = ranks(waits, wrong, after_failure=0.2, lines=lines)
    assert ending == RankEnding(1, 64, "wrong setting")
    assert lines == ["[rank 1] wrong setting"]
    assert ending.describe(2) == "rank 1 of 2 ended with 64: wrong setting"


@pytest.mark.parametrize(("code", "after_failure"), [(1, 0.2), (143, 60)], ids=["failed", "stopped"])
def test_a_rank_that_ends_takes_the_others_along_and_they_explain_nothing(
    code: int, after_failure: float
) -> None:
    assert ranks("time.sleep(60)", f"sys.exit({code})", after_failure=after_failure, lines=[]).code == code


KILLED = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the memory of a process is read from /proc"
)
def test_a_rank_that_was_killed_is_reported_with_the_memory_that_it_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, read, looks, sleep = tmp_path / "full", tmp_path / "read", list[bool](), time.sleep

    def between_looks(seconds: float) -> None:
        looks.append(full.exists())
        # The first look may have been taken before.
        if sum(looks) == 2:
            read.touch()
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", between_looks)
    held = f"kept = bytearray(os.urandom(1)) * 300_000_000; open({str(full)!r}, 'w'); {until(read)}; {KILLED}"
    ending = ranks("time.sleep(60)", held, after_failure=0.2, lines=[])
    assert (ending.rank, ending.code) == (1, 137) and 3e8 < ending.held < 4e8
    assert ending.describe(4) == "rank 1 of 4 ended with 137 (killed; it held 0.3 GB, see the memory limit)"


SAVES = "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), sys.exit(143)));"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN);"


@pytest.mark.parametrize(("second", "grace", "code"), [(SAVES, 60, 143), (DEAF, 0.5, 137)])
def test_sigterm_reaches_every_rank_which_has_the_grace_to_save(second: str, grace: float, code: int) -> None:
    lines: list[str] = []

    def stop_when_ready() -> None:
        while len(lines) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop_when_ready)
    stopper.start()
    waits = "print('ready', file=sys.stderr, flush=True); time.sleep(60)"
    ending = ranks(SAVES + waits, second + waits, grace=grace, after_failure=0.2, lines=lines)
    stopper.join()
    assert (ending.code, ending.held) == (code, 0)


def corpus(file: Path, rows: int) -> Path:
    lines = [f"{row}\ta text about stone {row * row} and river {row % 7}\tPlace {row}" for row in range(rows)]
    file.write_text("\n".join(["id\ttext\ttitle", *lines]) + "\n")
    return file


def test_it_gives_its_place_to_others_while_what_it_needs_is_on_its_way(tmp_path: Path) -> None:
    arguments = ["--index", str(tmp_path / "index"), "--source", str(tmp_path / "corpus.jsonl")]
    more = ["--patience", "0.2", "--", "--profile", "flat", "--encoder", "/data/models/e5-base-v2"]
    done = CliRunner().invoke(jobs, ["build-index", *arguments, *more])
    assert isinstance(done.exception, OutsideError) and done.exception.exit_code == ExitCode.OUTSIDE
    said = str(done.exception)
    assert "corpus.jsonl, /data/models/e5-base-v2: not there yet" in said and "goes on by itself" in said
    assert not (tmp_path / "index").exists()


def test_a_job_that_is_stopped_while_it_encodes_goes_on_behind_what_it_had(
    tmp_path: Path, model: Path
) -> None:
    """As a Job that met a deadline, a drain or an eviction: SIGTERM, and the same command again."""
    index = tmp_path / "index"
    source = corpus(tmp_path / "corpus.tsv", 3 * 8_192)
    command = [sys.executable, "-m", "jobs", "build-index", "--index", str(index), "--source", str(source)]
    command += ["--", "--profile", "flat", "--encoder", str(model), "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as job:
        while not list((index / SHARDS).glob("*.npy")):
            assert job.poll() is None, job.communicate()
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        _, said = job.communicate(timeout=120)
        assert job.returncode == ExitCode.TERMINATED, said
    kept = len(list((index / SHARDS).glob("*.npy")))
    assert 1 <= kept < 3

    done = ran(command, timeout=200)
    assert done.returncode == 0, done.stderr
    assert f"{kept * 8_192:,} of 24,576 passages are encoded already" in done.stderr
    assert read_manifest(index).rows == 3 * 8_192


@pytest.fixture
def where(tmp_path: Path) -> list[str]:
    """Its model looks like one; no weights are loaded before a stage's turn."""
    file, model = tmp_path / "run.yaml", write_model(tmp_path / "model")
    file.write_text(
        f"name: tiny\ndomain: embedded\niterations: 1\nmodel: {{path: {model}}}\ncorpus: {{sample: 16}}\n"
    )
    return ["--config", str(file), "--root", str(tmp_path / "runs")]


def refusal(*arguments: str) -> str:
    """What a job says that ends with 64."""
    ended = ran([sys.executable, "-m", "jobs", *arguments], timeout=120)
    assert ended.returncode == 64 and "Traceback" not in ended.stderr, ended.stderr
    return ended.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("train-challenger --iteration 1", "iteration-00/tasks"),
        ("make-tasks --iteration 2", "no such stage"),
        ("make-tasks --iteration 1 --shard 0/2 --collect", "--shard and --collect"),
    ],
)
def test_a_stage_before_its_turn_and_a_command_that_cannot_be_end_with_64(
    where: list[str], command: str, said: str
) -> None:
    assert said in refusal(*command.split(), *where)


def test_mounted_prompts_other_than_the_runs_own_end_with_64(where: list[str], tmp_path: Path) -> None:
    mounted = tmp_path / "prompts" / "embedded"
    shutil.copytree(shipped_prompts() / "embedded", mounted)
    job = ["compare", *where, "--prompts", str(mounted.parent), "--iteration", "1"]
    assert "is not finished" in refusal(*job)
    with (mounted / "solver.md").open("a") as prompt:
        prompt.write("Be brief.\n")
    assert "was begun with prompts" in refusal(*job)


def test_a_run_waits_for_what_prepare_brings(tmp_path: Path) -> None:
    """Exit 75, after which its pod is started again, and not the 64 that is final."""
    file = tmp_path / "run.yaml"
    places = {"model": {"path": "/data/models/absent"}, "corpus": {"path": "/data/corpus/absent.jsonl"}}
    file.write_text(yaml.safe_dump({"name": "r1", "domain": "embedded", "iterations": 1, **places}))
    where = ["--config", str(file), "--root", str(tmp_path / "runs"), "--job", "r1-controller"]
    done = CliRunner().invoke(jobs, ["run-controller", *where, "--patience", "0"])
    assert isinstance(done.exception, OutsideError)
    missing = "/data/models/absent /data/models/judge /data/corpus/absent.jsonl /data/index/default/".split()
    assert all(path in str(done.exception) for path in missing)
    assert not (tmp_path / "runs").exists()
