"""Puts large responses together, in threads of their own, and cuts their passages to a number of tokens."""

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval.wire import ResponseRow, WireLimits, render_response
from scope_selfplay.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Encoding

THREADS = 2
"""Responses rendered at the same time, which bounds their memory; further ones wait within their deadline."""
INLINE = 1 << 20
"""Bytes of passages that are spliced within a millisecond or two: a thread would cost more."""
INLINE_CUT = 16 << 10
"""Bytes of passages that are tokenised within about ten milliseconds."""
LONG = 10_000
"""Characters that take milliseconds to encode."""
REMEMBERED = 100_000
"""Passages whose number of tokens, and cuts whose place is remembered, in about 25 MB."""


class Renderer:
    """One large response must not hold up the answers to everybody else."""

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="render")

    async def render(
        self, results: Iterable[Iterable[ResponseRow]], *, return_scores: bool, is_large: bool
    ) -> bytes:
        """As `render_response`; `results` may read and cut passages only when they are asked for."""
        if not is_large:
            return render_response(results, return_scores=return_scores, limits=self._limits)
        abandoned = threading.Event()

        def is_wanted(_: object) -> bool:
            return not abandoned.is_set()

        # Past its deadline or without its client, a thread ends after the passage at hand.
        wanted = (takewhile(is_wanted, rows) for rows in takewhile(is_wanted, results))
        work = partial(render_response, wanted, return_scores=return_scores, limits=self._limits)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            abandoned.set()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


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
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        """Tokens of the lines seen last, and where those were cut that crossed a limit, by their digests."""
        # Responses are cut in several threads.
        self._lock = threading.Lock()

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Start and end character of every token."""
        offsets: list[tuple[int, int]] = self.encode(text).offsets
        return offsets

    def cut(self, rows: Iterable[ResponseRow], max_tokens: int) -> Iterator[ResponseRow]:
        """Rows in rank order whose `contents` have at most `max_tokens` tokens in total.

        The row that crosses the limit keeps its beginning; those after it are neither read nor counted.
        """
        left = max_tokens
        for row in rows:
            key = blake2b(row.line, digest_size=16).digest()
            tokens = self._known(key)
            if tokens is None or tokens > left:
                record = json.loads(row.line)
                tokens, end = self._measure(key, record["contents"], left)
                if tokens > left:
                    record["contents"] = record["contents"][:end]
                    if end:
                        yield ResponseRow(json.dumps(record, ensure_ascii=False).encode(), row.score)
                    return
            left -= tokens
            yield row
            if not left:
                return

    def _measure(self, key: bytes, text: str, max_tokens: int) -> tuple[int, int]:
        """The text's tokens, and the characters of its beginning that fit `max_tokens`."""
        cut_key = key + b"%d" % max_tokens
        tokens, end = self._known(key), self._known(cut_key)
        if tokens is None or end is None:
            encoding = self.encode(text)
            tokens, end = len(encoding), len(text)
            self._remember(key, tokens)
            if tokens > max_tokens:
                end = self._end(text, encoding, max_tokens)
                self._remember(cut_key, end)
        return tokens, end

    def encode(self, text: str) -> "Encoding":
        if len(text) < LONG:
            return self._tokenizer.encode(text, add_special_tokens=False)
        # Takes a tenth of a millisecond more, but lets other threads run meanwhile.
        return self._tokenizer.encode_batch([text], add_special_tokens=False)[0]

    def _end(self, text: str, encoding: "Encoding", max_tokens: int) -> int:
        """Characters of the longest token-aligned beginning that itself has at most `max_tokens` tokens."""
        ends = [end for _, end in encoding.offsets]
        # A beginning can tokenise into more tokens than it had inside the longer text.
        for keep in range(max_tokens, 0, -1):
            if self.count(text[: ends[keep - 1]]) <= max_tokens:
                return ends[keep - 1]
        return 0

    def _known(self, key: bytes) -> int | None:
        with self._lock:
            if key in self._numbers:
                self._numbers.move_to_end(key)
            return self._numbers.get(key)

    def _remember(self, key: bytes, number: int) -> None:
        with self._lock:
            self._numbers[key] = number
            if len(self._numbers) > REMEMBERED:
                self._numbers.popitem(last=False)
