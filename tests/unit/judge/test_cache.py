"""Paid judgements: kept by content, shared between processes, never returned damaged."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from scope_selfplay.base.errors import RecordError, StorageError
from scope_selfplay.base.values import Finish
from scope_selfplay.judge.model import JudgementCache, cache_key
from scope_selfplay.net.chat import ChatReply, ChatRequest

REQUEST = ChatRequest("Is it so?", max_tokens=8, temperature=0.6, seed=3)
REPLY = ChatReply("<score>1</score>", "thinking \u6f22", Finish.STOP, 10, 4, {"1": 0.75})


def rows_in(file: Path) -> int:
    """How many judgements a cache has kept."""
    with closing(sqlite3.connect(file)) as database:
        return int(database.execute("SELECT count(*) FROM replies").fetchone()[0])


def spoil(file: Path, statement: str, *values: bytes) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(statement, values)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "deeper" / "judgements.sqlite"


def test_what_was_put_is_there_after_reopening(file: Path) -> None:
    key = cache_key("m0", REQUEST)
    cache = JudgementCache(file)
    assert cache.get(key) is None
    cache.put(key, REPLY)
    cache.close()

    again = JudgementCache(file)
    assert again.get(key) == REPLY and rows_in(file) == 1


def test_the_model_and_every_part_of_a_request_count() -> None:
    changes = {"prompt": "Is it not?", "max_tokens": 9, "temperature": 0.0, "seed": 4, "choices": ("1", "0")}
    others = [REQUEST._replace(**{name: value}) for name, value in changes.items()]  # type: ignore[arg-type]
    keys = {cache_key("m1", REQUEST), *(cache_key("m0", each) for each in (REQUEST, *others))}
    assert len(keys) == 2 + len(others)


@pytest.mark.parametrize("place", [0, 5, 12, 30, -1])
def test_a_flipped_bit_counts_as_missing(file: Path, place: int) -> None:
    cache = JudgementCache(file)
    cache.put(b"key", REPLY)
    with closing(sqlite3.connect(file)) as database:
        damaged = bytearray(database.execute("SELECT reply FROM replies").fetchone()[0])
    damaged[place] ^= 1
    spoil(file, "UPDATE replies SET reply = ?", bytes(damaged))

    assert cache.get(b"key") is None


def test_an_entry_of_another_key_is_not_believed(file: Path) -> None:
    cache = JudgementCache(file)
    cache.put(b"key", REPLY)
    spoil(file, "UPDATE replies SET key = ?", b"other")

    assert cache.get(b"other") is None


_WRITER = """
import sys
from contextlib import closing
from pathlib import Path
from scope_selfplay.net.chat import ChatReply
from scope_selfplay.judge.model import JudgementCache
from scope_selfplay.base.values import Finish
cache = JudgementCache(Path(sys.argv[1]))
for number in range(200):
    for key in (f"{sys.argv[2]}-{number}", f"shared-{number}"):
        cache.put(key.encode(), ChatReply(key, "", Finish.STOP, 1, 1, {}))
"""


@pytest.mark.integration
def test_several_processes_write_and_nothing_is_lost(file: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(file), str(n)]) for n in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]

    cache = JudgementCache(file)
    assert rows_in(file) == 800
    for n in range(3):
        for number in range(200):
            reply = cache.get(f"{n}-{number}".encode())
            assert reply is not None and reply.text == f"{n}-{number}"


@pytest.mark.integration
def test_a_writer_that_is_killed_leaves_a_sound_file(file: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER.replace("range(200)", "range(10**9)"), str(file), "0"]
    )
    log = file.with_name(file.name + "-wal")
    try:
        while not log.exists() or log.stat().st_size < 50_000:
            assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()

    cache = JudgementCache(file)
    assert rows_in(file) > 10 and cache.get(b"0-0") is not None
    cache.put(b"new", REPLY)
    assert cache.get(b"new") == REPLY


def test_a_file_that_is_not_a_cache_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("These are my notes. " * 100)

    with pytest.raises(RecordError, match=r"notes\.txt: not a judgement cache"):
        JudgementCache(file)
    assert file.read_text().startswith("These are my notes.")


def test_a_disk_that_fails_is_an_outside_error(file: Path) -> None:
    cache = JudgementCache(file)
    spoil(file, "DROP TABLE replies")
    with pytest.raises(StorageError, match="judgement cache failed"):
        cache.put(b"key", REPLY)
