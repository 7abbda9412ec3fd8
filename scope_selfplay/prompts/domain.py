"""domain.yaml: what a domain asks for, checked key by key and laid over the domain that it extends."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

from pydantic import Field

from scope_selfplay.prompts.problems import PackProblem, YamlMapping, did_you_mean, listed
from scope_selfplay.schemas import CorpusReader, Gate, Value

DOMAIN_FILE = "domain.yaml"
KEYS = ("title", "extends", "task_types", "search_turns", "gates", "judge", "corpus", "corpus_reader", "name")
TASK_TYPE_KEYS = ("description", "weight", "enabled")
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
"""A domain's name is a DNS label, because it names a ConfigMap too."""
_TASK_TYPE_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)


class JudgeKind(StrEnum):
    MODEL = "model"
    LEXICAL = "lexical"


class TaskType(Value):
    """One kind of task. `weight` is its share among the enabled ones (any positive number)."""

    name: str
    description: str
    weight: float = 1.0
    enabled: bool = True

    @property
    def words(self) -> str:
        """The name as a prompt shows it."""
        return self.name.replace("_", " ")


class Domain(Value):
    """A resolved domain.yaml; `search_turns` maps a number of searches to its share (paper: 4:3:2)."""

    name: str
    title: str
    task_types: tuple[TaskType, ...]
    search_turns: dict[int, int] = Field(default_factory=lambda: {1: 4, 2: 3, 3: 2})
    gates: tuple[Gate, ...] = (Gate.ENTITY, Gate.SOURCE)
    judge: JudgeKind = JudgeKind.MODEL
    corpus: str = ""
    corpus_reader: CorpusReader | None = None

    @property
    def enabled_task_types(self) -> tuple[TaskType, ...]:
        return tuple(kind for kind in self.task_types if kind.enabled)


def extended_domain(marked: YamlMapping) -> str | None:
    """The domain that this file extends, or None; a name that is none is left to `check_domain`."""
    extends = marked.values.get("extends")
    return extends if isinstance(extends, str) and NAME.fullmatch(extends) else None


def check_domain(marked: YamlMapping, inherited_types: Sequence[str]) -> list[PackProblem]:
    """What is wrong in one domain.yaml; `inherited_types` are the task types of those that it extends."""
    problems = [
        marked.problem(f"has the unknown key {key}; it may have {listed(KEYS)}{did_you_mean(key, KEYS)}", key)
        for key in marked.values
        if key not in KEYS
    ]
    for key, check in _CHECKS.items():
        if key in marked.values:
            problems += check(marked, key)
    if "task_types" in marked.values:
        problems += _task_type_problems(marked, inherited_types)
    return problems


def merge_domains(chain: Sequence[YamlMapping], name: str) -> Domain | PackProblem:
    """Lay the checked files of `chain` (the domain first, then what it extends) over each other."""
    values: dict[str, object] = {}
    types: dict[str, dict[str, object]] = {}
    for marked in reversed(chain):
        values |= {str(key): marked.values[key] for key in marked.values if key not in ("extends", "name")}
        for kind, fields in _mapping(marked.values.get("task_types")).items():
            types[str(kind)] = types.get(str(kind), {}) | {str(k): v for k, v in _mapping(fields).items()}
    own = chain[0]
    if "title" not in values:
        return own.problem("has no title; add a line such as `title: Product support`")
    if not any(fields.get("enabled", True) for fields in types.values()):
        return own.problem("enables no task type; add one with a description under task_types", "task_types")
    task_types = [{"name": kind, **fields} for kind, fields in types.items()]
    return Domain.model_validate(
        values | {"name": own.values.get("name", name), "task_types": tuple(task_types)}
    )


def _mapping(value: object) -> dict[object, object]:
    return value if isinstance(value, dict) else {}


def _text(marked: YamlMapping, key: str) -> Iterator[PackProblem]:
    value = marked.values[key]
    if not isinstance(value, str) or not value.strip():
        yield marked.problem(f"gives {key} as {value!r}; expected a line of text", key)


def _name(marked: YamlMapping, key: str) -> Iterator[PackProblem]:
    value = marked.values[key]
    if not isinstance(value, str) or not NAME.fullmatch(value):
        yield marked.problem(
            f"gives {key} as {value!r}; expected the name of a domain: small letters, digits and hyphens", key
        )


def _one_of(kinds: type[StrEnum]) -> Callable[[YamlMapping, str], Iterator[PackProblem]]:
    def check(marked: YamlMapping, key: str) -> Iterator[PackProblem]:
        value = marked.values[key]
        if value not in list(kinds):
            message = f"gives {key} as {value!r}; expected one of {listed(list(kinds))}"
            yield marked.problem(f"{message}{did_you_mean(value, kinds)}", key)

    return check


def _gates(marked: YamlMapping, key: str) -> Iterator[PackProblem]:
    gates = marked.values[key]
    if not isinstance(gates, list):
        yield marked.problem(f"gives gates as {gates!r}; expected a list such as [entity, source]", key)
        return
    for index, gate in enumerate(gates):
        if gate not in list(Gate):
            message = (
                f"names the unknown gate {gate}; there are {listed(list(Gate))}{did_you_mean(gate, Gate)}"
            )
            yield marked.problem(message, key, index)
        elif gate in gates[:index]:
            yield marked.problem(f"names the gate {gate} twice; keep one", key, index)


def _search_turns(marked: YamlMapping, key: str) -> Iterator[PackProblem]:
    ratio = marked.values[key]
    if not isinstance(ratio, dict) or not ratio:
        yield marked.problem(
            f"gives search_turns as {ratio!r}; expected turns and shares, such as {{1: 4, 2: 3, 3: 2}}",
            key,
        )
        return
    for turns, share in ratio.items():
        if not _is_whole(turns) or turns < 1:
            message = f"gives a share to {turns!r} search turns; expected a whole number from 1 on"
            yield marked.problem(message, key, turns)
        if not _is_whole(share) or share < 0:
            message = f"gives {turns} search turns the share {share!r}; expected a whole number from 0 on"
            yield marked.problem(message, key, turns)
    if all(share == 0 for share in ratio.values()):
        yield marked.problem("gives every number of search turns the share 0; raise one", key)


_CHECKS: dict[str, Callable[[YamlMapping, str], Iterator[PackProblem]]] = {
    "title": _text,
    "corpus": _text,
    "name": _name,
    "extends": _name,
    "judge": _one_of(JudgeKind),
    "corpus_reader": _one_of(CorpusReader),
    "gates": _gates,
    "search_turns": _search_turns,
}


def _task_type_problems(marked: YamlMapping, inherited: Sequence[str]) -> Iterator[PackProblem]:
    types = marked.values["task_types"]
    if not isinstance(types, dict):
        yield marked.problem(
            f"gives task_types as {types!r}; expected names, each with {listed(TASK_TYPE_KEYS)}", "task_types"
        )
        return
    for name, fields in types.items():
        path = ("task_types", name)
        if not isinstance(name, str) or not _TASK_TYPE_NAME.fullmatch(name):
            yield marked.problem(f"has the task type {name!r}; use small letters, digits and _", *path)
        if not isinstance(fields, dict):
            message = f"gives the task type {name} as {fields!r}; expected {listed(TASK_TYPE_KEYS)} below it"
            yield marked.problem(message, *path)
            continue
        for key in fields:
            if key not in TASK_TYPE_KEYS:
                may_have = f"it may have {listed(TASK_TYPE_KEYS)}{did_you_mean(key, TASK_TYPE_KEYS)}"
                yield marked.problem(f"has the unknown key {key} in task type {name}; {may_have}", *path, key)
        yield from _task_type_values(marked, str(name), fields)
        if "description" not in fields and name not in inherited:
            others = did_you_mean(name, inherited)
            message = (
                f"has the unknown task type {name}, without a description; a new one needs a description"
            )
            yield marked.problem(f"{message}{others}", *path)


def _task_type_values(marked: YamlMapping, name: str, fields: dict[object, object]) -> Iterator[PackProblem]:
    description, weight, enabled = (fields.get(key) for key in TASK_TYPE_KEYS)
    path = ("task_types", name)
    if "description" in fields and not (isinstance(description, str) and description.strip()):
        message = f"gives task type {name} the description {description!r}; expected one or two sentences"
        yield marked.problem(message, *path, "description")
    if "weight" in fields and not _is_weight(weight):
        message = f"gives task type {name} the weight {weight!r}; expected a number above 0"
        yield marked.problem(f"{message} (or `enabled: false`)", *path, "weight")
    if "enabled" in fields and not isinstance(enabled, bool):
        message = f"gives task type {name} enabled as {enabled!r}; expected true or false"
        yield marked.problem(message, *path, "enabled")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_weight(value: object) -> bool:
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    return numeric and math.isfinite(value) and value > 0  # type: ignore[arg-type, operator]
