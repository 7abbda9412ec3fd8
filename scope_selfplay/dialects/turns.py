"""What every family's turns share: their tags, their parts, and how blocks of text are found in one pass.

Blocks are found with `str.find`, `str.count`, `str.split` and friends only: no regular expressions and no loop that
starts again. Tags are exact ASCII; look-alikes are text. Where a reading would be a guess, the block does not count.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scope_selfplay.base.text import is_blank
from scope_selfplay.net.json import load_strict, parse_object, read_value

TASK_TAGS = ("<task>", "</task>")
ANSWER_TAGS = ("<answer>", "</answer>")
THINK_TAGS = THINK_OPEN, THINK_CLOSE = ("<think>", "</think>")
# More tries, and longer calls, than any sensible turn needs; they bound the cost of 1 MiB of broken calls.
MAX_CALLS = 16
MAX_CALL_LENGTH = 16_384


class Call(NamedTuple):
    """`arguments` is None where `text`, what stood between the tags, is no call; `tool` is then empty or its name."""

    tool: str
    arguments: Mapping[str, Any] | None
    text: str


class CallBlock(NamedTuple):
    start: int
    text: str


@dataclass(frozen=True)
class TurnParts:
    """The contents of one assistant turn. A part that is absent, blank, unclosed, nested or ambiguous is None.

    Blank is what says nothing: white space, punctuation and characters that cannot be seen.

    Only thinking may be blank: a closed block counts as thinking whatever it holds (SCOPE appendix F).
    """

    thinking: str | None
    query: str | None
    task: str | None
    answer: str | None
    call: Call | None = None
    """A call of another tool than search, or of no tool, where a dialect has other tools: `query` then is None."""


def valid_query(query: object) -> str | None:
    """A query as every family takes it: text, without the whitespace around it, not blank."""
    return _said(_own_text(query, ())) if isinstance(query, str) else None


def split_thinking(text: str, *, may_begin_inside: bool) -> tuple[str | None, str]:
    """The closed block of thinking that opens a turn, if there is one, and the text outside of all thinking.

    Only whitespace may precede it. With `may_begin_inside` a turn whose first think tag is a closing one
    began inside thinking, because the chat template had already opened it. Later think blocks are thinking
    too and belong to neither part; a line break takes their place, so that no new tag forms in their
    place. From an opener that is never closed on, everything is thinking.
    """
    start = text.lstrip()
    if start.startswith(THINK_OPEN):
        thinking, closer, rest = start[len(THINK_OPEN) :].partition(THINK_CLOSE)
        return (thinking.strip(), _outside(rest)) if closer else (None, "")
    before, closer, rest = text.partition(THINK_CLOSE)
    if may_begin_inside and closer and THINK_OPEN not in before:
        return before.strip(), _outside(rest)
    return None, _outside(text)


def only_block(text: str, name: str, foreign: Sequence[str]) -> str | None:
    """The text of the one `<name>` block, stripped.

    None unless the opening and the closing tag occur exactly once each, in this order, with something that is
    not blank and none of the `foreign` tags between them.
    """
    opener, closer = f"<{name}>", f"</{name}>"
    if text.count(opener) != 1 or text.count(closer) != 1:
        return None
    _, _, rest = text.partition(opener)
    content, found, _ = rest.partition(closer)
    return _said(_own_text(content, foreign)) if found else None


def call_blocks(text: str, opener: str, closer: str, foreign: Sequence[str]) -> Iterator[CallBlock]:
    """The blocks between `opener` and `closer`, in order, stripped.

    A block that is blank, longer than 16,384 characters, or holds a tag, its own opener included, is passed
    over. At most 16 blocks are looked at.
    """
    position = 0
    for _ in range(MAX_CALLS):
        start = text.find(opener, position)
        end = text.find(closer, start + len(opener)) if start >= 0 else -1
        if end < 0:
            return
        content = _own_text(text[start + len(opener) : end], (opener, *foreign))
        if content is not None and len(content) <= MAX_CALL_LENGTH:
            yield CallBlock(start, content)
        position = end + len(closer)


def _own_text(content: str, foreign: Sequence[str]) -> str | None:
    """The content without surrounding whitespace; None when nothing is left or it holds a foreign tag."""
    content = content.strip()
    return None if not content or any(tag in content for tag in foreign) else content


def _said(content: str | None) -> str | None:
    return None if content is None or is_blank(content) else content


def _outside(text: str) -> str:
    first, *openings = text.split(THINK_OPEN)
    return "\n".join([first, *(opening.partition(THINK_CLOSE)[2] for opening in openings)])


_LONGEST_NAME = 64


@dataclass(frozen=True)
class ToolForm:
    """What a family must know of a tool; `only_text` names the argument of a tool that takes one text and nothing else.

    Where every tool has tags of its own, that text stands between them as it is; other arguments are a JSON object.
    """

    name: str
    only_text: str | None = None

    @property
    def tags(self) -> tuple[str, str]:
        return f"<{self.name}>", f"</{self.name}>"

    def read(self, content: str) -> Call:
        if self.only_text is not None:
            return Call(self.name, {self.only_text: content}, content)
        try:
            return Call(self.name, parse_object(content), content)
        except ValueError:
            return Call(self.name, None, content)

    def write(self, arguments: Mapping[str, Any]) -> str:
        if self.only_text is not None and set(arguments) == {self.only_text}:
            return str(arguments[self.only_text])
        return json_without_tags(dict(arguments))


SEARCH_FORM = ToolForm("search", "query")


class CallSyntax(NamedTuple):
    """How a family that calls all tools alike does so: `read` gets the text between the tags, `write` returns it."""

    read: Callable[[str], Iterator[Call]]
    write: Callable[[str, Mapping[str, Any]], str]


def is_tool_name(name: str) -> bool:
    """ASCII letters, digits, _ and -, a letter first: what fits into a tag, into JSON and before a bracket."""
    plain = name.replace("_", "").replace("-", "")
    return len(name) <= _LONGEST_NAME and name[:1].isalpha() and name.isascii() and plain.isalnum()


def read_object_call(content: str) -> Iterator[Call]:
    """A JSON object with `name` and `arguments` and nothing else."""
    try:
        call = load_strict(content)
    except ValueError:
        call = None
    match call:
        case {"name": str(name), "arguments": dict(arguments), **rest} if not rest:
            yield Call(name, arguments, content)
        case {"name": str(name)}:
            yield Call(name, None, content)
        case _:
            yield Call("", None, content)


def write_object_call(tool: str, arguments: Mapping[str, Any]) -> str:
    return f'\n{{"name": "{tool}", "arguments": {json_without_tags(dict(arguments))}}}\n'


def read_function_calls(content: str) -> Iterator[Call]:
    """Lines `name(argument=value, ...)` whose values are JSON."""
    for line in map(str.strip, content.split("\n", MAX_CALLS)):
        if line:
            name, opened, rest = line.partition("(")
            whole = bool(opened) and rest.endswith(")") and is_tool_name(name)
            yield Call(name, _named_values(rest[:-1]), line) if whole else Call("", None, line)


def write_function_call(tool: str, arguments: Mapping[str, Any]) -> str:
    return f"{tool}({', '.join(f'{name}={json_without_tags(value)}' for name, value in arguments.items())})"


def json_without_tags(value: object) -> str:
    """The escape of "<" keeps tags and special tokens of the model out of the text; JSON reads it back."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def _named_values(text: str) -> dict[str, Any] | None:
    values: dict[str, Any] = {}
    place, text = 0, text.strip()
    while place < len(text):
        equals = text.find("=", place)
        name = text[place:equals].strip()
        if equals < 0 or not is_tool_name(name) or name in values:
            return None
        try:
            values[name], place = read_value(text, equals + 1)
        except ValueError:
            return None
        rest = text[place:].lstrip()
        if rest and (rest[0] != "," or not rest[1:].strip()):
            return None
        place = len(text) - len(rest) + 1
    return values
