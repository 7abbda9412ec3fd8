"""What a tool is to an episode, and what an episode asks of it and is sent: values without I/O."""

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any, NamedTuple, Protocol

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from scope_selfplay.base.sampling import TextCodec
from scope_selfplay.base.text import clean_line, frame_tokens, shown
from scope_selfplay.base.values import Passage, ToolCall, ToolFault, Truncation, Turn
from scope_selfplay.config.base import OpenConfig
from scope_selfplay.dialects.families import Call, Dialect, ToolForm
from scope_selfplay.search.searcher import Searcher, cut_middle

_LONGEST_PROBLEM = 200
_MOST_REFERENCES = 1_000
"""`$ref`s that are followed to check one call: a few that lead to each other twice would be followed for ever."""


class UseTool(NamedTuple):
    """An episode's request: this tool, with arguments that its schema allows."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class ToolResult:
    """What a tool gave: `passages`, which an episode shows and cuts as search results, or `text`.

    `sources` are the ids of the documents that the text is from. With a `fault` the text says what went wrong; a text
    that `is_shown` is what a policy was shown before, and is not cut again.
    """

    text: str = ""
    passages: tuple[Passage, ...] | None = None
    sources: tuple[str, ...] = ()
    fault: ToolFault | None = None
    seconds: float = 0.0
    is_shown: bool = False


ToolFunction = Callable[[Mapping[str, Any]], Awaitable[ToolResult]]


@dataclass(frozen=True)
class ToolBudget:
    """Limits of one tool: calls of a rollout, policy tokens of a result, seconds of a call (None: its own patience)."""

    calls: int
    tokens: int
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """A tool as a policy and its episode know it. `schema` is the JSON schema of its arguments, an object's."""

    name: str
    description: str
    schema: Mapping[str, Any] = field(hash=False)
    budget: ToolBudget
    truncation: Truncation = Truncation.END
    """What a result that is too long loses, where it has no pages."""
    pages: bool = False
    """Whether a long result comes in pages of `budget.tokens`, which the argument `page` counts from 1."""
    keeps_time: bool = False
    """Whether it stops a call after `budget.seconds` itself, because waiting for its server is not its own time."""
    document_argument: str | None = None
    """The argument that names a document: a title that the episode was shown stands for its id."""

    @property
    def form(self) -> ToolForm:
        """How its calls are written: a tool with one required text and no other argument takes it as it is."""
        match list(self.arguments.items()):
            case [(only, {"type": "string"})] if self.required == [only]:
                return ToolForm(self.name, only)
        return ToolForm(self.name)

    @property
    def arguments(self) -> dict[str, Mapping[str, Any]]:
        """What the schema says of each argument."""
        properties: Mapping[str, Any] = self.schema.get("properties") or {}
        # A schema may be `true`.
        return {name: about if isinstance(about, Mapping) else {} for name, about in properties.items()}

    @property
    def required(self) -> list[str]:
        return self.schema.get("required") or []

    def problem(self, arguments: Mapping[str, Any]) -> str | None:
        """What the schema says against these arguments, in one line; None for arguments that it allows."""
        _references.set(itertools.count(1))
        try:
            error = next(self._validator.iter_errors(dict(arguments)), None)
        except (Unresolvable, RecursionError, OverflowError):
            return "they cannot be checked against the schema of this tool"
        return None if error is None else _said(error)

    def called_by(self, call: ToolFunction) -> "Tool":
        """The tool that this function answers."""
        return Tool(**{each.name: getattr(self, each.name) for each in fields(ToolSpec)}, call=call)

    @cached_property
    def _validator(self) -> Any:
        # An empty registry: a schema that points elsewhere is not fetched.
        return _bounded_validator()(dict(self.schema), registry=Registry())


@dataclass(frozen=True, kw_only=True)
class Tool(ToolSpec):
    """A tool that can be called. `call` returns a result or raises ToolError, SearchError: it is down for too long."""

    call: ToolFunction


class Tools(Protocol):
    """What answers an episode's calls; `index` names what its search finds, and is stored with the rollout."""

    @property
    def index(self) -> str: ...

    async def use(self, request: UseTool) -> ToolResult:
        """Raises ToolError or SearchError where a tool's server is down for longer than the run waits."""
        ...


def schema_problem(schema: Mapping[str, Any]) -> str | None:
    """Why this is no schema of a tool's arguments; None where it is one."""
    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as error:
        return _said(error)
    except RecursionError:
        return "nested too deeply"
    return None if schema.get("type", "object") == "object" else "expected the schema of an object"


def _said(error: ValidationError | SchemaError) -> str:
    place = ".".join(map(str, error.absolute_path))
    return f"{place}: {error.message}"[:_LONGEST_PROBLEM] if place else error.message[:_LONGEST_PROBLEM]


_references: ContextVar[Iterator[int]] = ContextVar("references")


@cache
def _bounded_validator() -> Any:
    """Draft 2020-12 without what may take for ever on what a policy writes; the tool itself still checks that.

    Patterns take exponential time, unique items are compared pair by pair, references may lead to each other.
    """
    known = Draft202012Validator.VALIDATORS

    def follow(validator: Any, *reference: Any) -> Iterator[ValidationError]:
        if next(_references.get()) > _MOST_REFERENCES:
            raise RecursionError
        yield from known["$ref"](validator, *reference) or ()

    def additional(validator: Any, allowed: Any, instance: Any, schema: Mapping[str, Any]) -> Any:
        # It would match the names with the patterns.
        return (
            None
            if "patternProperties" in schema
            else known["additionalProperties"](validator, allowed, instance, schema)
        )

    names = ("pattern", "patternProperties", "unevaluatedProperties", "uniqueItems")
    unchecked = dict.fromkeys(names, lambda *_: None)
    return extend(Draft202012Validator, {**unchecked, "$ref": follow, "additionalProperties": additional})


SEARCH = ToolSpec(
    name="search",
    description="Finds the passages that fit a query best.",
    schema={
        "type": "object",
        "properties": {"query": {"type": "string", "description": "what to search for"}},
        "required": ["query"],
        "additionalProperties": False,
    },
    budget=ToolBudget(calls=5, tokens=500),
)


def search_tool(searcher: Searcher, topk: int) -> Tool:
    async def call(arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult(passages=tuple(await searcher.search(arguments["query"], topk)))

    return SEARCH.called_by(call)


class OpenTools:
    """Tools that are really called."""

    def __init__(self, tools: Sequence[Tool], *, index: str = "") -> None:
        self._tools = {tool.name: tool for tool in tools}
        self.index = index

    async def use(self, request: UseTool) -> ToolResult:
        tool, start = self._tools[request.tool], time.monotonic()
        try:
            async with asyncio.timeout(None if tool.keeps_time else tool.budget.seconds):
                result = await tool.call(request.arguments)
        except TimeoutError:
            # One without a limit may have a client with one.
            limit = f"{tool.budget.seconds:g} seconds" if tool.budget.seconds else "it may"
            text = f"{tool.name} took longer than {limit} and was stopped."
            result = ToolResult(text, fault=ToolFault.TIMED_OUT)
        return replace(result, seconds=round(time.monotonic() - start, 3))


def searching(searcher: Searcher, topk: int) -> OpenTools:
    """Search alone."""
    return OpenTools([search_tool(searcher, topk)], index=searcher.identity)


_EXAMPLES: Mapping[str, Any] = {
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}
_LONGEST_ABOUT = 200


def listed(tools: Sequence[ToolSpec], family: Dialect) -> str:
    """Each tool with its arguments and a call of it as this family writes one; empty without tools."""
    family = family.with_tools([tool.form for tool in tools])
    return "\n".join(_described(tool, family) for tool in tools)


def example_arguments(tool: ToolSpec) -> dict[str, Any]:
    """Arguments of the right types: those that are required."""
    return {name: _example(name, tool.arguments.get(name, {})) for name in tool.required}


def _described(tool: ToolSpec, family: Dialect) -> str:
    arguments = [_argument(name, about, name in tool.required) for name, about in tool.arguments.items()]
    call = family.tool_call(tool.name, example_arguments(tool))
    takes = f" Arguments: {'; '.join(arguments)}." if arguments else ""
    about = clean_line(tool.description).rstrip(".")
    return f"- {tool.name}: {about}.{takes} At most {tool.budget.calls} calls. {call}"


def _argument(name: str, about: Mapping[str, Any], required: bool) -> str:
    kinds = [str(about["type"])] if isinstance(about.get("type"), str) else []
    if isinstance(about.get("enum"), list):
        kinds = [" or ".join(json.dumps(value, ensure_ascii=False) for value in about["enum"][:12])]
    notes = ", ".join([*kinds, *([] if required else ["may be left out"])])
    said = clean_line(str(about.get("description") or ""))[:_LONGEST_ABOUT]
    return f"{name} ({notes})" + (f", {said}" if said else "")


def _example(name: str, about: Mapping[str, Any]) -> Any:
    if isinstance(about.get("enum"), list) and about["enum"]:
        return about["enum"][0]
    kind = about.get("type")
    return _EXAMPLES.get(kind, f"the {name}") if isinstance(kind, str) else f"the {name}"


_DOCUMENT = {"type": "string", "minLength": 1, "description": "its title, as a search showed it, or its id"}
_PAGE = {"type": "integer", "minimum": 1, "description": "the page, from 1"}


def open_tool(searcher: Searcher, settings: OpenConfig) -> Tool:
    """Calls wait for a retriever that is down as searches do."""
    pages = settings.truncation == "pages"

    async def call(arguments: Mapping[str, Any]) -> ToolResult:
        asked = arguments["document"]
        found = await searcher.document(asked)
        if found is None:
            text = f"There is no document {asked[:200]!r}. Open one by the title that a search has shown."
            return ToolResult(text, fault=ToolFault.ERROR)
        text = f"{found.title}\n{found.text}" if found.title else found.text
        return ToolResult(text, sources=(found.id,))

    return ToolSpec(
        name="open",
        description="Shows a whole document, of which a search shows a passage"
        + (", page by page." if pages else "; a long one loses its middle."),
        schema={
            "type": "object",
            "properties": {"document": _DOCUMENT, **({"page": _PAGE} if pages else {})},
            "required": ["document"],
            "additionalProperties": False,
        },
        budget=ToolBudget(settings.max_calls, settings.max_tokens),
        truncation=Truncation.END if pages else Truncation.MIDDLE,
        pages=pages,
        document_argument="document",
    ).called_by(call)


_LONGEST_ARGUMENTS = 16_384
_LONGEST_NAME = 64
# Characters; with longer tokens on average a page holds fewer than it could.
_LONGEST_TOKEN = 16


def refusal(call: Call, tool: ToolSpec | None, tools: Sequence[ToolSpec], calls: int) -> ToolResult | None:
    """What is said to a call that no tool is asked, the tool's `calls`-th of its rollout; None for a good one."""
    if tool is None:
        names = ", ".join(each.name for each in tools)
        found = (
            f"There is no tool {call.tool[:_LONGEST_NAME]!r}." if call.tool else "The call could not be read."
        )
        return ToolResult(f"{found} The tools are: {names}.", fault=ToolFault.UNKNOWN)
    if calls > tool.budget.calls:
        text = f"{tool.name} may be called {tool.budget.calls} times, which it has been."
        return ToolResult(text, fault=ToolFault.SPENT)
    problem = "they are not a JSON object" if call.arguments is None else tool.problem(call.arguments)
    if problem is None and tool.name != SEARCH.name:
        return None
    # A search that is as it should be comes as a query, not as a call.
    problem = problem or "the query is empty"
    text = f"{tool.name} was not called; its arguments are wrong: {problem}."
    return ToolResult(text, fault=ToolFault.ARGUMENTS)


def document_named(tool: ToolSpec, call: Call, turns: Sequence[Turn]) -> Mapping[str, Any]:
    """A call's arguments, with the id of the document whose title, as a search showed it, stands in them."""
    name, arguments = tool.document_argument, call.arguments
    assert arguments is not None
    if name is None or not isinstance(arguments.get(name), str):
        return arguments
    passages = [passage for turn in turns for passage in turn.passages]
    wanted = arguments[name].strip()
    for same in (str.strip, str.casefold):
        for passage in passages:
            if same(passage.title) == same(wanted):
                return {**arguments, name: passage.id}
    return {**arguments, name: wanted}


def shown_result(result: ToolResult, tool: ToolSpec | None, call: Call, codec: TextCodec, most: int) -> str:
    """The text of a result in the tool's tokens, its frame included, or its page; `most` is for what no tool said."""
    if result.is_shown:
        return result.text
    text = shown(result.text)
    room = frame_tokens(codec.count, text)
    if tool is None or result.fault is not None:
        return codec.truncate(text, most - room)
    tokens = tool.budget.tokens - room
    if tool.pages and tool.truncation is Truncation.END:
        return _page(text, int((call.arguments or {}).get("page", 1)), codec, tokens)
    if tool.truncation is Truncation.MIDDLE:
        return cut_middle(text, codec, tokens)
    return codec.truncate(text, tokens) or "(empty)"


def recorded(call: Call, result: ToolResult, shown: str) -> ToolCall:
    arguments = call.text if call.arguments is None else json.dumps(dict(call.arguments), ensure_ascii=False)
    return ToolCall(
        tool=call.tool[:_LONGEST_NAME],
        arguments=arguments[:_LONGEST_ARGUMENTS],
        result=shown,
        sources=result.sources,
        seconds=result.seconds,
        fault=result.fault,
    )


def replayed(turn: Turn) -> ToolResult:
    """The result that a recorded turn got."""
    if turn.query is not None or turn.call is None:
        return ToolResult(passages=turn.passages, seconds=turn.call.seconds if turn.call else 0.0)
    call = turn.call
    return ToolResult(
        call.result, sources=call.sources, fault=call.fault, seconds=call.seconds, is_shown=True
    )


def recorded_search(query: str, shown: Sequence[Passage], seconds: float) -> ToolCall:
    """Its passages are the turn's own."""
    arguments = json.dumps({"query": query}, ensure_ascii=False)
    sources = tuple(passage.id for passage in shown)
    return ToolCall(tool=SEARCH.name, arguments=arguments, sources=sources, seconds=seconds)


def _page(text: str, number: int, codec: TextCodec, tokens: int) -> str:
    """Page `number` with a line about where it stands, together at most `tokens`."""
    if codec.count(text) <= tokens and number == 1:
        return text or "(empty)"
    room = max(tokens - codec.count("(page 9999 of 9999)\n"), 1)
    pages: list[str] = []
    while text:
        page = codec.truncate(text[: room * _LONGEST_TOKEN], room) or text[:1]
        pages.append(page)
        text = text[len(page) :]
    if not 1 <= number <= len(pages):
        return f"There is no page {number}; the document has {len(pages)}."
    return f"(page {number} of {len(pages)})\n{pages[number - 1]}"
