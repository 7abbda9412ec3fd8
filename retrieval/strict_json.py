"""JSON objects from outside: what standard parsers let through silently is an error here."""

import json
from typing import Any, NoReturn


def parse_object(text: str | bytes) -> dict[str, Any]:
    """One JSON object. Raises ValueError for anything else, NaN, a repeated key, deep nesting."""
    try:
        record = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at character {error.pos}: {error.msg}") from None
    if not isinstance(record, dict):
        raise ValueError(f"a JSON object was expected, found {type(record).__name__}")
    return record


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a key is given twice")
    return record


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
