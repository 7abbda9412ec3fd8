"""From rows of columns to values, where a row that is none is an error that names it.

Columns of text hold any text, also one that no status, reason or fault is called.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from scope_selfplay.errors import RecordError
from scope_selfplay.store.columns import record_from

Model = TypeVar("Model", bound=BaseModel)

_NAMES = ("id", "rollout_id", "first_id", "candidate_ids")


def record_of(run: Path, model: type[Model], row: Mapping[str, Any]) -> Model:
    """The record that a row of a view stands for. Raises RecordError that names its stage and id."""
    return _made(run, model, row, lambda: record_from(model, row))


def value_of(run: Path, model: type[Model], row: Mapping[str, Any]) -> Model:
    """A value with a row's cells as its fields; otherwise as `record_of`."""
    return _made(run, model, row, lambda: model.model_validate(row))


def _made(run: Path, model: type[Model], row: Mapping[str, Any], make: Callable[[], Model]) -> Model:
    try:
        return make()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        name = next((f" {row[each]}" for each in _NAMES if row.get(each)), "")
        stage = f"iteration {row.get('iteration')}, {row.get('stage')}"
        raise RecordError(
            f"{run}: {stage}:{name} is damaged ({model.__name__}.{field}: {first['msg']}, found "
            f"{str(first['input'])[:80]!r}); restore the files of that stage"
        ) from None
