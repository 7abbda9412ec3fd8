"""Judgements that were paid for, on disk by content: a resume or a second run pays nothing twice.

One SQLite file in WAL mode. Several processes of one host may write at once, and see each other's entries;
a network file system has no shared memory for that, so give each host its own file there. Entries are never
changed. Each carries a checksum: a damaged one counts as missing.
"""

import hashlib
import json
import sqlite3
import threading
import time
import zlib
from pathlib import Path

from scope_selfplay.errors import RecordError, StorageError
from scope_selfplay.judge.chat_client import ChatReply, ChatRequest
from scope_selfplay.schemas import Finish

_TABLE = "CREATE TABLE IF NOT EXISTS replies (key BLOB PRIMARY KEY, reply BLOB NOT NULL) WITHOUT ROWID"
_CHECKSUM = 8
_WAIT = 60.0


def cache_key(model: str, request: ChatRequest) -> bytes:
    """What a completion follows from: model with revision, prompt, sampling, seed, choices."""
    return hashlib.blake2b(json.dumps([model, *request]).encode(), digest_size=20).digest()


class JudgementCache:
    """`path` None keeps nothing. May be used from several threads."""

    def __init__(self, path: Path | None) -> None:
        """Raises RecordError for a file that is not a cache, StorageError for a disk that fails."""
        self._path = path
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = _open(path)

    def get(self, key: bytes) -> ChatReply | None:
        if self._database is None:
            return None
        try:
            with self._lock:
                row = self._database.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            raise _storage_error(self._path, error) from None
        checksum, data = (row[0][:_CHECKSUM], row[0][_CHECKSUM:]) if row else (b"", b"")
        if checksum != _checksum(key, data):
            return None
        text, reasoning, finish, tokens_in, tokens_out, odds = json.loads(zlib.decompress(data))
        return ChatReply(text, reasoning, Finish(finish), tokens_in, tokens_out, odds)

    def put(self, key: bytes, reply: ChatReply) -> None:
        """Raises StorageError. What another writer has put there meanwhile is replaced by its equal."""
        if self._database is None:
            return
        data = zlib.compress(json.dumps(reply).encode(), level=1)
        entry = (key, _checksum(key, data) + data)
        try:
            with self._lock, self._database:
                self._database.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", entry)
        except sqlite3.Error as error:
            raise _storage_error(self._path, error) from None

    def __len__(self) -> int:
        if self._database is None:
            return 0
        with self._lock:
            return int(self._database.execute("SELECT count(*) FROM replies").fetchone()[0])

    def close(self) -> None:
        if self._database is not None:
            with self._lock:
                self._database.close()
            self._database = None


def _open(path: Path) -> sqlite3.Connection:
    try:
        database = sqlite3.connect(path, timeout=_WAIT, check_same_thread=False)
        _write_ahead(database)
        # A power cut may lose the last entries, never damage the file; they would be paid for once more.
        database.execute("PRAGMA synchronous = NORMAL")
        with database:
            database.execute(_TABLE)
    except sqlite3.DatabaseError as error:
        if "not a database" in str(error) or "malformed" in str(error):
            raise RecordError(
                f"{path}: not a judgement cache ({error}); remove it, or set judge.cache"
            ) from None
        raise _storage_error(path, error) from None
    return database


def _write_ahead(database: sqlite3.Connection) -> None:
    """WAL mode. SQLite's own timeout does not hold while several processes switch a new file to it."""
    end = time.monotonic() + _WAIT
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= end:
                raise
            time.sleep(0.01)


def _storage_error(path: Path | None, error: sqlite3.Error) -> StorageError:
    return StorageError(f"{path}: the judgement cache failed ({error}); check the disk, then run again")


def _checksum(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(key + data, digest_size=_CHECKSUM).digest()
