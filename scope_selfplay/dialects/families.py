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
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from scope_selfplay.dialects.turns import (
    ANSWER_TAGS,
    SEARCH_FORM,
    TASK_TAGS,
    THINK_CLOSE,
    Call,
    CallSyntax,
    ToolForm,
    TurnParts,
    call_blocks,
    only_block,
    read_function_calls,
    read_object_call,
    split_thinking,
    valid_query,
    write_function_call,
    write_object_call,
)

EXAMPLE_QUERY = "your search query"
_VERBS = "Explain|Describe|Compare|Summarise|Plan|Write"
"""What a task begins with that an engine keeps in form: an engine that may write anything goes on with the prompt."""
_FIRST = r"[^\x00-\x2f\x3a-\x40\x5b-\x60\x7b-\x7f]"
"""No white space or ASCII punctuation: three dots are no query and no answer."""


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

    def turn_pattern(self, *wanted: str, is_thinking: bool) -> str:
        """A regular expression of whole turns that are one of `search`, `task`, `answer`, for an engine to keep to.

        Lengths are in characters. `is_thinking`: the prompt has opened the thinking, which the turn then ends.
        """
        # Engines know no escaped white space.
        call = re.escape(self.search_syntax).replace("\\ ", " ").replace("\\\n", r"\n")
        before, after = call.split(EXAMPLE_QUERY)
        forms = {
            # Without what a JSON string would have to escape.
            "search": rf'{before}{_FIRST}[^<>"\\\x00-\x1f\x7f]{{2,118}}{after}',
            "task": rf"<task>({_VERBS}) [^<>\n.?!]{{30,200}}[.?]</task>",
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

        The enclosing tags are broken up where a passage brings its own, so that no passage can end the block.
        """
        if self.result_tags is None:
            return passages_text
        opener, closer = self.result_tags
        for tag in self.result_tags:
            passages_text = passages_text.replace(tag, tag.replace("<", "< "))
        return f"{opener}\n{passages_text}\n{closer}"

    def _calls_in(self, body: str) -> Iterator[Call]:
        foreign = (THINK_CLOSE, *TASK_TAGS, *ANSWER_TAGS)
        if self.calls is not None:
            for block in call_blocks(body, *self.search_tags, foreign):
                yield from self.calls.read(block.text)
            return
        placed = []
        for form in (SEARCH_FORM, *self.tools):
            others = [tag for tag in self.call_tags if tag not in form.tags]
            for block in call_blocks(body, *form.tags, (*foreign, *others)):
                placed.append((block.start, form.read(block.text)))
        yield from (call for _, call in sorted(placed, key=lambda each: each[0]))


def _searched(call: Call) -> str | None:
    if call.tool != SEARCH_FORM.name or call.arguments is None or set(call.arguments) != {"query"}:
        return None
    return valid_query(call.arguments["query"])


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
