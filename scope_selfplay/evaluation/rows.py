"""Items of a benchmark, and the rows of published files that they are made of: a wrong field is named with its place.

JSON lines, a JSON array or an object of one, parquet, TSV, CSV, Arrow, or a folder of them (a data set of the Hugging
Face hub as it is downloaded or saved). Nothing is downloaded.
"""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from pydantic import Field

from scope_selfplay.base.errors import ConfigError, CorpusError
from scope_selfplay.base.values import Criterion, Rubric, Task, Value, content_id
from scope_selfplay.corpus.formats import NotConverted, Records, format_of
from scope_selfplay.net.json import given_lines

_DESCRIBING = ("dataset_info.json", "state.json", "dataset_dict.json")
"""Files of a saved data set that hold no rows."""


class ItemCriterion(Value):
    """One requirement of an item's rubric. What a good answer must not do has negative points (HealthBench)."""

    text: str = Field(min_length=1)
    points: float = 1.0
    title: str = ""
    dimension: str = ""

    @cached_property
    def asked(self) -> Criterion:
        """What a judge is shown of it."""
        return Criterion(text=self.text, weight=abs(self.points), title=self.title, dimension=self.dimension)


class Item(Value):
    """One question, with all that its benchmark says about a good answer: any of these may be missing."""

    id: str = Field(min_length=1)
    question: str = Field(min_length=1)
    """The whole text that the Solver is asked."""
    answers: tuple[str, ...] = ()
    """Right answers; one of them is enough. The first is the one that a judge is shown as the reference."""
    criteria: tuple[ItemCriterion, ...] = ()
    given: str | None = None
    """An answer that the benchmark brings, to be compared with."""
    group: str = ""
    """The kind of question by which scores are reported too."""

    @cached_property
    def task(self) -> Task:
        """The item as a Solver's episode takes it."""
        reference = self.answers[0] if self.answers else None
        kind = self.group or "question"
        return Task(
            id=self.id, text=self.question, type=kind, document_id="", search_turns=0, reference=reference
        )

    @cached_property
    def rubric(self) -> Rubric | None:
        """The criteria that ought to be met, for prompts that show a whole rubric."""
        wanted = tuple(criterion.asked for criterion in self.criteria if criterion.points > 0)
        return Rubric(task_id=self.id, criteria=wanted) if wanted else None


@dataclass(frozen=True)
class Row:
    """One record of a benchmark's file. Where several names are given, they are alternatives, in this order."""

    values: Mapping[str, Any]
    where: str
    """`file:line`, or `file: row n` where there are no lines."""

    def optional(self, *names: str) -> Any:
        """What the first of the fields holds that the row has, or None; an empty text is none."""
        return self._first(names)[1]

    def value(self, *names: str) -> Any:
        """The same. Raises ConfigError where it has none."""
        return self._needed(names)[1]

    def text(self, *names: str) -> str:
        name, value = self._needed(names)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(name, f"expected a text, found {_shown(value)}")
        return value.strip()

    def optional_text(self, *names: str) -> str | None:
        """A text; a number is written out."""
        value = self.optional(*names)
        return None if value is None else str(value).strip() or None

    def number(self, *names: str, default: float | None = None) -> float:
        if default is not None and self.optional(*names) is None:
            return default
        name, value = self._needed(names)
        with suppress(TypeError, ValueError):
            if not isinstance(value, bool):
                return float(value)
        raise self.wrong(name, f"expected a number, found {_shown(value)}")

    def texts(self, *names: str) -> tuple[str, ...]:
        """The different texts of all these fields: each holds a text, a list, or a list written as JSON or Python."""
        found: dict[str, None] = {}
        for name in names:
            value = self._first((name,))[1]
            for text in () if value is None else _as_list(value):
                if not isinstance(text, str | int | float) or isinstance(text, bool):
                    raise self.wrong(name, f"expected texts, found {_shown(text)}")
                found[str(text).strip()] = None
        texts = tuple(text for text in found if text)
        if not texts:
            raise self.wrong(" or ".join(names), f"no text in it; the row has {_listed(self.values)}")
        return texts

    def object(self, *names: str) -> "Row":
        """An object as a row of its own."""
        name, value = self._needed(names)
        if not isinstance(value, Mapping):
            raise self.wrong(name, f"expected an object, found {_shown(value)}")
        return Row(value, f"{self.where}: {name}")

    def rows(self, *names: str, alone: str = "") -> list["Row"]:
        """The objects in a list, each a row of its own; a bare text is an object with it in the field `alone`."""
        name, value = self._needed(names)
        listed = [{alone: each} if alone and isinstance(each, str) else each for each in _as_list(value)]
        if not all(isinstance(each, Mapping) for each in listed):
            raise self.wrong(name, f"expected a list of objects, found {_shown(listed)}")
        return [Row(each, f"{self.where}: {name}[{number}]") for number, each in enumerate(listed)]

    def identifier(self, *names: str) -> str:
        """The row's id, or one made from its content."""
        given = self.optional_text(*names)
        return given or content_id("item", json.dumps(dict(self.values), sort_keys=True, default=str))

    def question(self, *names: str) -> str:
        """A text; or a list of messages as one: a single one as it is, several with who wrote them."""
        if isinstance(self.optional(*names), str):
            return self.text(*names)
        messages = [(each.text("role"), each.text("content")) for each in self.rows(*names)]
        if len(messages) == 1:
            return messages[0][1]
        written = "\n\n".join(f"{role.capitalize()}: {content}" for role, content in messages)
        return f"A conversation so far, in which the assistant writes next:\n\n{written}"

    def wrong(self, name: str, what: str) -> ConfigError:
        """The error for a field whose content cannot be used."""
        return ConfigError(f"{self.where}: {name}: {what}")

    def _needed(self, names: Sequence[str]) -> tuple[str, Any]:
        name, value = self._first(names)
        if value is None:
            raise self.wrong(" or ".join(names), f"missing; the row has {_listed(self.values)}")
        return name, value

    def _first(self, names: Sequence[str]) -> tuple[str, Any]:
        for name in names:
            value: Any = self.values
            for part in name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None and value != "":
                return name, value
        return "", None


Names = str | tuple[str, ...]
"""A field of a row, or several. `a.b` is field b of the object in a."""


@dataclass(frozen=True)
class Criteria:
    """Where a row holds the criteria of its rubric, and where each of them holds what."""

    rows: Names
    text: Names = ()
    """Left out where all criteria are bare texts; one among objects is taken as the first of these fields."""
    points: Names = ()
    title: Names = ()
    dimension: Names = ()
    default: float | None = 1.0
    """The points of a criterion that says none; None where each must."""

    def __call__(self, row: Row) -> tuple[ItemCriterion, ...]:
        rows, text = _names(self.rows), _names(self.text)
        if not text:
            return tuple(ItemCriterion(text=each) for each in row.texts(*rows))
        return tuple(
            ItemCriterion(
                text=each.text(*text),
                points=each.number(*_names(self.points), default=self.default),
                title=each.optional_text(*_names(self.title)) or "",
                dimension=each.optional_text(*_names(self.dimension)) or "",
            )
            for each in row.rows(*rows, alone=text[0])
        )


@dataclass(frozen=True)
class Fields:
    """The table of field names: where a row holds what.

    Of several names for the question, id, group or given answer the first that a row has counts; of several for
    answers all do. A question may be a conversation.
    """

    question: Names = "question"
    answers: Names = ()
    id: Names = "id"
    group: Names = ()
    given: Names = ()
    criteria: Criteria | None = None

    def __call__(self, row: Row) -> Item:
        answers = _names(self.answers)
        return Item(
            id=row.identifier(*_names(self.id)),
            question=row.question(*_names(self.question)),
            answers=row.texts(*answers) if answers else (),
            criteria=() if self.criteria is None else self.criteria(row),
            given=row.optional_text(*_names(self.given)),
            group=row.optional_text(*_names(self.group)) or "",
        )


def _names(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def read_rows(path: Path) -> Iterator[Row]:
    """All rows of a file, or of all data files of a folder in the order of their names.

    Raises ConfigError for a path without data, and for a row that cannot be read.
    """
    if path.is_dir():
        files = sorted(
            file
            for file in path.rglob("*")
            if file.suffix in READERS and file.name not in _DESCRIBING and not file.name.startswith(".")
        )
        if not files:
            raise ConfigError(f"{path}: no data file in this folder; expected one of {', '.join(READERS)}")
        for file in files:
            yield from read_rows(file)
        return
    if path.suffix not in READERS or not path.is_file():
        fault = "not a file" if not path.is_file() else f"unknown format {path.suffix!r}"
        raise ConfigError(f"{path}: {fault}; expected a folder, or a file that ends in {', '.join(READERS)}")
    if path.suffix == ".jsonl":
        for where, record in given_lines(path, dict[str, Any], "one JSON object a line"):
            yield Row(record, where)
        return
    row = format_of(path)
    assert row is not None
    try:
        for where, found in cast(Records, row.read(path)):
            if not isinstance(found, Mapping):
                raise ConfigError(f"{where}: expected an object, found {_shown(found)}")
            yield Row(found, where)
    except (CorpusError, NotConverted) as error:
        raise ConfigError(str(error)) from None


READERS = (".jsonl", ".json", ".parquet", ".tsv", ".csv", ".arrow")
"""How the name of a file ends."""


def _as_list(value: Any) -> list[Any]:
    """A list as such, one that is written as a text, or the value alone."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        for parse in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                parsed = parse(value)
                if isinstance(parsed, list):
                    return parsed
    if isinstance(value, list | tuple):
        return list(value)
    return [value]


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, values))) or "no fields"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
