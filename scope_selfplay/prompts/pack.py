"""A prompt pack: its domain.yaml, validated key by key and laid over the domain that it extends, and its prompts.

The hash of a resolved pack covers the resolved domain.yaml (its values, without the domain's name and comments) and
every role's whole file with `\n` line ends, so it changes exactly when a prompt or a setting does, wherever the pack
lies.
"""

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from scope_selfplay.base.errors import Finding, PromptError, did_you_mean
from scope_selfplay.base.text import frame_of, framed
from scope_selfplay.base.values import DEFAULT_GATES, CorpusReader, Gate, Value
from scope_selfplay.prompts import file as template
from scope_selfplay.prompts.file import Prompt
from scope_selfplay.prompts.roles import (
    ABSENT,
    CONTRACTS,
    POLICY_ROLES,
    UNTRUSTED,
    Output,
    PromptRole,
    YamlMapping,
    listed,
)

DOMAIN_FILE = "domain.yaml"
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
"""A domain's name is a DNS label, because it names a ConfigMap too."""


class JudgeKind(StrEnum):
    MODEL = "model"
    LEXICAL = "lexical"


class TaskType(Value):
    """One kind of task. `weight` is its share among the enabled ones (any positive number)."""

    name: str
    description: str
    weight: float = 1.0
    enabled: bool = True
    answer: str = Field(default="", exclude_if=lambda form: not form)
    """`span`: a few words of the document; else in the policy's own."""


class Domain(Value):
    """A resolved domain.yaml; `search_turns` maps a number of searches to its share (paper: 4:3:2)."""

    name: str
    title: str
    task_types: tuple[TaskType, ...]
    search_turns: dict[int, int] = Field(default_factory=lambda: {1: 4, 2: 3, 3: 2})
    gates: tuple[Gate, ...] = DEFAULT_GATES
    judge: JudgeKind = JudgeKind.MODEL
    corpus: str = ""
    corpus_reader: CorpusReader | None = None
    language: str = ""
    examples: tuple[str, ...] = ()


_YOUNG = ("language", "examples")
"""Keys without which a pack has the hash that it had before there were any."""
_Text = Annotated[str, Field(pattern=r"\S")]
_Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
_TaskTypeName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]


class TaskTypeEntry(BaseModel):
    """What domain.yaml may say about one task type; a key that is left out is inherited."""

    model_config = ConfigDict(extra="forbid", strict=True)

    description: _Text = ""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    enabled: bool = True
    answer: Literal["", "span"] = ""


class DomainFile(BaseModel):
    """What one domain.yaml may say; a key that is left out is inherited."""

    model_config = ConfigDict(extra="forbid", strict=True)

    title: _Text = ""
    extends: _Name = ""
    task_types: dict[_TaskTypeName, TaskTypeEntry] = {}
    search_turns: Annotated[
        dict[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)]], Field(min_length=1)
    ] = {1: 1}
    gates: list[Annotated[Gate, Field(strict=False)]] = []
    judge: Annotated[JudgeKind, Field(strict=False)] = JudgeKind.MODEL
    corpus: _Text = ""
    corpus_reader: Annotated[CorpusReader, Field(strict=False)] = CorpusReader.JSONL
    language: _Text = ""
    examples: list[_Text] = []
    name: _Name = ""


KEYS = tuple(DomainFile.model_fields)
TASK_TYPE_KEYS = tuple(TaskTypeEntry.model_fields)

_DOMAIN_NAME = "the name of a domain: small letters, digits and hyphens"
_EXPECTED: Mapping[str, str] = {
    "title": "a line of text",
    "corpus": "a line of text",
    "language": "a language, such as German",
    "examples": "a list of tasks",
    "examples.*": "a task as it should be written",
    "name": _DOMAIN_NAME,
    "extends": _DOMAIN_NAME,
    "judge": f"one of {listed(JudgeKind)}",
    "corpus_reader": f"one of {listed(CorpusReader)}",
    "gates": f"a list such as [{listed(DEFAULT_GATES)}]",
    "gates.*": f"one of {listed(Gate)}",
    "search_turns": "turns and shares, such as {1: 4, 2: 3, 3: 2}",
    "search_turns.*": "a share that is a whole number from 0 on",
    "search_turns.*.[key]": "a number of search turns that is a whole number from 1 on",
    "task_types": f"names, each with {listed(TASK_TYPE_KEYS)}",
    "task_types.*": f"{listed(TASK_TYPE_KEYS)} below it",
    "task_types.*.[key]": "a name of small letters, digits and _",
    "task_types.*.description": "one or two sentences",
    "task_types.*.weight": "a number above 0 (or `enabled: false`)",
    "task_types.*.enabled": "true or false",
    "task_types.*.answer": "span (or leave it out)",
}
"""What is expected at each place of a domain.yaml; `*` is any item or name."""
_WORDS: Mapping[str, Iterable[str]] = {"judge": JudgeKind, "corpus_reader": CorpusReader, "gates.*": Gate}


def check_domain(mapping: YamlMapping, inherited_types: Sequence[str]) -> list[Finding]:
    """What is wrong in one domain.yaml; `inherited_types` are the task types of those that it extends."""
    try:
        DomainFile.model_validate(mapping.values)
        problems = []
    except ValidationError as error:
        problems = [_problem(mapping, details) for details in error.errors()]
    problems += _joint_problems(mapping, inherited_types)
    return sorted(problems, key=lambda problem: int(problem.where.rpartition(":")[2]))


def _problem(mapping: YamlMapping, error: ErrorDetails) -> Finding:
    path = error["loc"]
    place = ".".join("*" if depth == 1 else str(part) for depth, part in enumerate(path))
    if error["type"] in ("extra_forbidden", "invalid_key"):
        known = KEYS if len(path) == 1 else TASK_TYPE_KEYS
        where = f" in {'.'.join(map(str, path[:-1]))}" if path[1:] else ""
        message = f"has the unknown key {path[-1]}{where}; it may have {listed(known)}"
        return mapping.problem(f"{message}{did_you_mean(path[-1], known)}", *path)
    value, words = error["input"], _WORDS.get(place, ())
    name = ".".join(str(part) for part in path if part != "[key]")
    message = f"gives {name} as {value!r}; expected {_EXPECTED[place]}{did_you_mean(value, words)}"
    return mapping.problem(message, *path)


def _joint_problems(mapping: YamlMapping, inherited_types: Sequence[str]) -> Iterator[Finding]:
    """What no single value shows: repeated gates, shares that are all 0, task types without a description."""
    named = mapping.values.get("gates")
    gates = named if isinstance(named, list) else []
    for index, gate in enumerate(gates):
        if gate in gates[:index]:
            yield mapping.problem(f"names the gate {gate} twice; keep one", "gates", index)
    ratio = _mapping(mapping.values.get("search_turns"))
    if ratio and all(share == 0 for share in ratio.values()):
        yield mapping.problem(
            "gives every number of search turns the share 0; raise one of them", "search_turns"
        )
    for name, fields in _mapping(mapping.values.get("task_types")).items():
        if isinstance(fields, dict) and "description" not in fields and name not in inherited_types:
            message = f"has the unknown task type {name}, without a description"
            hint = did_you_mean(name, inherited_types)
            yield mapping.problem(f"{message}; a new one needs a description{hint}", "task_types", name)


def merge_domains(chain: Sequence[YamlMapping], name: str) -> Domain | Finding:
    """Lay the checked files of `chain` (the domain first, then what it extends) over each other."""
    values: dict[str, object] = {}
    types: dict[str, dict[str, object]] = {}
    for mapping in reversed(chain):
        values |= {str(key): mapping.values[key] for key in mapping.values if key not in ("extends", "name")}
        for kind, fields in _mapping(mapping.values.get("task_types")).items():
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


PromptValue = str | int | float | bool


class Pack(Value):
    """One domain with all that it inherits. Made by `load_pack`; a pack that exists has no mistakes."""

    domain: Domain
    prompts: tuple[Prompt, ...]

    @cached_property
    def hash(self) -> str:
        """The first 16 hex digits of the SHA-256 of the resolved pack."""
        unset = {key for key in _YOUNG if not getattr(self.domain, key)}
        domain = self.domain.model_dump(mode="json", exclude={"name", *unset})
        files = {prompt.role.file_name: prompt.text for prompt in self.prompts}
        canonical = json.dumps([domain, files], sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @property
    def roles(self) -> tuple[PromptRole, ...]:
        return tuple(prompt.role for prompt in self.prompts)

    def output_of(self, role: PromptRole) -> Output:
        """What the role's prompt asks for."""
        return next(own.output for own in self.prompts if own.role == role)

    def render(self, role: PromptRole, **values: PromptValue | None) -> str:
        """Put `values` into the role's text in one pass; they appear as given and are never read again.

        Callers give every input of the contract; a pack uses those it likes. An optional input of `ABSENT`
        may be left out or None. Raises PromptError when the pack has no such role, TypeError when an input is
        foreign or lacking.
        """
        prompt, contract = next((own for own in self.prompts if own.role == role), None), CONTRACTS[role]
        if prompt is None:
            advice = f"add {role.file_name}, or extend a pack that has it"
            raise PromptError(f"the prompt pack {self.domain.name} has no {role} prompt; {advice}")
        absent = {name: ABSENT[name] for name in contract.optional if name in ABSENT}
        given = absent | {name: value for name, value in values.items() if value is not None}
        foreign = values.keys() - set(contract.inputs)
        lacking = set(prompt.uses) - given.keys()
        if foreign or lacking:
            raise TypeError(
                f"{role} prompt: foreign inputs {sorted(foreign)}, lacking inputs {sorted(lacking)}"
            )
        if role in POLICY_ROLES:
            own_lines = frame_of(prompt.body)
            for name, value in given.items():
                if name in UNTRUSTED and isinstance(value, str):
                    given[name] = framed(value, own_lines)
        return template.render(prompt.body, given)

    def own_lines(self, role: PromptRole) -> Callable[[str], bool] | None:
        """Whether a line in its plain form is one of the role's prompt; None where the pack has no such role."""
        return next((frame_of(own.body) for own in self.prompts if own.role == role), None)

    def files(self) -> dict[str, str]:
        """The resolved pack as file name -> text; a folder of these loads on its own, with the same hash."""
        contents = _contents(self)
        return contents | {DOMAIN_FILE: f"name: {self.domain.name}\n{contents[DOMAIN_FILE]}"}


def diff_packs(a: Pack, b: Pack) -> str:
    """What changed from `a` to `b`, as one unified diff over all files; empty when both say the same."""
    before, after = _contents(a), _contents(b)
    parts: list[str] = []
    for name in dict.fromkeys((*before, *after)):
        parts += difflib.unified_diff(
            before.get(name, "").splitlines(),
            after.get(name, "").splitlines(),
            f"{a.domain.name}/{name}",
            f"{b.domain.name}/{name}",
            lineterm="",
        )
    return "\n".join(parts)


def _contents(pack: Pack) -> dict[str, str]:
    """The resolved files without the domain's name, which belongs to a pack's place and not to its contents."""
    import yaml

    domain = pack.domain
    values = domain.model_dump(mode="json", exclude={"name", "task_types", "search_turns"})
    values["search_turns"] = dict(sorted(domain.search_turns.items()))
    values["task_types"] = {
        kind.name: kind.model_dump(mode="json", exclude={"name"}) for kind in domain.task_types
    }
    for key in ("corpus", "corpus_reader", *_YOUNG):
        if not values[key]:
            del values[key]
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110)
    return {DOMAIN_FILE: text} | {prompt.role.file_name: prompt.text for prompt in pack.prompts}
