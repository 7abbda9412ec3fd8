"""A Hugging Face tokenizer and its chat template as a `TextCodec`.

The template is rendered around placeholders and split at them: what the template wrote may become special
tokens, what a document or a task says may not. Only the parts are encoded, so a conversation that grows never
changes the ids that were sampled before.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scope_selfplay.errors import CheckpointError
from scope_selfplay.inference.protocol import Message

_MARK = "\ue000{}\ue001"


class ChatCodec:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.end_ids = frozenset(
            {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")} - {None}
        )

    @classmethod
    def load(cls, folder: Path) -> "ChatCodec":
        """Raises CheckpointError where the folder has no tokenizer with a chat template."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:  # noqa: BLE001 - the wall to tokenizers, which raises bare exceptions
            raise CheckpointError(
                f"{folder}: no usable tokenizer ({_first_line(error)}); save the tokenizer again with save_pretrained, "
                "or use another model"
            ) from None
        if not tokenizer.chat_template:
            raise CheckpointError(
                f"{folder}: no chat template beside the tokenizer, and a policy needs one; use an instruct model"
            )
        return cls(tokenizer)

    @property
    def end_of_turn(self) -> int:
        """The token after which the other side speaks."""
        marks = self.end_ids - {self._tokenizer.eos_token_id}
        return int(next(iter(marks), self._tokenizer.eos_token_id))

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    def encode_prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        rendered = self._render([(message.role, _MARK.format(i)) for i, message in enumerate(messages)])
        return self._fill(rendered, messages)

    def encode_next(self, messages: Sequence[Message], *, sampled: Sequence[int]) -> tuple[int, ...]:
        spoken = [("user", _MARK.format("u")), ("assistant", _MARK.format("a"))]
        coming = [(message.role, _MARK.format(i)) for i, message in enumerate(messages)]
        rendered = self._render(spoken + coming).partition(_MARK.format("a"))[2]
        if sampled and sampled[-1] in self.end_ids:
            # The end of the turn was sampled: it already stands in the ids, only what follows it is new.
            rendered = rendered.removeprefix(self._tokenizer.convert_ids_to_tokens(sampled[-1]))
        return self._fill(rendered, messages)

    def decode(self, ids: Sequence[int]) -> str:
        return str(
            self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def count(self, text: str) -> int:
        return len(self._encode(text, special=False))

    def truncate(self, text: str, max_tokens: int) -> str:
        encoded = self._tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
        )
        offsets = encoded["offset_mapping"]
        if len(offsets) <= max_tokens:
            return text
        # A character may be several tokens, and a text that is cut may need more of them at its new end.
        end = offsets[max_tokens][0]
        while end and self.count(text[:end]) > max_tokens:
            end -= 1
        return text[:end]

    def encode_tag(self, tag: str) -> tuple[int, ...]:
        return self._encode(tag, special=True)

    def _render(self, conversation: Sequence[tuple[str, str]]) -> str:
        messages = [{"role": role, "content": content} for role, content in conversation]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _fill(self, rendered: str, messages: Sequence[Message]) -> tuple[int, ...]:
        ids: list[int] = []
        for i, message in enumerate(messages):
            before, _, rendered = rendered.partition(_MARK.format(i))
            ids += self._encode(before, special=True)
            ids += self._encode(message.content, special=False)
        return (*ids, *self._encode(rendered, special=True))

    def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        if not text:
            return ()
        encoded = self._tokenizer(text, add_special_tokens=False, split_special_tokens=not special)
        return tuple(encoded["input_ids"])


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
