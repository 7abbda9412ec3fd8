"""Why a resolved pack says what it says: for every file, key and task type the folder that it comes from."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scope_selfplay.prompts.contracts import GATE_ROLES, POLICY_ROLES, PromptRole
from scope_selfplay.prompts.domain import DOMAIN_FILE, KEYS, Domain, JudgeKind
from scope_selfplay.prompts.problems import YamlMapping, read_mapping
from scope_selfplay.prompts.resolve import Layer

_OF_THE_FOLDER = ("extends", "name", "task_types")


class Origin(NamedTuple):
    """`what` is a file, a key of domain.yaml or `task_types.<name>`; `place` is empty where nothing says it."""

    what: str
    place: str
    reason: str


def origins(layers: Sequence[Layer], domain: Domain) -> list[Origin]:
    """`layers` as `resolve` takes them, without mistakes; `domain` is what they resolve to."""
    return [*_key_origins(layers), *_file_origins(layers, domain)]


def _key_origins(layers: Sequence[Layer]) -> Iterator[Origin]:
    said = [(layer, _domain_of(layer)) for layer in layers]
    for key in KEYS:
        if key in _OF_THE_FOLDER:
            continue
        holder = next(((layer, marked) for layer, marked in said if key in marked.values), None)
        if holder is None:
            yield Origin(key, "", "the default")
        else:
            layer, marked = holder
            yield Origin(key, f"{marked.file}:{marked.line(key)}", _reason(layers, layer))
    types: dict[str, list[tuple[Layer, YamlMapping]]] = {}
    for layer, marked in reversed(said):
        named = marked.values.get("task_types")
        for name in named if isinstance(named, dict) else ():
            types.setdefault(str(name), []).insert(0, (layer, marked))
    for name, holders in types.items():
        layer, marked = holders[0]
        reason = _reason(layers, layer)
        if len(holders) > 1:
            reason += f", over {', '.join(each.name for each, _ in holders[1:])}"
        yield Origin(f"task_types.{name}", f"{marked.file}:{marked.line('task_types', name)}", reason)


def _file_origins(layers: Sequence[Layer], domain: Domain) -> Iterator[Origin]:
    for role in PromptRole:
        holders = [layer for layer in layers if role.file_name in layer.files]
        if not holders:
            yield Origin(role.file_name, "", _unneeded(role, domain))
            continue
        reason = _reason(layers, holders[0])
        if len(holders) > 1:
            reason += f", instead of that of {holders[1].name}"
        if role in GATE_ROLES and GATE_ROLES[role] not in domain.gates:
            reason += f"; unused: the gate {GATE_ROLES[role]} is not in use"
        yield Origin(role.file_name, holders[0].path(role.file_name), reason)


def _reason(layers: Sequence[Layer], holder: Layer) -> str:
    return "own" if holder is layers[0] else f"inherited from {holder.name}"


def _unneeded(role: PromptRole, domain: Domain) -> str:
    if domain.judge is JudgeKind.LEXICAL and role not in POLICY_ROLES:
        return "not needed: a lexical judge reads no prompts"
    return "not needed: its gate is not in use"


def _domain_of(layer: Layer) -> YamlMapping:
    file = layer.path(DOMAIN_FILE)
    marked = read_mapping(layer.files[DOMAIN_FILE].decode("utf-8-sig"), file)
    assert isinstance(marked, YamlMapping), marked
    return marked
