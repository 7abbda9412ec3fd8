"""Records as columns: the Arrow schema of every kind of record, and the way back to values.

The schema is read off the pydantic models, so the two cannot drift apart. Text and judgements are kept, token
ids are not: those belong to training rows. A field that a newer version added is null where an older file is
read (`as_current`) and gets its default when the record is.
"""

import types
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin

import pyarrow as pa
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scope_selfplay.schemas import Candidate, Comparison, Grade, Rollout, Score, Selection, Turn

Record = TypeVar("Record", bound=BaseModel)

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
    return pa.schema([each.with_nullable(each.name not in required) for each in _fields(model)])


def as_current(table: pa.Table, model: type[BaseModel]) -> pa.Table:
    """A table of another version in today's columns, by name at every depth: absent ones are null, others go.

    Raises ValueError or TypeError (also as Arrow's own kinds) where a required column is absent or of another type.
    """
    schema = arrow_schema(model)
    absent = [each.name for each in schema if not each.nullable and each.name not in table.column_names]
    if absent:
        raise ValueError(f"has no column {', '.join(absent)}")
    columns = [
        table[each.name] if each.name in table.column_names else pa.nulls(table.num_rows, each.type)
        for each in schema
    ]
    return pa.table(columns, names=schema.names).cast(schema)


def record_from(model: type[Record], row: Mapping[str, Any]) -> Record:
    """The value that a row of columns stands for. Raises ValueError (pydantic's) where it is none."""
    return model.model_validate(_plain(model, row))


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
