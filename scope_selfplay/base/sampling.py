"""What an episode asks of a policy: token ids in, sampled token ids out; and a policy that follows a script."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from scope_selfplay.base.values import Finish, Key


class Message(NamedTuple):
    role: str
    content: str


class Generate(NamedTuple):
    """One assistant turn. Generation ends after an end-of-sequence token, a stop string (kept) or `max_tokens`.

    `turn` counts the turns of its episode from 0: where not all are served at once, later ones come first. `opening`
    names its first prompt: all turns of the episodes that have it share their beginning. `pattern` is a regular
    expression that a served engine keeps the turn to; those of this process cannot, and are never asked to.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    stop: tuple[str, ...] = ()
    greedy: bool = False
    turn: int = 0
    opening: str = ""
    pattern: str = ""


class Sample(NamedTuple):
    """The ids that were really sampled, in order, with their log-probabilities under the sampling distribution."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish: Finish


class PolicyModel(Protocol):
    @property
    def identity(self) -> str:
        """Names the weights: equal identities give equal rollouts."""
        ...

    async def generate(self, request: Generate, key: Key) -> Sample:
        """Raises InferenceError when the engine fails; the key seeds the sampling noise of this call alone."""
        ...


def settle_from_thread(future: "asyncio.Future[Sample]", result: Sample | Exception) -> None:
    """Give a caller on an event loop of its own what an engine's thread has found; one that went away gets nothing."""

    def tell() -> None:
        if future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    # Nobody waits any more in a loop that has ended meanwhile.
    with suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(tell)


class TagCodec(Protocol):
    """As much of a tokenizer as a dialect's tags need."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids, without special tokens such as the end of a turn."""
        ...

    def encode_tag(self, tag: str) -> tuple[int, ...]:
        """The ids of a dialect's tag, as the policy samples it."""
        ...


class TextCodec(TagCodec, Protocol):
    """A tokenizer with its chat template, as far as episodes need it.

    Message contents are data: they never become special tokens, whatever they contain.
    """

    @property
    def end_of_turn(self) -> int:
        """The token that ends a turn where no stop text does."""
        ...

    def encode_prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """A conversation up to where the assistant's turn begins."""
        ...

    def encode_next(self, messages: Sequence[Message], *, sampled: Sequence[int]) -> tuple[int, ...]:
        """What follows the sampled ids of an assistant turn, up to where its next turn begins."""
        ...

    def count(self, text: str) -> int: ...

    def truncate(self, text: str, max_tokens: int) -> str:
        """The longest beginning of `text` that has at most `max_tokens` tokens."""
        ...


def ids_of_turn(codec: TextCodec, request: Generate, text: str) -> tuple[int, ...]:
    """The ids of a turn that is known as text, as a policy would have sampled it: its end included."""
    if codec.decode(request.prompt_ids[-4:]).rstrip().endswith("<think>"):
        # The template has opened the thinking already; records hold it as if the turn had.
        text = text.removeprefix("<think>")
    ids = codec.encode_tag(text)
    return ids if text.rstrip().endswith(request.stop) else (*ids, codec.end_of_turn)


Script = Callable[[str, Key], str]
"""Prompt text and key of the call -> the policy's completion."""


class ScriptedModel:
    """A `PolicyModel` that answers what `script` gives: for token lint, teachers of a warm start and tests."""

    def __init__(self, codec: TextCodec, script: Script, *, identity: str = "scripted") -> None:
        self._codec = codec
        self._script = script
        self.identity = identity

    async def generate(self, request: Generate, key: Key) -> Sample:
        text = self._script(self._codec.decode(request.prompt_ids), key)
        ids = self._codec.encode_tag(text)
        if len(ids) > request.max_tokens:
            return Sample(ids[: request.max_tokens], None, Finish.LENGTH)
        return Sample(ids, None, Finish.STOP)
