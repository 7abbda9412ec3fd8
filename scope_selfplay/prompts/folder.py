"""Prompt packs on the disk: which folder a name means, and how it is read, checked and loaded.

A name with a slash (or `.`, `..`) is a folder. A bare name is a pack that ships with the package, else
`prompts/<name>` below the current folder. So a shipped name means the same texts wherever a command runs.
`extends` names a domain in the same parent folder, else one that ships: a user's pack needs no copy of what it
extends.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scope_selfplay.base.errors import Finding, PromptError, did_you_mean
from scope_selfplay.prompts.file import Prompt, claimed_role, read_prompt
from scope_selfplay.prompts.pack import (
    DOMAIN_FILE,
    KEYS,
    NAME,
    Domain,
    JudgeKind,
    Pack,
    check_domain,
    merge_domains,
)
from scope_selfplay.prompts.roles import (
    GATE_ROLES,
    POLICY_ROLES,
    PromptRole,
    YamlMapping,
    listed,
    read_mapping,
)

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
    def domain_file(self) -> YamlMapping | Finding | None:
        """None where domain.yaml is absent or not UTF-8."""
        text = self.texts.get(DOMAIN_FILE)
        return None if text is None else read_mapping(text, self.path(DOMAIN_FILE))


def _file_problems(layer: Layer) -> Iterator[Finding]:
    """Files and folders that a pack does not have, and files that are not UTF-8."""
    for name in sorted(layer.files):
        if name in _KNOWN_FILES:
            continue
        role = claimed_role(layer.files[name].decode("utf-8", errors="replace"))
        if role is not None and role.file_name in layer.files:
            message = f"says that it is the {role} prompt too, and {role.file_name} is the one that counts"
            yield Finding(f"{layer.path(name)}:1", f"{message}; merge the two, or move this one away")
            continue
        hint = did_you_mean(role.file_name if role else name, _KNOWN_FILES)
        message = f"is not a file of a prompt pack; rename it to a role's file or move it away{hint}"
        yield Finding(f"{layer.path(name)}:1", message)
    for name in layer.folders:
        message = "is a folder; a prompt pack is one flat folder, so move it away"
        yield Finding(f"{layer.path(name)}:1", message)
    for name in _KNOWN_FILES:
        content = layer.files.get(name, b"")
        try:
            content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            message = f"is not UTF-8: byte {content[error.start]:#04x}; save the file as UTF-8"
            yield Finding(f"{layer.path(name)}:{line}", message)


def _resolve_domain(layers: Sequence[Layer]) -> tuple[Domain | None, list[Finding]]:
    """Checked from the far end, so that a domain knows the task types that it inherits."""
    problems: list[Finding] = []
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
            problems.append(Finding(f"{layer.path(DOMAIN_FILE)}:1", f"is missing; {advice}"))
    if problems or len(chain) < len(layers):
        return None, problems
    domain = merge_domains(chain, layers[0].name)
    return (None, [domain]) if isinstance(domain, Finding) else (domain, [])


def _resolve_prompts(
    layers: Sequence[Layer], domain: Domain | None
) -> tuple[tuple[Prompt, ...], list[Finding]]:
    prompts, problems = [], []
    lexical = domain is not None and domain.judge is JudgeKind.LEXICAL
    for role in PromptRole:
        layer = next((layer for layer in layers if role.file_name in layer.files), None)
        if layer is None:
            if domain is not None and (need := _need(role, domain)):
                message = f"is missing: {need}; add it, or extend a domain that has it"
                problems.append(Finding(f"{layers[0].path(role.file_name)}:1", message))
        elif role.file_name in layer.texts:
            text, file, taught = layer.texts[role.file_name], layer.path(role.file_name), role in POLICY_ROLES
            prompt, wrong = read_prompt(role, text, file, taught=lexical and taught)
            prompts.append(prompt)
            problems += wrong
    return tuple(prompts), problems


def _need(role: PromptRole, domain: Domain) -> str:
    """Why the domain needs the role's prompt; empty where it does not."""
    if role is PromptRole.SOLVER_READING:
        return "a task type has answer: span" if any(kind.answer for kind in domain.task_types) else ""
    if role in POLICY_ROLES:
        return "every pack has one"
    if domain.judge is JudgeKind.LEXICAL or role is PromptRole.GUARD:
        return ""
    if role not in GATE_ROLES:
        return "a model judge needs one"
    gate = GATE_ROLES[role]
    return f"domain.yaml has the gate {gate} in use" if gate in domain.gates else ""


def _kustomization_problems(layer: Layer) -> Iterator[Finding]:
    """A file that kustomization.yaml does not list is missing in the cluster, where it is found late."""
    if KUSTOMIZATION_FILE not in layer.texts:
        return
    mapping = read_mapping(layer.texts[KUSTOMIZATION_FILE], layer.path(KUSTOMIZATION_FILE))
    if isinstance(mapping, Finding):
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


def _key_origins(layers: Sequence[Layer]) -> Iterator[Origin]:
    mappings = [(layer, layer.domain_file) for layer in layers]
    files = [(layer, mapping) for layer, mapping in mappings if isinstance(mapping, YamlMapping)]
    paths: dict[tuple[str, ...], list[tuple[Layer, YamlMapping]]] = {
        (key,): [each for each in files if key in each[1].values]
        for key in KEYS
        if key not in ("extends", "name", "task_types")
    }
    for layer, mapping in reversed(files):
        named = mapping.values.get("task_types")
        for name in named if isinstance(named, dict) else ():
            paths.setdefault(("task_types", str(name)), []).insert(0, (layer, mapping))
    for path, holders in paths.items():
        if not holders:
            yield Origin(path[0], "", "the default")
            continue
        layer, mapping = holders[0]
        below = ", ".join(holder.name for holder, _ in holders[1:] if path[1:])
        reason = _ownership(layers, layer) + (f", over {below}" if below else "")
        yield Origin(".".join(path), f"{mapping.file}:{mapping.line(*path)}", reason)


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


SHIPPED = (
    *("embedded", "math", "open-deepresearch", "open-travel", "open-writing"),
    *("short", "small", "support", "wikipedia"),
)
"""The packs that are the same for everybody; in a checkout, packs of one's own may lie beside them."""
OWN_PACKS = Path("prompts")
"""Where a bare name that does not ship is looked for, below the current folder."""


def pack_path(domain: str, mounted: Path | None = None) -> Path:
    """The folder of the pack that a user named. Raises PromptError when there is none.

    A pack below `mounted`, where a cluster puts its ConfigMaps, goes before one that ships.
    """
    if mounted is not None and domain in names_in(mounted):
        return mounted / domain
    if "/" in domain or domain in ("", ".", ".."):
        if domain and Path(domain).is_dir():
            return Path(domain)
        raise PromptError(
            f"{domain or 'an empty name'}: no such folder; give the folder of a prompt pack, or the bare name "
            "of one"
        )
    shipped = names_in(shipped_prompts())
    if domain in shipped:
        return shipped_prompts() / domain
    if (OWN_PACKS / domain).is_dir():
        return OWN_PACKS / domain
    known = sorted({*shipped, *names_in(OWN_PACKS)})
    here = f"; ./{domain} is a folder, so write ./{domain}" if Path(domain).is_dir() else ""
    raise PromptError(
        f"{domain}: no such prompt pack; there are {listed(known)}{did_you_mean(domain, known)}; a folder "
        f"elsewhere is given with a slash{here}"
    )


def shipped_prompts() -> Path:
    """`prompts/` of a checkout, or what an installed wheel holds of it."""
    package = Path(__file__).parent.parent
    checkout = package.parent / "prompts"
    # Beside an installed package lie other people's packages, one of which may be called prompts.
    return checkout if (checkout / "wikipedia" / DOMAIN_FILE).is_file() else package / "prompt_packs"


def names_in(folder: Path) -> list[str]:
    """The packs in a folder of packs, sorted."""
    return sorted(file.parent.name for file in folder.glob(f"*/{DOMAIN_FILE}"))


def load_pack(folder: Path | str) -> Pack:
    """The pack in `folder`, with all that it extends. Raises PromptError with the first of its problems."""
    pack, problems = _examine(Path(folder))
    if pack is None:
        others = f" (and {len(problems) - 1} more: `scope prompts check` shows all)"
        raise PromptError(f"{problems[0]}{others if len(problems) > 1 else ''}")
    return pack


def check_pack(folder: Path | str) -> list[Finding]:
    """Every problem of the pack in `folder`, in the order in which to correct them; empty when it loads."""
    return _examine(Path(folder))[1]


def pack_origins(folder: Path | str) -> list[Origin]:
    """Where everything in a pack comes from. Raises PromptError as `load_pack` does."""
    domain, layers = load_pack(folder).domain, _layers(Path(folder))
    assert not isinstance(layers, Finding), layers
    return [*_key_origins(layers), *_file_origins(layers, domain)]


def pack_folders(folder: Path | str) -> dict[str, Path]:
    """The folders of a pack and of all that it extends, by their names, nearest first. Raises PromptError."""
    layers = _layers(Path(folder))
    if isinstance(layers, Finding):
        raise PromptError(str(layers))
    return {layer.name: Path(layer.label) for layer in layers}


def extended_folder(parent: Path, name: str) -> Path | None:
    """The folder that `extends: name` means in a pack whose folder is in `parent`."""
    return next((packs / name for packs in (parent, shipped_prompts()) if (packs / name).is_dir()), None)


def extendable_names(parent: Path) -> list[str]:
    return sorted({*names_in(parent), *names_in(shipped_prompts())})


def _examine(folder: Path) -> tuple[Pack | None, list[Finding]]:
    """The pack, or None and what is wrong, in the order in which to correct it."""
    layers = _layers(folder)
    if isinstance(layers, Finding):
        return None, [layers]
    problems = [problem for layer in layers for problem in _file_problems(layer)]
    domain, domain_problems = _resolve_domain(layers)
    prompts, prompt_problems = _resolve_prompts(layers, domain)
    problems += [*domain_problems, *prompt_problems]
    # Last: these mistakes are not in the texts, and a copied folder always has one.
    problems += [problem for layer in layers for problem in _kustomization_problems(layer)]
    pack = None if problems or domain is None else Pack(domain=domain, prompts=prompts)
    return pack, problems


def _layers(folder: Path) -> list[Layer] | Finding:
    """The domain's folder, then what it extends, nearest first; a problem where that chain breaks."""
    placed = folder if folder.name not in ("", "..") else folder.resolve()
    if not placed.is_dir():
        known = names_in(placed.parent)
        there = f"; beside it are {', '.join(known)}{did_you_mean(placed.name, known)}" if known else ""
        return Finding(f"{folder.as_posix()}:1", f"is not a folder, so not a prompt pack{there}")
    layers, seen = [_read_layer(folder, placed.name)], [placed.resolve()]
    while isinstance(mapping := layers[-1].domain_file, YamlMapping):
        extends = mapping.values.get("extends")
        if not isinstance(extends, str) or not NAME.fullmatch(extends):
            break
        found = extended_folder(placed.parent, extends)
        if found is None:
            known = [name for name in extendable_names(placed.parent) if name != layers[-1].name]
            message = f"extends {extends}, which is not a folder beside it and does not ship"
            hint = did_you_mean(extends, known)
            return mapping.problem(f"{message}{hint}; add that domain, or correct the name", "extends")
        if found.resolve() in seen:
            circle = [path.name for path in seen[seen.index(found.resolve()) :]]
            path = " -> ".join([*circle, circle[0]])
            return mapping.problem(f"extends in a circle: {path}; take out one of these lines", "extends")
        placed = found
        seen.append(placed.resolve())
        layers.append(_read_layer(placed, extends))
    return layers


def _read_layer(folder: Path, name: str) -> Layer:
    """Hidden entries are left alone: a mounted ConfigMap keeps its versions in folders named `..*`."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    files = {entry.name: entry.read_bytes() for entry in entries if entry.is_file()}
    return Layer(folder.as_posix(), name, files, tuple(entry.name for entry in entries if entry.is_dir()))
