"""What a tool is to an episode, and what an episode asks of it and is sent: values without I/O."""

import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from typing import Any, NamedTuple, Protocol

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from scope_selfplay.dialects import ToolForm
from scope_selfplay.schemas import Passage, ToolFault, Truncation

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

    def taking(self, seconds: float) -> "ToolResult":
        """The result of a call that took so long; `dataclasses.replace` would cost several times as much."""
        return ToolResult(self.text, self.passages, self.sources, self.fault, seconds, self.is_shown)


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
        properties = self.schema.get("properties") or {}
        for only, about in properties.items():
            is_text = isinstance(about, Mapping) and about.get("type") == "string"
            if is_text and [only] == self.schema.get("required") == list(properties):
                return ToolForm(self.name, only)
        return ToolForm(self.name)

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

    unchecked = dict.fromkeys(
        ("pattern", "patternProperties", "unevaluatedProperties", "uniqueItems"), _allow
    )
    return extend(Draft202012Validator, {**unchecked, "$ref": follow, "additionalProperties": additional})


def _allow(*_: Any) -> None:
    return None
