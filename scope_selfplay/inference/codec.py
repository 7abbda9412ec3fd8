"""A Hugging Face tokenizer and its chat template as a `TextCodec`, and where a turn ends.

The template is rendered around placeholders and split at them: what the template wrote may become special tokens, no
text of others may, nor any other token that a tokenizer adds to its vocabulary for a tag. What the prompt says itself
outside of frames may name the tags of the protocol. Only the parts are encoded, so a conversation that grows never
changes the ids that were sampled before.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from scope_selfplay.base.errors import CheckpointError, InferenceError
from scope_selfplay.base.sampling import Generate, Message
from scope_selfplay.base.text import by_frame, in_need_of_frame

_MARK = "\ue000{}\ue001"
_TAG = re.compile(r"[<\[|{](?=.*[^\W\d]).+", re.DOTALL)


class ChatCodec:
    def __init__(self, tokenizer: Any, *, thinking: bool | None = None) -> None:
        """`thinking`: whether a chat template that can switch thinking on and off does so; None leaves it to it."""
        self.tokenizer = tokenizer
        self._switches = {} if thinking is None else {"enable_thinking": thinking}
        self.end_ids = frozenset(
            {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")} - {None}
        )
        # Other tokens that were added, such as words and runs of spaces, say what they are.
        added = sorted(filter(_TAG.fullmatch, tokenizer.get_added_vocab()))
        self._added = _starts(added)
        # What needs no frame holds none of the tags that do.
        self._unframed = _starts([token for token in added if not in_need_of_frame(token)])

    @classmethod
    def load(cls, folder: Path, *, thinking: bool | None = None) -> "ChatCodec":
        """Raises CheckpointError where the folder has no tokenizer with a chat template."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:  # noqa: BLE001 - the wall to tokenizers, which raises bare exceptions
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise CheckpointError(
                f"{folder}: no usable tokenizer ({reason}); save the tokenizer again with save_pretrained, "
                "or use another model"
            ) from None
        if not tokenizer.chat_template:
            raise CheckpointError(
                f"{folder}: no chat template beside the tokenizer, and a policy needs one; use an instruct model"
            )
        return cls(tokenizer, thinking=thinking)

    @property
    def end_of_turn(self) -> int:
        marks = self.end_ids - {self.tokenizer.eos_token_id}
        return int(next(iter(marks), self.tokenizer.eos_token_id))

    def encode_prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        rendered = self._render([(message.role, _MARK.format(i)) for i, message in enumerate(messages)])
        return self._fill(rendered, messages)

    def encode_next(self, messages: Sequence[Message], *, sampled: Sequence[int]) -> tuple[int, ...]:
        spoken = [("user", _MARK.format("u")), ("assistant", _MARK.format("a"))]
        coming = [(message.role, _MARK.format(i)) for i, message in enumerate(messages)]
        rendered = self._render(spoken + coming).partition(_MARK.format("a"))[2]
        if sampled and sampled[-1] in self.end_ids:
            # The end of the turn was sampled: it is already among the ids, only what follows it is new.
            rendered = rendered.removeprefix(self.tokenizer.convert_ids_to_tokens(sampled[-1]))
        return self._fill(rendered, messages)

    def decode(self, ids: Sequence[int]) -> str:
        return str(
            self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, none of which is a tag's."""
        if not texts:
            return []
        backend = self.tokenizer.backend_tokenizer
        # As `_encode` does for texts: what looks like a special token is text.
        backend.encode_special_tokens = True
        encoded = backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [
            self.count(text) if self._added.search(text) else len(ids)
            for text, ids in zip(texts, encoded, strict=True)
        ]

    def count(self, text: str) -> int:
        return len(self._of_text(text, self._added))

    def truncate(self, text: str, max_tokens: int) -> str:
        encoded = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
        )
        offsets = encoded["offset_mapping"]
        if len(offsets) <= max_tokens and self.count(text) <= max_tokens:
            return text
        # A character may be several tokens, and a text that is cut, or that holds tags, may need more of them.
        end = offsets[min(max_tokens, len(offsets) - 1)][0]
        while end and self.count(text[:end]) > max_tokens:
            end -= 1
        return text[:end]

    def encode_reply(self, text: str) -> tuple[int, ...]:
        """The ids of a turn of which the text alone is known."""
        return self._of_text(text, self._added)

    def encode_tag(self, tag: str) -> tuple[int, ...]:
        return self._encode(tag, special=True)

    def _render(self, conversation: Sequence[tuple[str, str]]) -> str:
        messages = [{"role": role, "content": content} for role, content in conversation]
        return str(
            self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **self._switches
            )
        )

    def _fill(self, rendered: str, messages: Sequence[Message]) -> tuple[int, ...]:
        ids: list[int] = []
        for i, message in enumerate(messages):
            before, _, rendered = rendered.partition(_MARK.format(i))
            ids += self._encode(before, special=True)
            for is_frame, part in by_frame(message.content):
                ids += self._of_text(part, self._added if is_frame else self._unframed)
        return (*ids, *self._encode(rendered, special=True))

    def _of_text(self, text: str, tokens: re.Pattern[str]) -> tuple[int, ...]:
        """The ids of a text that is cut inside each of the tokens, so that none of them is made of it."""
        cuts = [0, *(found.start() + 1 for found in tokens.finditer(text)), len(text)]
        return tuple(
            token for start, end in pairwise(cuts) for token in self._encode(text[start:end], special=False)
        )

    def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        if not text:
            return ()
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=not special)
        return tuple(encoded["input_ids"])


def _starts(tokens: Sequence[str]) -> re.Pattern[str]:
    """Where any of them begins in a text, those inside another one too."""
    if not tokens:
        return re.compile(r"(?!)")
    firsts = re.escape("".join({token[0] for token in tokens}))
    return re.compile(f"(?=[{firsts}])(?={'|'.join(map(re.escape, tokens))})")


class Stops(NamedTuple):
    """What is one token is compared as an id, only the rest needs text."""

    ids: frozenset[int]
    """Single-token stop strings and the ends of a turn."""
    texts: tuple[str, ...]
    """Stop strings of several tokens."""


@dataclass(frozen=True)
class Sampling:
    """How one turn is sampled; a temperature of 0 takes the likeliest tokens."""

    max_tokens: int
    temperature: float
    seed: int
    stops: Stops
    top_p: float = 1.0


class SamplingEngine:
    """What the engines of a policy have in common: its identity, and how its turns are sampled.

    `on_tokens` is told how many tokens are there.
    """

    def __init__(
        self,
        codec: ChatCodec,
        *,
        identity: str,
        max_length: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        on_tokens: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.codec, self.identity, self.on_tokens = codec, identity, on_tokens
        self._max_length, self._temperature, self._top_p = max_length, temperature, top_p
        self._stops: dict[tuple[str, ...], Stops] = {}

    def refresh(self, identity: str) -> None:
        """Name the weights of a policy in training, which the trainer has brought to the engine."""
        self.identity = identity

    def sampling(self, request: Generate, seed: int) -> Sampling:
        """Raises InferenceError where no token fits into the context."""
        room = self._max_length - len(request.prompt_ids)
        if room < 1:
            raise InferenceError(
                f"a prompt of {len(request.prompt_ids)} tokens does not fit a context of {self._max_length}"
            )
        temperature = 0.0 if request.greedy else self._temperature
        most, stop = min(request.max_tokens, room), request.stop
        if stop not in self._stops:
            encoded = {text: self.codec.encode_tag(text) for text in stop}
            single = {ids[0] for ids in encoded.values() if len(ids) == 1}
            texts = tuple(text for text, ids in encoded.items() if len(ids) > 1)
            self._stops[stop] = Stops(frozenset(single | self.codec.end_ids), texts)
        return Sampling(most, temperature, seed, self._stops[stop], self._top_p)
