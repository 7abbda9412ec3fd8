"""Cuts the passages of one query to a number of tokens of the policy's tokenizer, lowest ranks first."""

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval.wire import Row
from scope_selfplay.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Encoding

LONG = 10_000
"""Characters that take milliseconds to encode."""
REMEMBERED = 100_000
"""Passages whose number of tokens is remembered, in about 25 MB."""


class TokenCap:
    """Counts with a Hugging Face `tokenizer.json`, without special tokens."""

    def __init__(self, tokenizer_file: Path) -> None:
        """Raises CheckpointError when the file is not a tokenizer."""
        from tokenizers import Tokenizer

        path = tokenizer_file / "tokenizer.json" if tokenizer_file.is_dir() else tokenizer_file
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            raise CheckpointError(f"{path}: not a tokenizer.json: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        """Tokens of the passages seen last, by the digest of their lines. Responses are cut in several threads."""
        self._lock = threading.Lock()

    def count(self, text: str) -> int:
        return len(self._encode(text))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Start and end character of every token."""
        offsets: list[tuple[int, int]] = self._encode(text).offsets
        return offsets

    def cut(self, rows: Iterable[Row], max_tokens: int) -> Iterator[Row]:
        """Rows in rank order whose `contents` have at most `max_tokens` tokens in total.

        The row that crosses the limit keeps its beginning; those after it are neither read nor counted.
        """
        left = max_tokens
        for row in rows:
            key = blake2b(row.line, digest_size=16).digest()
            known = self._known(key)
            if known is None or known > left:
                record = json.loads(row.line)
                encoding = self._encode(record["contents"])
                known = len(encoding)
                self._remember(key, known)
                if known > left:
                    if contents := self._beginning(record["contents"], encoding, left):
                        record["contents"] = contents
                        yield Row(json.dumps(record, ensure_ascii=False).encode(), row.score)
                    return
            left -= known
            yield row
            if not left:
                return

    def _encode(self, text: str) -> "Encoding":
        if len(text) < LONG:
            return self._tokenizer.encode(text, add_special_tokens=False)
        # Takes a tenth of a millisecond more, but lets other threads run meanwhile.
        return self._tokenizer.encode_batch([text], add_special_tokens=False)[0]

    def _beginning(self, text: str, encoding: "Encoding", max_tokens: int) -> str:
        """The longest token-aligned beginning of `text` that itself has at most `max_tokens` tokens."""
        ends = [end for _, end in encoding.offsets]
        # A beginning can tokenise into more tokens than it had inside the longer text.
        for keep in range(max_tokens, 0, -1):
            cut = text[: ends[keep - 1]]
            if self.count(cut) <= max_tokens:
                return cut
        return ""

    def _known(self, key: bytes) -> int | None:
        with self._lock:
            if key in self._counts:
                self._counts.move_to_end(key)
            return self._counts.get(key)

    def _remember(self, key: bytes, count: int) -> None:
        with self._lock:
            self._counts[key] = count
            if len(self._counts) > REMEMBERED:
                self._counts.popitem(last=False)
