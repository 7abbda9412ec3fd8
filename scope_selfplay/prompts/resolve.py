"""From the folders of a domain and of those that it extends to one pack, or to all that is wrong with them.

`resolve` makes the pack; `origins` tells for every file, key and task type the folder that it comes from.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from scope_selfplay.errors import did_you_mean
from scope_selfplay.prompts.contracts import GATE_ROLES, POLICY_ROLES, PromptRole
from scope_selfplay.prompts.domain import DOMAIN_FILE, KEYS, Domain, JudgeKind, check_domain, merge_domains
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.problems import PackProblem, YamlMapping, read_mapping
from scope_selfplay.prompts.prompt_file import CountTokens, Prompt, claimed_role, read_prompt

KUSTOMIZATION_FILE = "kustomization.yaml"
_PACK_FILES = (DOMAIN_FILE, *(role.file_name for role in PromptRole))
_KNOWN_FILES = (*_PACK_FILES, KUSTOMIZATION_FILE, "README.md")


@dataclass(frozen=True)
class Layer:
    """One folder as it was read: `label` is its path as the user wrote it, `name` the domain."""

    label: str
    name: str
    files: Mapping[str, bytes]
    folders: tuple[str, ...] = ()

    def path(self, file_name: str) -> str:
        return f"{self.label}/{file_name}"

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """The known files that are UTF-8, with `\\n` line ends."""
        texts = {}
        for name in _KNOWN_FILES:
            if name in self.files:
                with suppress(UnicodeDecodeError):
                    texts[name] = self.files[name].decode("utf-8-sig").replace("\r\n", "\n")
        return texts

    @cached_property
    def domain_file(self) -> YamlMapping | PackProblem | None:
        """None where domain.yaml is absent or not UTF-8."""
        text = self.texts.get(DOMAIN_FILE)
        return None if text is None else read_mapping(text, self.path(DOMAIN_FILE))


def resolve(layers: Sequence[Layer], count_tokens: CountTokens) -> tuple[Pack | None, list[PackProblem]]:
    """The pack, or None and what is wrong, in the order in which to correct it.

    `layers` are the domain itself, then what it extends, nearest first; at least one.
    """
    problems = [problem for layer in layers for problem in _file_problems(layer)]
    domain, domain_problems = _resolve_domain(layers)
    prompts, prompt_problems = _resolve_prompts(layers, domain, count_tokens)
    problems += [*domain_problems, *prompt_problems]
    # Last: these mistakes are not in the texts, and a copied folder always has one.
    problems += [problem for layer in layers for problem in _kustomization_problems(layer)]
    pack = None if problems or domain is None else Pack(domain=domain, prompts=prompts)
    return pack, problems


def _file_problems(layer: Layer) -> Iterator[PackProblem]:
    """Files and folders that a pack does not have, and files that are not UTF-8."""
    for name in sorted(layer.files):
        if name in _KNOWN_FILES:
            continue
        role = claimed_role(layer.files[name].decode("utf-8", errors="replace"))
        if role is not None and role.file_name in layer.files:
            message = f"says that it is the {role} prompt too, and {role.file_name} is the one that counts"
            yield PackProblem(layer.path(name), 1, f"{message}; merge the two, or move this one away")
            continue
        hint = did_you_mean(role.file_name if role else name, _KNOWN_FILES)
        message = f"is not a file of a prompt pack; rename it to a role's file or move it away{hint}"
        yield PackProblem(layer.path(name), 1, message)
    for name in layer.folders:
        yield PackProblem(
            layer.path(name), 1, "is a folder; a prompt pack is one flat folder, so move it away"
        )
    for name in _KNOWN_FILES:
        content = layer.files.get(name, b"")
        try:
            content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            message = f"is not UTF-8: byte {content[error.start]:#04x}; save the file as UTF-8"
            yield PackProblem(layer.path(name), line, message)


def _resolve_domain(layers: Sequence[Layer]) -> tuple[Domain | None, list[PackProblem]]:
    """Checked from the far end, so that a domain knows the task types that it inherits."""
    problems: list[PackProblem] = []
    chain: list[YamlMapping] = []
    inherited: list[str] = []
    for layer in reversed(layers):
        mapping = layer.domain_file
        if isinstance(mapping, YamlMapping):
            problems += check_domain(mapping, inherited)
            types = mapping.values.get("task_types")
            inherited += [str(name) for name in types] if isinstance(types, dict) else []
            chain.insert(0, mapping)
        elif mapping is not None:
            problems.append(mapping)
        elif DOMAIN_FILE not in layer.files:
            advice = "add one with a title and task_types, or with a title and `extends: <domain>`"
            problems.append(PackProblem(layer.path(DOMAIN_FILE), 1, f"is missing; {advice}"))
    if problems or len(chain) < len(layers):
        return None, problems
    domain = merge_domains(chain, layers[0].name)
    return (None, [domain]) if isinstance(domain, PackProblem) else (domain, [])


def _resolve_prompts(
    layers: Sequence[Layer], domain: Domain | None, count_tokens: CountTokens
) -> tuple[tuple[Prompt, ...], list[PackProblem]]:
    prompts, problems = [], []
    lexical = domain is not None and domain.judge is JudgeKind.LEXICAL
    for role in PromptRole:
        layer = next((layer for layer in layers if role.file_name in layer.files), None)
        if layer is None:
            if domain is not None and (need := _need(role, domain)):
                message = f"is missing: {need}; add it, or extend a domain that has it"
                problems.append(PackProblem(layers[0].path(role.file_name), 1, message))
        elif role.file_name in layer.texts:
            prompt, wrong = read_prompt(
                role,
                layer.texts[role.file_name],
                layer.path(role.file_name),
                count_tokens=count_tokens,
                taught=lexical and role in POLICY_ROLES,
            )
            prompts.append(prompt)
            problems += wrong
    return tuple(prompts), problems


def _need(role: PromptRole, domain: Domain) -> str:
    """Why the domain needs the role's prompt; empty where it does not."""
    if role in POLICY_ROLES:
        return "every pack has one"
    if domain.judge is JudgeKind.LEXICAL:
        return ""
    if role not in GATE_ROLES:
        return "a model judge needs one"
    gate = GATE_ROLES[role]
    return f"domain.yaml has the gate {gate} in use" if gate in domain.gates else ""


def _kustomization_problems(layer: Layer) -> Iterator[PackProblem]:
    """A file that kustomization.yaml does not list is missing in the cluster, where it is found late."""
    if KUSTOMIZATION_FILE not in layer.texts:
        return
    mapping = read_mapping(layer.texts[KUSTOMIZATION_FILE], layer.path(KUSTOMIZATION_FILE))
    if isinstance(mapping, PackProblem):
        yield mapping
        return
    generators = mapping.values.get("configMapGenerator")
    first = generators[0] if isinstance(generators, list) and generators else None
    listed = first.get("files") if isinstance(first, dict) else None
    if not isinstance(first, dict) or not isinstance(listed, list):
        yield mapping.problem("lists no files; expected configMapGenerator with a name and files")
        return
    expected = f"prompts-{layer.name}"
    if first.get("name") != expected:
        message = f"names its ConfigMap {first.get('name')}; expected {expected}"
        yield mapping.problem(message, "configMapGenerator", 0, "name")
    options = mapping.values.get("generatorOptions")
    if not isinstance(options, dict) or options.get("disableNameSuffixHash") is not True:
        advice = "add generatorOptions with `disableNameSuffixHash: true`, because pods mount it by its name"
        yield mapping.problem(f"gives its ConfigMap a name that changes; {advice}", "generatorOptions")
    files = ("configMapGenerator", 0, "files")
    held = [name for name in _PACK_FILES if name in layer.files]
    for index, name in enumerate(listed):
        if name in listed[:index]:
            yield mapping.problem(f"lists {name} twice; keep one", *files, index)
        elif name not in held:
            message = f"lists {name}, which the folder has not; take it out or add the file"
            yield mapping.problem(message, *files, index)
    for name in held:
        if name not in listed:
            message = f"does not list {name}; add it under files, or the cluster will not have it"
            yield mapping.problem(message, *files)


@dataclass(frozen=True)
class Origin:
    """`what` is a file, a key of domain.yaml or `task_types.<name>`; `place` is empty where no file sets it."""

    what: str
    place: str
    reason: str


def origins(layers: Sequence[Layer], domain: Domain) -> list[Origin]:
    """`layers` as `resolve` takes them, without mistakes; `domain` is what they resolve to."""
    return [*_key_origins(layers), *_file_origins(layers, domain)]


def _key_origins(layers: Sequence[Layer]) -> Iterator[Origin]:
    mappings = [(layer, layer.domain_file) for layer in layers]
    files = [(layer, mapping) for layer, mapping in mappings if isinstance(mapping, YamlMapping)]
    for key in KEYS:
        if key in ("extends", "name", "task_types"):
            continue
        holder = next(((layer, mapping) for layer, mapping in files if key in mapping.values), None)
        if holder is None:
            yield Origin(key, "", "the default")
        else:
            layer, mapping = holder
            yield Origin(key, f"{mapping.file}:{mapping.line(key)}", _ownership(layers, layer))
    types: dict[str, list[tuple[Layer, YamlMapping]]] = {}
    for layer, mapping in reversed(files):
        named = mapping.values.get("task_types")
        for name in named if isinstance(named, dict) else ():
            types.setdefault(str(name), []).insert(0, (layer, mapping))
    for name, holders in types.items():
        layer, mapping = holders[0]
        reason = _ownership(layers, layer)
        if len(holders) > 1:
            reason += f", over {', '.join(holder.name for holder, _ in holders[1:])}"
        yield Origin(f"task_types.{name}", f"{mapping.file}:{mapping.line('task_types', name)}", reason)


def _file_origins(layers: Sequence[Layer], domain: Domain) -> Iterator[Origin]:
    for role in PromptRole:
        holders = [layer for layer in layers if role.file_name in layer.files]
        if not holders:
            unread = domain.judge is JudgeKind.LEXICAL and role not in POLICY_ROLES
            reason = "a lexical judge reads no prompts" if unread else "its gate is not in use"
            yield Origin(role.file_name, "", f"not needed: {reason}")
            continue
        reason = _ownership(layers, holders[0])
        if len(holders) > 1:
            reason += f", instead of that of {holders[1].name}"
        if role in GATE_ROLES and GATE_ROLES[role] not in domain.gates:
            reason += f"; unused: the gate {GATE_ROLES[role]} is not in use"
        yield Origin(role.file_name, holders[0].path(role.file_name), reason)


def _ownership(layers: Sequence[Layer], holder: Layer) -> str:
    return "own" if holder is layers[0] else f"inherited from {holder.name}"
