"""Where a turn ends: how many tokens it may have, and which ids and texts stop it."""

from collections.abc import Sequence
from typing import NamedTuple

from scope_selfplay.errors import InferenceError
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.protocol import Generate


class Stops(NamedTuple):
    """What is one token is compared as an id, only the rest needs text."""

    ids: frozenset[int]
    """Single-token stop strings and the ends of a turn."""
    texts: tuple[str, ...]
    """Stop strings of several tokens."""


class StopTable:
    """The stops of every tuple of strings that was asked for, encoded once."""

    def __init__(self, codec: ChatCodec) -> None:
        self._codec = codec
        self._known: dict[tuple[str, ...], Stops] = {}

    def __getitem__(self, stop: tuple[str, ...]) -> Stops:
        if stop not in self._known:
            self._known[stop] = split_stops(stop, self._codec)
        return self._known[stop]


def split_stops(stop: Sequence[str], codec: ChatCodec) -> Stops:
    encoded = {text: codec.encode_tag(text) for text in stop}
    single = {ids[0] for ids in encoded.values() if len(ids) == 1}
    return Stops(
        frozenset(single | codec.end_ids), tuple(text for text, ids in encoded.items() if len(ids) > 1)
    )


def room_for(request: Generate, max_length: int) -> int:
    """Tokens that the turn may have in a context of `max_length`. Raises InferenceError where none fits."""
    room = max_length - len(request.prompt_ids)
    if room < 1:
        raise InferenceError(
            f"a prompt of {len(request.prompt_ids)} tokens does not fit a context of {max_length}"
        )
    return min(request.max_tokens, room)
