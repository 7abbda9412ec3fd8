"""Reads JSON as the standard defines it, from text that nobody has checked.

Python's reader also takes NaN and Infinity, keeps the last of two equal keys, and overflows on deep nesting
or huge numbers. Here all of these are one ValueError.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError

from scope_selfplay.base.errors import ConfigError, CorpusError
from scope_selfplay.base.text import encodable

Kind = TypeVar("Kind")

LONGEST_LINE = 1 << 24
_MOST_DIGITS, _BEYOND = 20, 1 << 63
"""Whole numbers fit into 64 bits: larger ones overflow wherever they are added up or stored."""


def load_strict(text: str) -> object:
    """The value of one JSON document.

    Raises ValueError for anything that is not JSON, a repeated key, a number that is not finite or too large, nesting
    deeper than the interpreter's stack, or a string with half a surrogate pair (it could never be encoded
    again).
    """
    value, end = read_value(text, 0)
    end = _skip_space(text, end)
    if end < len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


def read_value(text: str, start: int) -> tuple[object, int]:
    """The JSON value that begins at `start`, whitespace before it left out, and where it ends.

    Raises ValueError as `load_strict`, except for what follows the value.
    """
    start = _skip_space(text, start)
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    written = json.dumps(value, ensure_ascii=False) if "\\u" in text[start:end] else ""
    if encodable(written) != written:
        raise ValueError("a string holds half a surrogate pair")
    return value, end


def parse_object(text: str | bytes) -> dict[str, Any]:
    """One JSON object. Raises ValueError as `load_strict`, and for any other value."""
    try:
        record = load_strict(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at character {error.pos}: {error.msg}") from None
    if not isinstance(record, dict):
        raise ValueError(f"a JSON object was expected, found {type(record).__name__}")
    return record


def given_lines(
    path: Path, kind: type[Kind], expected: str, *, named: str = ""
) -> Iterator[tuple[str, Kind]]:
    """The objects of a file of JSON lines that a user gives, each with its place; blank lines are left out.

    `named`: the setting that names the file. Raises ConfigError with file, line and field, and what is `expected`.
    """
    adapter = TypeAdapter(kind)
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{named and f'{named}: '}{path}:{number}"
                if line.strip():
                    yield where, adapter.validate_python(parse_object(line))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); {expected}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "the line"
        raise ConfigError(f"{where}: {field}: {first['msg'].lower()}; {expected}") from None
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; {expected}") from None


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, gzip or not, newline included. Raises CorpusError with the line number."""
    number = 0
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise CorpusError(f"{path}, line {number}: a line of more than {LONGEST_LINE:,} bytes")
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path}, line {number}: not UTF-8 at byte {error.start + 1}; convert the file to UTF-8"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{path}, line {number + 1}: cannot be read: {error}") from None


def json_lines(path: Path) -> Iterator[tuple[str, object]]:
    """The values of a file of JSON lines, each with its place. Raises CorpusError as `read_lines`."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            yield place, _parsed(line.rstrip("\r\n"), place)


def records_in(value: Mapping[str, Any]) -> list[Any]:
    """The records of an object: itself, its one list, or objects by their ids."""
    if isinstance(value.get("text"), str):
        return [value]
    if len(value) > 1 and all(isinstance(each, Mapping) for each in value.values()):
        return [{"id": name, **each} for name, each in value.items()]
    lists = [each for each in value.values() if isinstance(each, list) and each]
    return lists[0] if len(lists) == 1 else [value]


def _parsed(line: str, place: str) -> object:
    try:
        return load_strict(line)
    except json.JSONDecodeError as error:
        fault = error.msg.removesuffix(" at").removesuffix(" starting")
        raise CorpusError(
            f"{place}: damaged at character {error.pos + 1}: {fault}; mend the line or take it out"
        ) from None
    except ValueError as error:
        raise CorpusError(f"{place}: damaged: {error}; mend the line or take it out") from None


def whole_number(value: object) -> int:
    """A count that somebody else reports; 0 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _skip_space(text: str, start: int) -> int:
    return len(text) - len(text[start:].lstrip(" \t\n\r"))


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key is given twice in one object")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _bounded(digits: str) -> int:
    value = int(digits) if len(digits) <= _MOST_DIGITS else _BEYOND
    if not -_BEYOND <= value < _BEYOND:
        raise ValueError(f"{digits[:20]}... is too large a number")
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{digits[:20]} is too large a number")
    return value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_bounded
)
