"""Records as columns: the Arrow schema of every kind of record, and from rows back to values.

The schema is derived from the pydantic models, so the two cannot differ. Text and judgements are kept, token ids are
not: those belong to training rows. A text column holds any text, also one that is no status, reason or fault: a row
that is not a valid value is an error that names its stage and id.
"""

import types
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

import pyarrow as pa
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from scope_selfplay.errors import RecordError
from scope_selfplay.schemas import Candidate, Comparison, Grade, Rollout, Score, Selection, Turn

Model = TypeVar("Model", bound=BaseModel)

_TRAINING_ONLY: Mapping[type[BaseModel], frozenset[str]] = {
    Turn: frozenset({"prompt_ids", "ids", "logprobs"})
}
_SCALARS: Mapping[type, pa.DataType] = {
    str: pa.string(),
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
}
_ABSENT = object()
_ID_FIELDS = ("id", "rollout_id", "first_id", "candidate_ids")


class RecordKind(StrEnum):
    """The kinds of records that a stage folder may hold, each in `<kind>.jsonl` and later `<kind>.parquet`."""

    CANDIDATES = "candidates"
    ROLLOUTS = "rollouts"
    GRADES = "grades"
    COMPARISONS = "comparisons"
    SELECTIONS = "selections"
    SCORES = "scores"

    @property
    def model(self) -> type[BaseModel]:
        return _MODELS[self]


_MODELS: Mapping[RecordKind, type[BaseModel]] = {
    RecordKind.CANDIDATES: Candidate,
    RecordKind.ROLLOUTS: Rollout,
    RecordKind.GRADES: Grade,
    RecordKind.COMPARISONS: Comparison,
    RecordKind.SELECTIONS: Selection,
    RecordKind.SCORES: Score,
}


@cache
def arrow_schema(model: type[BaseModel]) -> pa.Schema:
    """One column per field. Raises TypeError for a field of a type that has no column."""
    required = {
        name
        for name, field in model.model_fields.items()
        if field.is_required() and not _allows_none(field.annotation)
    }
    return pa.schema([column.with_nullable(column.name not in required) for column in _fields(model)])


def record_from(model: type[Model], row: Mapping[str, Any]) -> Model:
    """The value in a row of columns. Raises pydantic's ValidationError where it is not valid."""
    return model.model_validate(_plain(model, row))


def record_of(run: Path, model: type[Model], row: Mapping[str, Any]) -> Model:
    """As `record_from`, for a row of a view of a run. Raises RecordError that names its stage and id."""
    return _checked(run, model, row, lambda: record_from(model, row))


def value_of(run: Path, model: type[Model], row: Mapping[str, Any]) -> Model:
    """A value with a row's cells as its fields; otherwise as `record_of`."""
    return _checked(run, model, row, lambda: model.model_validate(row))


def _checked(run: Path, model: type[Model], row: Mapping[str, Any], make: Callable[[], Model]) -> Model:
    try:
        return make()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        name = next((f" {row[column]}" for column in _ID_FIELDS if row.get(column)), "")
        stage = f"iteration {row.get('iteration')}, {row.get('stage')}"
        raise RecordError(
            f"{run}: {stage}:{name} is damaged ({model.__name__}.{field}: {first['msg']}, found "
            f"{str(first['input'])[:80]!r}); restore the files of that stage"
        ) from None


def _fields(model: type[BaseModel]) -> list[pa.Field]:
    # Nullable all, because Arrow's JSON reader refuses a null struct whose members are required.
    return [pa.field(name, _arrow_type(field.annotation)) for name, field in _kept(model).items()]


def _kept(model: type[BaseModel]) -> dict[str, FieldInfo]:
    left_out = _TRAINING_ONLY.get(model, frozenset())
    return {name: field for name, field in model.model_fields.items() if name not in left_out}


def _arrow_type(annotation: Any) -> pa.DataType:
    annotation = _without_none(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return pa.list_(_arrow_type(arguments[0]))
    if origin is dict and _is_enum(arguments[0]):
        # One member for each key that there may be: the same shape as in JSON.
        return pa.struct([(key.value, _arrow_type(arguments[1])) for key in arguments[0]])
    if _is_enum(annotation):
        return pa.string()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return pa.struct(_fields(annotation))
    if isinstance(annotation, type) and issubclass(annotation, tuple):
        parts = {_arrow_type(part) for part in annotation.__annotations__.values()}
        if len(parts) == 1:
            return pa.list_(parts.pop())
    raise TypeError(f"{annotation} has no column; give it one in store.columns")


def _plain(annotation: Any, value: Any) -> Any:
    """A row's value without what the columns added: nulls for absent keys and for fields that have a default."""
    if value is None:
        return None if _allows_none(annotation) else _ABSENT
    annotation = _without_none(annotation)
    if get_origin(annotation) is tuple:
        return [_plain(get_args(annotation)[0], each) for each in value]
    if get_origin(annotation) is dict:
        return {key: _plain(get_args(annotation)[1], each) for key, each in value.items() if each is not None}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        members = {
            name: _plain(field.annotation, value[name])
            for name, field in _kept(annotation).items()
            if name in value
        }
        return {name: each for name, each in members.items() if each is not _ABSENT}
    return value


def _allows_none(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType) and type(None) in get_args(annotation)


def _without_none(annotation: Any) -> Any:
    if not _allows_none(annotation):
        return annotation
    (left,) = (each for each in get_args(annotation) if each is not type(None))
    return left


def _is_enum(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, StrEnum)
