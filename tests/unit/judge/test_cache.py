"""What a run keeps of its judge: paid judgements by content, never returned damaged, and the secret of its fences."""

import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from scope_selfplay.base.errors import RecordError, StorageError
from scope_selfplay.base.values import Finish
from scope_selfplay.judge.fences import fence_key
from scope_selfplay.judge.model import KEY_FILE, JudgementCache, cache_key, run_key
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


def test_the_model_and_every_part_of_a_request_count() -> None:
    changes = {"prompt": "Is it not?", "max_tokens": 9, "temperature": 0.0, "seed": 4, "choices": ("1", "0")}
    others = [REQUEST._replace(**{name: value}) for name, value in changes.items()]  # type: ignore[arg-type]
    keys = {cache_key("m1", REQUEST), *(cache_key("m0", each) for each in (REQUEST, *others))}
    assert len(keys) == 2 + len(others)


def test_a_flipped_bit_and_an_entry_of_another_key_count_as_missing(file: Path) -> None:
    cache = JudgementCache(file)
    cache.put(b"key", REPLY)
    with closing(sqlite3.connect(file)) as database:
        whole = database.execute("SELECT reply FROM replies").fetchone()[0]
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        spoil(file, "UPDATE replies SET reply = ?", bytes(damaged))
        assert cache.get(b"key") is None
    spoil(file, "UPDATE replies SET reply = ?", whole)
    assert cache.get(b"key") == REPLY
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
def test_a_writer_that_is_killed_leaves_a_sound_file(file: Path) -> None:
    endless = _WRITER.replace("range(200)", "range(10**9)")
    writer = subprocess.Popen([sys.executable, "-c", endless, str(file), "0"])
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


def test_a_file_that_is_not_a_cache_and_a_disk_that_fails_are_said_by_name(
    tmp_path: Path, file: Path
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("These are my notes. " * 100)
    with pytest.raises(RecordError, match=r"notes\.txt: not a judgement cache"):
        JudgementCache(notes)
    assert notes.read_text().startswith("These are my notes.")
    cache = JudgementCache(file)
    spoil(file, "DROP TABLE replies")
    with pytest.raises(StorageError, match="judgement cache failed"):
        cache.put(b"key", REPLY)


def test_two_runs_of_one_seed_have_different_keys_that_nobody_can_derive(tmp_path: Path) -> None:
    one, other = (run_key(tmp_path / name) for name in ("one", "other"))
    assert len(one) == 32 and len({one, other, fence_key(0)}) == 3
    assert run_key(tmp_path / "one") == one
    assert stat.S_IMODE((tmp_path / "one" / KEY_FILE).stat().st_mode) == 0o600


def test_a_damaged_key_is_refused(tmp_path: Path) -> None:
    for content in ("", "not hex", "ab" * 31):
        (tmp_path / KEY_FILE).write_text(content)
        with pytest.raises(RecordError, match="64 hex digits"):
            run_key(tmp_path)
