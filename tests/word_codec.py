"""A word-level `TextCodec` without a model: one token per tag, and per word with the whitespace after it."""

import re
from collections.abc import Sequence

from scope_selfplay.base.sampling import Message

_PIECE = re.compile(r"<[^<>\s]*>|[^\s<]+\s*|<|\s+")
_SPECIAL = ("<start>", "<end>")


class WordCodec:
    """Ids are given out in the order in which pieces are first seen. Special pieces come from templates only."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, bool], int] = {}
        self._pieces: list[tuple[str, bool]] = []
        self.end_of_turn = self._special("<end>")[0]

    def encode_prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        spoken = [self._message(message) for message in messages]
        return (*(each for ids in spoken for each in ids), *self._opening())

    def encode_next(self, messages: Sequence[Message], *, sampled: Sequence[int]) -> tuple[int, ...]:
        closing = () if sampled and sampled[-1] == self.end_of_turn else (self.end_of_turn,)
        return (*closing, *self.encode_prompt(messages))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(piece for piece, special in map(self._pieces.__getitem__, ids) if not special)

    def count(self, text: str) -> int:
        return len(self.encode_tag(text))

    def truncate(self, text: str, max_tokens: int) -> str:
        return self.decode(self.encode_tag(text)[:max_tokens])

    def encode_tag(self, tag: str) -> tuple[int, ...]:
        return tuple(self._id(piece, special=False) for piece in _PIECE.findall(tag))

    def _message(self, message: Message) -> tuple[int, ...]:
        return (
            *self._special("<start>"),
            *self.encode_tag(f"{message.role}\n{message.content}"),
            self.end_of_turn,
        )

    def _opening(self) -> tuple[int, ...]:
        return (*self._special("<start>"), *self.encode_tag("assistant\n"))

    def _special(self, piece: str) -> tuple[int, ...]:
        assert piece in _SPECIAL
        return (self._id(piece, special=True),)

    def _id(self, piece: str, *, special: bool) -> int:
        if (piece, special) not in self._ids:
            self._ids[piece, special] = len(self._pieces)
            self._pieces.append((piece, special))
        return self._ids[piece, special]
