"""From the files of a domain and of those that it extends to one pack, or to all that is wrong with them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from scope_selfplay.prompts.contracts import GATE_ROLES, POLICY_ROLES, PromptRole
from scope_selfplay.prompts.domain import DOMAIN_FILE, Domain, JudgeKind, check_domain, merge_domains
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.problems import PackProblem, YamlMapping, did_you_mean, read_mapping
from scope_selfplay.prompts.prompt_file import Checking, Prompt, claimed_role, read_prompt

KUSTOMIZATION_FILE = "kustomization.yaml"
ROLE_FILES = {role.file_name: role for role in PromptRole}
_FREE_FILES = (KUSTOMIZATION_FILE, "README.md")


class Layer(NamedTuple):
    """One folder as it was read: `label` is its path as the user wrote it, `name` the domain."""

    label: str
    name: str
    files: Mapping[str, bytes]
    folders: tuple[str, ...] = ()

    def path(self, file_name: str) -> str:
        return f"{self.label}/{file_name}"


class Resolution(NamedTuple):
    """`pack` is None exactly when there are problems; they come in the order in which to mend them."""

    pack: Pack | None
    problems: tuple[PackProblem, ...]


class _Texts(NamedTuple):
    """One layer's decoded text files."""

    layer: Layer
    texts: dict[str, str]


def resolve(layers: Sequence[Layer], checking: Checking) -> Resolution:
    """`layers` are the domain itself, then what it extends, nearest first; at least one."""
    problems: list[PackProblem] = []
    decoded = []
    for layer in layers:
        problems += _foreign_files(layer)
        texts, broken = _decode(layer)
        problems += broken
        decoded.append(_Texts(layer, texts))
    domain, wrong = _resolve_domain(decoded)
    problems += wrong
    prompts, wrong = _resolve_prompts(decoded, domain, checking)
    problems += wrong
    # Last: what the cluster misses is no fault of the texts, and a copied folder always has one here.
    for item in decoded:
        problems += _kustomization_problems(item)
    if problems or domain is None:
        return Resolution(None, tuple(problems))
    return Resolution(Pack(domain=domain, prompts=prompts), ())


def with_listed(kustomization: str, name: str) -> str:
    """The text of a sound kustomization.yaml, with one more file in its ConfigMap after the last."""
    marked = read_mapping(kustomization, KUSTOMIZATION_FILE)
    assert isinstance(marked, YamlMapping), marked
    generators = marked.values["configMapGenerator"]
    assert isinstance(generators, list)
    last = marked.line("configMapGenerator", 0, "files", len(generators[0]["files"]) - 1)
    lines = kustomization.split("\n")
    indent = lines[last - 1].partition("-")[0]
    return "\n".join([*lines[:last], f"{indent}- {name}", *lines[last:]])


def _foreign_files(layer: Layer) -> Iterator[PackProblem]:
    known = (DOMAIN_FILE, *ROLE_FILES, *_FREE_FILES)
    for name in sorted(layer.files):
        if name in known:
            continue
        role = claimed_role(layer.files[name].decode("utf-8", errors="replace"))
        if role is not None and role.file_name in layer.files:
            message = f"says that it is the {role} prompt too, and {role.file_name} is the one that counts"
            yield PackProblem(layer.path(name), 1, f"{message}; merge the two, or move this one away")
            continue
        hint = did_you_mean(role.file_name if role else name, known)
        message = f"is no file of a prompt pack; rename it to a role's file or move it away{hint}"
        yield PackProblem(layer.path(name), 1, message)
    for name in layer.folders:
        yield PackProblem(
            layer.path(name), 1, "is a folder; a prompt pack is one flat folder, so move it away"
        )


def _decode(layer: Layer) -> tuple[dict[str, str], list[PackProblem]]:
    texts, problems = {}, []
    for name in (DOMAIN_FILE, *ROLE_FILES, *_FREE_FILES):
        content = layer.files.get(name)
        if content is None:
            continue
        try:
            texts[name] = content.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            message = f"is not UTF-8: byte {content[error.start]:#04x}; save the file as UTF-8"
            problems.append(PackProblem(layer.path(name), line, message))
    return texts, problems


def _resolve_domain(decoded: Sequence[_Texts]) -> tuple[Domain | None, list[PackProblem]]:
    """Checked from the far end, so that a domain knows the task types that it inherits."""
    problems: list[PackProblem] = []
    chain: list[YamlMapping] = []
    inherited: list[str] = []
    for layer, texts in reversed(decoded):
        if DOMAIN_FILE not in texts:
            if DOMAIN_FILE not in layer.files:
                advice = "add one with a title and task_types, or with a title and `extends: <domain>`"
                problems.append(PackProblem(layer.path(DOMAIN_FILE), 1, f"is missing; {advice}"))
            continue
        marked = read_mapping(texts[DOMAIN_FILE], layer.path(DOMAIN_FILE))
        if isinstance(marked, PackProblem):
            problems.append(marked)
            continue
        problems += check_domain(marked, inherited)
        types = marked.values.get("task_types")
        inherited += [str(name) for name in types] if isinstance(types, dict) else []
        chain.insert(0, marked)
    if problems or len(chain) < len(decoded):
        return None, problems
    domain = merge_domains(chain, decoded[0].layer.name)
    return (None, [domain]) if isinstance(domain, PackProblem) else (domain, [])


def _resolve_prompts(
    decoded: Sequence[_Texts], domain: Domain | None, checking: Checking
) -> tuple[tuple[Prompt, ...], list[PackProblem]]:
    prompts, problems = [], []
    lexical = domain is not None and domain.judge is JudgeKind.LEXICAL
    for role in PromptRole:
        holder = next((item for item in decoded if role.file_name in item.layer.files), None)
        if holder is None:
            if domain is not None and _is_needed(role, domain):
                message = f"is missing: {_reason(role)}; add it, or extend a domain that has it"
                problems.append(PackProblem(decoded[0].layer.path(role.file_name), 1, message))
            continue
        if role.file_name not in holder.texts:
            continue
        taught = lexical and role in POLICY_ROLES
        file = holder.layer.path(role.file_name)
        prompt, wrong = read_prompt(
            role, holder.texts[role.file_name], file, checking._replace(taught=taught)
        )
        prompts.append(prompt)
        problems += wrong
    return tuple(prompts), problems


def _is_needed(role: PromptRole, domain: Domain) -> bool:
    """A lexical judge reads no prompts; a gate's file is needed where the gate is in use."""
    if role in POLICY_ROLES:
        return True
    if domain.judge is JudgeKind.LEXICAL:
        return False
    return role not in GATE_ROLES or GATE_ROLES[role] in domain.gates


def _reason(role: PromptRole) -> str:
    if role in GATE_ROLES:
        return f"domain.yaml has the gate {GATE_ROLES[role]} in use"
    return "every pack has one" if role in POLICY_ROLES else "a model judge needs one"


def _kustomization_problems(item: _Texts) -> Iterator[PackProblem]:
    """A file that kustomization.yaml forgets is missing in the cluster, where nobody looks first."""
    if KUSTOMIZATION_FILE not in item.texts:
        return
    marked = read_mapping(item.texts[KUSTOMIZATION_FILE], item.layer.path(KUSTOMIZATION_FILE))
    if isinstance(marked, PackProblem):
        yield marked
        return
    generators = marked.values.get("configMapGenerator")
    first = generators[0] if isinstance(generators, list) and generators else None
    listed = first.get("files") if isinstance(first, dict) else None
    if not isinstance(first, dict) or not isinstance(listed, list):
        yield marked.problem("lists no files; expected configMapGenerator with a name and files")
        return
    expected = f"prompts-{item.layer.name}"
    if first.get("name") != expected:
        message = f"names its ConfigMap {first.get('name')}; expected {expected}"
        yield marked.problem(message, "configMapGenerator", 0, "name")
    options = marked.values.get("generatorOptions")
    if not isinstance(options, dict) or options.get("disableNameSuffixHash") is not True:
        advice = "add generatorOptions with `disableNameSuffixHash: true`, because pods mount it by its name"
        yield marked.problem(f"gives its ConfigMap a name that changes; {advice}", "generatorOptions")
    held = [name for name in (DOMAIN_FILE, *ROLE_FILES) if name in item.layer.files]
    for index, name in enumerate(listed):
        if name in listed[:index]:
            yield marked.problem(f"lists {name} twice; keep one", "configMapGenerator", 0, "files", index)
        elif name not in held:
            message = f"lists {name}, which the folder has not; take it out or add the file"
            yield marked.problem(message, "configMapGenerator", 0, "files", index)
    for name in held:
        if name not in listed:
            message = f"does not list {name}; add it under files, or the cluster will not have it"
            yield marked.problem(message, "configMapGenerator", 0, "files")
