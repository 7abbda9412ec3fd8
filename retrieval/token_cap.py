"""Cuts the passages of one query to a number of tokens of the policy's tokenizer, lowest ranks first."""

import json
from collections.abc import Sequence
from pathlib import Path

from retrieval.wire import Row
from scope_selfplay.errors import CheckpointError


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

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Start and end character of every token."""
        offsets: list[tuple[int, int]] = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return offsets

    def cut(self, rows: Sequence[Row], max_tokens: int) -> list[Row]:
        """Rows in rank order whose `contents` have at most `max_tokens` tokens in total.

        The row that crosses the limit keeps its beginning; those after it are dropped.
        """
        kept: list[Row] = []
        left = max_tokens
        for row in rows:
            record = json.loads(row.line)
            contents = self.beginning(record["contents"], left)
            if contents == record["contents"]:
                kept.append(row)
                left -= self.count(contents)
                continue
            if contents:
                record["contents"] = contents
                kept.append(Row(json.dumps(record, ensure_ascii=False).encode(), row.score))
            break
        return kept

    def beginning(self, text: str, max_tokens: int) -> str:
        """The longest token-aligned beginning of `text` that itself has at most `max_tokens` tokens."""
        if max_tokens < 1:
            return ""
        ends = [end for _, end in self._tokenizer.encode(text, add_special_tokens=False).offsets]
        if len(ends) <= max_tokens:
            return text
        # A beginning can tokenise into more tokens than it had inside the longer text.
        for keep in range(max_tokens, 0, -1):
            cut = text[: ends[keep - 1]]
            if self.count(cut) <= max_tokens:
                return cut
        return ""
