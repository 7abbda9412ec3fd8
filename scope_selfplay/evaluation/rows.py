"""Rows of the files in which benchmarks are published, and their fields; a wrong one is named with file, line, field.

JSON lines, a JSON array or an object of one, parquet, TSV, CSV, Arrow, or a folder of them (a data set of the Hugging
Face hub as it is downloaded or saved). Nothing is downloaded.
"""

import ast
import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from scope_selfplay.errors import ConfigError
from scope_selfplay.keys import content_id
from scope_selfplay.wire.strict_json import parse_object

T = TypeVar("T")
_MISSING = object()


@dataclass(frozen=True)
class Row:
    """One record of a benchmark's file. Where several names are given, they are alternatives, in this order."""

    values: Mapping[str, Any]
    where: str
    """`file:line`, or `file: row n` where there are no lines."""

    def value(self, *names: str) -> Any:
        """What the first of the fields holds that the row has. Raises ConfigError where it has none."""
        found = self._found(names)
        if found is _MISSING:
            raise self._wrong(" or ".join(names), f"missing; the row has {_listed(self.values)}")
        return found

    def optional(self, *names: str) -> Any:
        """The same, or None; an empty text is none."""
        found = self._found(names)
        return None if found is _MISSING or found == "" else found

    def text(self, *names: str) -> str:
        value = self.value(*names)
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(self._named(names), f"expected a text, found {_shown(value)}")
        return value.strip()

    def optional_text(self, *names: str) -> str | None:
        """A text; a number is written out."""
        value = self.optional(*names)
        return None if value is None else str(value).strip() or None

    def number(self, *names: str, default: float | None = None) -> float:
        value = self._found(names) if default is None else self._found_or(names, default)
        if value is _MISSING:
            value = self.value(*names)
        with suppress(TypeError, ValueError):
            if not isinstance(value, bool):
                return float(value)
        raise self._wrong(self._named(names), f"expected a number, found {_shown(value)}")

    def texts(self, *names: str) -> tuple[str, ...]:
        """The different texts of all these fields: each holds a text, a list, or a list written as JSON or Python."""
        present = [name for name in names if self._found((name,)) not in (_MISSING, None)]
        found: dict[str, None] = {}
        for name in present:
            for text in _as_list(self._found((name,))):
                if not isinstance(text, str | int | float) or isinstance(text, bool):
                    raise self._wrong(name, f"expected texts, found {_shown(text)}")
                found[str(text).strip()] = None
        texts = tuple(text for text in found if text)
        if not texts:
            named = " or ".join(names)
            raise self._wrong(named, f"no text in it; the row has {_listed(self.values)}")
        return texts

    def object(self, *names: str) -> "Row":
        """An object as a row of its own."""
        value, name = self.value(*names), self._named(names)
        if not isinstance(value, Mapping):
            raise self._wrong(name, f"expected an object, found {_shown(value)}")
        return Row(value, f"{self.where}: {name}")

    def rows(self, *names: str, alone: str = "") -> list["Row"]:
        """The objects in a list, each a row of its own; a bare text is an object with it in the field `alone`."""
        value = _as_list(self.value(*names))
        if alone:
            value = [{alone: each} if isinstance(each, str) else each for each in value]
        name = self._named(names)
        if not all(isinstance(each, Mapping) for each in value):
            raise self._wrong(name, f"expected a list of objects, found {_shown(value)}")
        return [Row(each, f"{self.where}: {name}[{number}]") for number, each in enumerate(value)]

    def identifier(self, *names: str) -> str:
        """The row's id, or one made from its content."""
        given = self.optional_text(*names)
        return given or content_id("item", json.dumps(dict(self.values), sort_keys=True, default=str))

    def conversation(self, *names: str) -> str:
        """A list of messages as one question: a single one as it is, several with who wrote them."""
        messages = [(each.text("role"), each.text("content")) for each in self.rows(*names)]
        if len(messages) == 1:
            return messages[0][1]
        written = "\n\n".join(f"{role.capitalize()}: {content}" for role, content in messages)
        return f"A conversation so far, in which the assistant writes next:\n\n{written}"

    def joined(self, other: "Row") -> "Row":
        """This row with the fields of another that it lacks."""
        return Row({**other.values, **self.values}, self.where)

    def wrong(self, name: str, what: str) -> ConfigError:
        """The error for a field whose content cannot be used."""
        return self._wrong(name, what)

    def _wrong(self, name: str, what: str) -> ConfigError:
        return ConfigError(f"{self.where}: {name}: {what}")

    def _named(self, names: Sequence[str]) -> str:
        return next((name for name in names if self._found((name,)) is not _MISSING), names[0])

    def _found_or(self, names: Sequence[str], default: float) -> Any:
        found = self._found(names)
        return default if found is _MISSING or found is None else found

    def _found(self, names: Sequence[str]) -> Any:
        for name in names:
            value: Any = self.values
            for part in name.split("."):
                value = value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING
            if value is not _MISSING:
                return value
        return _MISSING


def read_rows(path: Path) -> Iterator[Row]:
    """All rows of a file, or of all data files of a folder in the order of their names.

    Raises ConfigError for a path without data, and for a row that cannot be read.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in READERS and _is_data(file))
        if not files:
            raise ConfigError(f"{path}: no data file in this folder; expected one of {', '.join(READERS)}")
        for file in files:
            yield from read_rows(file)
        return
    reader = READERS.get(path.suffix)
    if reader is None or not path.is_file():
        found = "not a file" if not path.is_file() else f"unknown format {path.suffix!r}"
        raise ConfigError(f"{path}: {found}; expected a folder, or a file that ends in {', '.join(READERS)}")
    try:
        yield from reader(path)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None


def _is_data(file: Path) -> bool:
    """Whether a file of a data set's folder holds rows; a saved one has two that describe it."""
    return file.name not in (
        "dataset_info.json",
        "state.json",
        "dataset_dict.json",
    ) and not file.name.startswith(".")


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = parse_object(line)
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: {error}; one JSON object a line") from None
            yield Row(record, f"{path}:{number}")


def _json_array(path: Path) -> Iterator[Row]:
    """A list of objects, the one list in an object (`{"Data": [...]}`), or objects by their ids."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            yield from _json_lines(path)
            return
        raise ConfigError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    if isinstance(value, Mapping):
        value = _records_in(value)
    for number, record in enumerate(value, start=1):
        where = f"{path}: row {number}"
        if not isinstance(record, Mapping):
            raise ConfigError(f"{where}: expected an object, found {_shown(record)}")
        yield Row(record, where)


def _records_in(value: Mapping[str, Any]) -> list[Any]:
    if len(value) > 1 and all(isinstance(each, Mapping) for each in value.values()):
        return [{"id": name, **each} for name, each in value.items()]
    lists = [each for each in value.values() if isinstance(each, list) and each]
    return lists[0] if len(lists) == 1 else [value]


def _separated(path: Path) -> Iterator[Row]:
    """A table with a head line, split at tabs where that has any. DPR's tables have no head: question, answers."""
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8-sig", newline="") as file:
        separator = "\t" if "\t" in file.readline() else ","
        file.seek(0)
        lines = csv.reader(file, delimiter=separator)
        head: list[str] = []
        for cells in lines:
            if not cells:
                continue
            where = f"{path}:{lines.line_num}"
            if not head:
                head = ["question", "answers"] if _is_dpr(cells) else cells
                if head is cells:
                    continue
            yield Row(_cells(head, cells, where), where)


def _cells(head: Sequence[str], cells: Sequence[str], where: str) -> dict[str, str]:
    if len(cells) != len(head):
        raise ConfigError(
            f"{where}: {len(cells)} columns, the first line has {len(head)} ({', '.join(head)})"
        )
    return dict(zip(head, cells, strict=True))


def _is_dpr(cells: Sequence[str]) -> bool:
    return len(cells) == 2 and cells[1].startswith("[")


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield from _table_rows(path, file.iter_batches())
    except pyarrow.ArrowException as error:
        raise ConfigError(f"{path}: not parquet: {str(error).splitlines()[0]}") from None


def _arrow(path: Path) -> Iterator[Row]:
    """What `save_to_disk` of Hugging Face's datasets writes."""
    import pyarrow

    try:
        with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as batches:
            yield from _table_rows(path, batches)
    except pyarrow.ArrowException as error:
        raise ConfigError(f"{path}: not an Arrow stream: {str(error).splitlines()[0]}") from None


def _table_rows(path: Path, batches: Any) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for record in batch.to_pylist():
            number += 1
            yield Row(record, f"{path}: row {number}")


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".json": _json_array,
    ".parquet": _parquet,
    ".tsv": _separated,
    ".csv": _separated,
    ".arrow": _arrow,
}
"""How a file is read, by the end of its name."""


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
