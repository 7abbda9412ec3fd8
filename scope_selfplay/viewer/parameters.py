"""The query parameters of the pages, and links within the site. Every URL can be shared, so every part is checked."""

from collections.abc import Mapping
from typing import Literal, Self
from urllib.parse import quote, urlencode

from pydantic import Field, ValidationError

from scope_selfplay.errors import did_you_mean
from scope_selfplay.gates import Gate
from scope_selfplay.schemas import CandidateStatus, Reason, Value
from scope_selfplay.store.folders import Stage
from scope_selfplay.store.query import Flaw, Sort, Suspect, TaskQuery


class BadParameterError(Exception):
    """A query string with an unknown or invalid parameter; its text is one line for a person."""


class PageParameters(Value):
    """The query parameters of a page."""

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Self:
        """Raises BadParameterError for an unknown parameter and for an invalid value."""
        known = list(cls.model_fields)
        for name in given:
            if name not in known:
                raise BadParameterError(
                    f"{name!r} is not a parameter of this page{did_you_mean(name, known)}; it knows {', '.join(known)}"
                )
        try:
            return cls.model_validate({name: value for name, value in given.items() if value.strip()})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise BadParameterError(f"{first['loc'][0]}={first['input']!r}: {first['msg']}") from None


class TaskListParameters(PageParameters):
    """A list of candidates: its filters, its order and its page. An empty field of a form counts as not given."""

    iteration: int | None = Field(default=None, ge=0)
    stage: Literal["tasks", "challenger", "all"] = "tasks"
    status: CandidateStatus | None = None
    reason: Reason | None = None
    gate: Gate | None = None
    type: str | None = Field(default=None, max_length=200)
    searches: int | None = Field(default=None, ge=0)
    flaw: Flaw | None = None
    tool: str | None = Field(default=None, max_length=64)
    suspect: Suspect | None = None
    low: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    high: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    below: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    text: str = Field(default="", max_length=500)
    sort: Sort = Sort.ORDER
    desc: int = Field(default=0, ge=0, le=1)
    page: int = Field(default=1, ge=1, le=10**9)
    size: int = Field(default=50, ge=1, le=200)

    @property
    def query(self) -> TaskQuery:
        return TaskQuery(
            **self.model_dump(exclude={"stage", "desc", "page", "size"}),
            stage=None if self.stage == "all" else Stage(self.stage),
            descending=bool(self.desc),
            limit=self.size,
            offset=(self.page - 1) * self.size,
        )

    @property
    def filters(self) -> dict[str, str]:
        """What narrows the list, as it is typed."""
        shown = ("sort", "desc", "page", "size")
        return {name: value for name, value in self._given().items() if name not in shown}

    def query_string(self, **changes: object) -> str:
        """These parameters with some changed; None drops one."""
        given = self._given() | changes
        return urlencode({name: str(value) for name, value in given.items() if value is not None})

    def _given(self) -> dict[str, str]:
        given = self.model_dump(mode="json", exclude_defaults=True)
        return {name: str(value) for name, value in given.items()}


class ComparisonParameters(PageParameters):
    """Two checkpoints, and the order of their tasks."""

    a: str = Field(default="", max_length=100)
    b: str = Field(default="", max_length=100)
    sort: Literal["change", "gain", "loss"] = "change"
    page: int = Field(default=1, ge=1, le=10**9)


class PackParameters(PageParameters):
    """The prompt pack to compare the run's own with."""

    against: str = Field(default="", max_length=200)


class Links:
    """Addresses within the site; all begin with the base path."""

    def __init__(self, base: str) -> None:
        self.base = base

    def __call__(self, *path: object, query: str = "", anchor: str = "", **parameters: object) -> str:
        """`path` are segments; `parameters` go before a finished `query`, None is left out."""
        where = self.base + "/" + "/".join(quote(str(part), safe="") for part in path)
        asks = urlencode({name: value for name, value in parameters.items() if value is not None})
        whole = "&".join(part for part in (asks, query) if part)
        return where + (f"?{whole}" if whole else "") + (f"#{quote(anchor)}" if anchor else "")
