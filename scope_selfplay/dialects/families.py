"""The model families: what a dialect is, and how each family writes a search call and its thinking.

To add one, write its `Dialect`, list it in `DIALECTS`, and allow its name in `ModelConfig.dialect`
(`scope_selfplay/config/run.py`).

Qwen2.5: a search is a tag of its own, results come back in a user message between information tags. Other tools have
tags too, around their arguments as a JSON object. The family has native tool calls; the paper does not use them for it,
because this is the form that its instruction-tuned models keep best (SCOPE appendix E). A query cannot hold a tag of
the protocol.

Qwen3: a search is a native tool call, a JSON object between tool_call tags; thinking is native. The template
writes tool results into a user message, so that is the role here: a `tool` message whose content the template
encloses and our enclosed `user` message give the same prompt. Only the call is a stop text: a closing task or
answer tag that the model weighs in its thinking must not end the turn.

OLMo-3: a search is a function call with a JSON value, results come back in the role `environment`. Several calls of
one block are on lines of their own. The Instruct models do not think natively; the template of the Think models
opens the thinking in the prompt.

All of them share tags and parts. Blocks of a turn are found in one pass, with `str.find`, `str.count`, `str.split` and
friends only: no regular expressions and no loop that starts again. Tags are exact ASCII; look-alikes are text. Where a
reading would be a guess, the block does not count.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from scope_selfplay.base.text import FRAMED, is_blank
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


def call_blocks(text: str, opener: str, closer: str, foreign: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Where each block between `opener` and `closer` begins, in order, and its text, stripped.

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
            yield start, content
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


EXAMPLE_QUERY = "your search query"
_VERBS = {
    "en": "Explain|Describe|Compare|Summarise",
    "de": "Erkläre|Beschreibe|Vergleiche",
    "es": "Explica|Describe|Compara|Resume",
    "fr": "Explique|Décris|Compare|Résume",
    "it": "Spiega|Descrivi|Confronta|Riassumi",
    "pt": "Explique|Descreva|Compare|Resuma",
    "ru": "Объясни|Опиши|Сравни",
    "zh": "说明|描述|介绍|比较|解释",
}
"""What a task begins with that an engine keeps in form: an engine that may write anything goes on with the prompt, and
one that must begin in English goes on in English. In other languages it is a question.
"""
_OUTSIDE = r'<>"\\\x00-\x1f\x7f'
"""What a JSON string would have to escape, and tags."""
_IN_SENTENCE = r"[^<>\n.?!。？！؟।]"
_FIRST = r"[^\x00-\x2f\x3a-\x40\x5b-\x60\x7b-\x7f]"
"""No white space or ASCII punctuation: three dots are no query and no answer."""
_BEGIN = "(?:{}|y[^o{q}]|yo[^u{q}]|you[^r{q}])".format(_FIRST.replace("\\x60", "\\x60y"), q=_OUTSIDE)
"""Of a query that does not copy the prompt's example; engines know no look-ahead."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One model family's way to search and think (SCOPE Table 11); tasks and answers look alike in all."""

    name: str
    search_tags: tuple[str, str]
    result_tags: tuple[str, str] | None
    """What encloses the passages; None where the chat role alone marks them."""
    tool_role: str
    """The chat role whose message `tool_response` is."""
    stop: tuple[str, ...]
    """Where sampling ends; an engine must keep the stop text, else the turn is unclosed."""
    template_opens_thinking: bool
    """Whether a chat template of this family may end the prompt with an open think tag."""
    native_thinking: bool
    """Whether the family thinks without being told to, so that a prompt brings no think tags of its own."""
    drops_earlier_thinking: bool
    """Whether the thinking of earlier turns is removed from the next prompt, between search results too."""
    calls: CallSyntax | None
    """How any tool is called between the search tags; None where every tool has tags of its own."""
    tools: tuple[ToolForm, ...] = ()
    """The tools beside search; without any, what is no search is no call."""

    def with_tools(self, tools: Sequence[ToolForm]) -> "Dialect":
        """The same family, for episodes that have these tools beside search."""
        if not tools:
            return self
        closers = [] if self.calls else [form.tags[1] for form in tools]
        return replace(self, tools=tuple(tools), stop=(*self.stop, *closers))

    @cached_property
    def call_tags(self) -> tuple[str, ...]:
        """Every tag that opens or closes a call."""
        own = () if self.calls else tuple(tag for form in self.tools for tag in form.tags)
        return (*self.search_tags, *own)

    @property
    def search_syntax(self) -> str:
        """The example of a search call that a prompt shows."""
        return self.search_call(EXAMPLE_QUERY)

    def turn_pattern(self, *wanted: str, is_thinking: bool, language: str = "en") -> str:
        """A regular expression of whole turns that are one of `search`, `task`, `answer`, for an engine to keep to.

        Lengths are in characters. `is_thinking`: the prompt has opened the thinking, which the turn then ends.
        `language`: the code of that in which tasks are written.
        """
        # Engines know no escaped white space.
        call = re.escape(self.search_syntax).replace("\\ ", " ").replace("\\\n", r"\n")
        before, after = call.split(EXAMPLE_QUERY)
        forms = {
            "search": f"{before}{_BEGIN}[^{_OUTSIDE}]{{2,118}}{after}",
            "task": f"<task>{_sentence(language)}</task>",
            "answer": rf"<answer>{_FIRST}[^<>]{{0,999}}</answer>",
        }
        thought = r"[^<>]{1,1500}</think>\s?\s?" if is_thinking else ""
        return f"{thought}({'|'.join(forms[each] for each in wanted)})"

    @property
    def result_syntax(self) -> str:
        """Where a prompt says that search results come back."""
        if self.result_tags is None:
            return f"in the next message, from the {self.tool_role}"
        return "between {} and {}".format(*self.result_tags)

    def parse(self, text: str) -> TurnParts:
        """Read one assistant turn without its end-of-turn token. Linear in its length; never raises.

        Tags inside thinking do not count. The first valid search call is the query; two answers, or two
        tasks, are none. A block that holds another tag of the protocol is none either. An inner
        `<question>` of a task is the task. Halves of surrogate pairs become question marks. When the prompt
        ended inside thinking and this turn may have stopped there, parse the think tag with it:
        `parse("<think>" + text)`.
        """
        text = text.encode("utf-8", "replace").decode()
        thinking, body = split_thinking(text, may_begin_inside=self.template_opens_thinking)
        task = only_block(body, "task", (THINK_CLOSE, *ANSWER_TAGS, *self.call_tags))
        if task is not None and ("<question>" in task or "</question>" in task):
            task = only_block(task, "question", ())
        calls = list(self._calls_in(body))
        if not self.tools:
            # What is no search is no call.
            calls = [call for call in calls if _searched(call) is not None][:1]
        # The first that can be read, or else the first one.
        call = next((call for call in calls if call.arguments is not None), calls[0] if calls else None)
        query = None if call is None else _searched(call)
        call = None if query is not None else call
        answer = only_block(body, "answer", (THINK_CLOSE, *TASK_TAGS, *self.call_tags))
        return TurnParts(thinking, query, task, answer, call)

    def search_call(self, query: str) -> str:
        """The call that `parse` reads back as exactly this query.

        Raises ValueError for a query that no call can carry: blank, with whitespace around it, longer than
        about 16,000 characters, with half a surrogate pair, or with a tag that the family cannot escape.
        """
        return self.tool_call(SEARCH_FORM.name, {"query": query})

    def tool_call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """The call that `parse` reads back as exactly this. Raises ValueError for one that no call can carry."""
        form = next((form for form in (SEARCH_FORM, *self.tools) if form.name == tool), ToolForm(tool))
        opener, closer = self.search_tags if self.calls else form.tags
        call = f"{opener}{self.calls.write(tool, arguments) if self.calls else form.write(arguments)}{closer}"
        found = self.parse(call)
        read = ("search", {"query": found.query}) if found.query else found.call and found.call[:2]
        if read != (tool, dict(arguments)):
            raise ValueError(
                f"the {self.name} dialect cannot write a call of {tool} with {str(arguments)[:80]}"
            )
        return call

    def tool_response(self, passages_text: str) -> str:
        """The message, for the role `tool_role`, that brings search results back to the model.

        The enclosing tags are broken up where no frame is around them, so that no passage can end the block.
        """
        if self.result_tags is None:
            return passages_text
        opener, closer = self.result_tags
        if not FRAMED.search(passages_text):
            for tag in self.result_tags:
                passages_text = passages_text.replace(tag, tag.replace("<", "< "))
        return f"{opener}\n{passages_text}\n{closer}"

    def _calls_in(self, body: str) -> Iterator[Call]:
        foreign = (THINK_CLOSE, *TASK_TAGS, *ANSWER_TAGS)
        if self.calls is not None:
            for _, text in call_blocks(body, *self.search_tags, foreign):
                yield from self.calls.read(text)
            return
        placed = list[tuple[int, Call]]()
        for form in (SEARCH_FORM, *self.tools):
            others = [tag for tag in self.call_tags if tag not in form.tags]
            blocks = call_blocks(body, *form.tags, (*foreign, *others))
            placed += [(start, form.read(text)) for start, text in blocks]
        yield from (call for _, call in sorted(placed, key=lambda each: each[0]))


def _searched(call: Call) -> str | None:
    """The query as every family takes it: text, without the whitespace around it, not blank."""
    if call.tool != SEARCH_FORM.name or call.arguments is None or set(call.arguments) != {"query"}:
        return None
    query = call.arguments["query"]
    return _said(_own_text(query, ())) if isinstance(query, str) else None


QWEN25 = Dialect(
    name="qwen2.5",
    search_tags=("<search>", "</search>"),
    result_tags=("<information>", "</information>"),
    tool_role="user",
    stop=("</search>", "</task>", "</answer>"),
    template_opens_thinking=False,
    native_thinking=False,
    drops_earlier_thinking=False,
    calls=None,
)


QWEN3 = Dialect(
    name="qwen3",
    search_tags=("<tool_call>", "</tool_call>"),
    result_tags=("<tool_response>", "</tool_response>"),
    tool_role="user",
    stop=("</tool_call>",),
    template_opens_thinking=True,
    native_thinking=True,
    drops_earlier_thinking=True,
    calls=CallSyntax(read_object_call, write_object_call),
)

OLMO3 = Dialect(
    name="olmo3",
    search_tags=("<function_calls>", "</function_calls>"),
    result_tags=None,
    tool_role="environment",
    stop=("</function_calls>", "</task>", "</answer>"),
    template_opens_thinking=True,
    native_thinking=False,
    drops_earlier_thinking=False,
    calls=CallSyntax(read_function_calls, write_function_call),
)

DIALECTS = (QWEN25, QWEN3, OLMO3)


def dialect(name: str, earlier_thinking: Literal["auto", "keep", "drop"] = "auto") -> Dialect:
    """The dialect of a model family, one of `DIALECTS`.

    `earlier_thinking` is a run's choice of what becomes of the thinking of earlier turns; `auto` is the family's.
    """
    (found,) = (family for family in DIALECTS if family.name == name)
    if earlier_thinking == "auto":
        return found
    return replace(found, drops_earlier_thinking=earlier_thinking == "drop")


def _sentence(language: str) -> str:
    """One that asks for something; in English it may name St. Helena."""
    if language == "en":
        return rf"({_VERBS['en']}) {_IN_SENTENCE}{{30,240}}((St|Mt|Mr|Dr)\. {_IN_SENTENCE}{{5,120}})?[.?]"
    if verbs := _VERBS.get(language):
        return rf"({verbs}){_IN_SENTENCE}{{8,240}}[.?。？]"
    return rf"{_FIRST}{_IN_SENTENCE}{{8,240}}[?？؟]"
