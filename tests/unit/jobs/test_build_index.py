"""`python -m jobs build-index`: it waits for what other Jobs bring, and a Job that was stopped goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from jobs.__main__ import jobs
from retrieval.folder import SHARDS, read_manifest
from scope_selfplay.base.errors import ExitCode, OutsideError
from tests.commands import ran


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


def test_it_begins_when_the_corpus_has_come(tmp_path: Path) -> None:
    source = tmp_path / "corpus.tsv"
    command = [sys.executable, "-m", "jobs", "build-index", "--index", str(tmp_path / "index")]
    with subprocess.Popen([*command, "--source", str(source)], stderr=subprocess.DEVNULL) as job:
        time.sleep(0.5)
        corpus(tmp_path / ".part", 50).rename(source)
        assert job.wait(timeout=120) == 0
    assert read_manifest(tmp_path / "index").rows == 50


@pytest.mark.timeout(300)
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
        _, said = job.communicate(timeout=60)
        assert job.returncode == ExitCode.TERMINATED, said
    kept = len(list((index / SHARDS).glob("*.npy")))
    assert 1 <= kept < 3

    done = ran(command, timeout=200)
    assert done.returncode == 0, done.stderr
    assert f"{kept * 8_192:,} of 24,576 passages are encoded already" in done.stderr
    assert read_manifest(index).rows == 3 * 8_192


def test_fetching_offline_is_the_users_mistake_and_nothing_to_repeat(tmp_path: Path) -> None:
    # A process of its own: the hub's client reads the variable once, when it is loaded.
    command = [sys.executable, "-m", "jobs", "fetch-model", "--model", "a/b", "--folder", str(tmp_path / "b")]
    done = ran(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, timeout=60)
    assert done.returncode == ExitCode.USER
    assert "HF_HUB_OFFLINE is set: a/b cannot be fetched" in done.stderr
    assert "again" not in done.stderr and not any(tmp_path.iterdir())
