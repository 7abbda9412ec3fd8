"""In which settings two runs differ, by the names that a user gives them."""

from collections.abc import Iterator, Mapping
from typing import Any

from scope_selfplay.config.base import WHOLE_SETTINGS
from scope_selfplay.config.run import RunConfig


def changed_settings(before: RunConfig, after: RunConfig) -> list[str]:
    """The dotted names of what makes two runs compute different things, in the order of the config; [] for none."""
    return list(_changed(before.content, after.content, ""))


def _changed(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[str]:
    # What stands in one of the two only is a difference as well.
    for name in (*before, *(name for name in after if name not in before)):
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict) and name not in WHOLE_SETTINGS:
            yield from _changed(old, new, f"{prefix}{name}.")
        elif old != new or (name in before) != (name in after):
            yield prefix + name
