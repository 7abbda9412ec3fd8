"""`scope prompts new` and `own`: begin a pack of one's own, take an inherited prompt into it."""

from pathlib import Path

from scope_selfplay.errors import PromptError, did_you_mean
from scope_selfplay.gates import DEFAULT_GATES, Gate
from scope_selfplay.prompts.contracts import CONTRACTS, GATE_EXAMPLES, GATE_ROLES, INPUTS, OUTPUTS, PromptRole
from scope_selfplay.prompts.domain import DOMAIN_FILE, NAME
from scope_selfplay.prompts.folder import (
    SHIPPED,
    extendable_names,
    extended_folder,
    load_pack,
    names_in,
    shipped_prompts,
)
from scope_selfplay.prompts.problems import YamlMapping, listed, read_mapping
from scope_selfplay.prompts.resolve import KUSTOMIZATION_FILE


def new_pack(folder: Path | str, domain: str, extends: str | None = "wikipedia") -> list[Path]:
    """Begin `folder`/`domain`, extending another domain or with a blank of every file; returns its files.

    Raises PromptError for a name that is not valid or that a shipped pack has, a folder that exists, and an
    `extends` that does not.
    """
    target = Path(folder) / domain
    if not NAME.fullmatch(domain):
        raise PromptError(f"{domain!r} cannot name a domain; use small letters, digits and hyphens")
    if target.exists():
        raise PromptError(f"{target.as_posix()} exists already; choose another name, or edit it")
    if domain in names_in(shipped_prompts()):
        raise PromptError(
            f"{domain} is the name of a pack that ships; choose another, so that it stays plain"
        )
    if extends is not None and extended_folder(Path(folder), extends) is None:
        known = extendable_names(Path(folder))
        raise PromptError(
            f"{target.as_posix()} cannot extend {extends}, which is neither in {folder} nor ships; there are "
            f"{listed(known)}{did_you_mean(extends, known)}"
        )
    target.mkdir(parents=True)
    files = _starting_files(domain, extends)
    for name, text in files.items():
        (target / name).write_text(text, encoding="utf-8")
    return [target / name for name in files]


def check_is_own(domain: str, role: PromptRole) -> None:
    """Raises PromptError for the bare name of a pack that ships, with the commands that begin one's own from it."""
    if domain in SHIPPED:
        raise PromptError(
            f"{domain} ships with the software and stays as it is; begin a pack of your own from it, and change the "
            f"prompt there: scope prompts new my-{domain} --extends {domain} && scope prompts own my-{domain} {role}"
        )


def own_prompt(folder: Path | str, role: PromptRole) -> Path:
    """Copy an inherited prompt into the pack, to be changed there, and list it in its kustomization.yaml.

    Raises PromptError when the pack does not load, has the file already, or has no such prompt.
    """
    target = Path(folder) / role.file_name
    pack = load_pack(folder)
    if target.exists():
        raise PromptError(f"{target.as_posix()}: is in the pack already; edit it")
    text = pack.files().get(role.file_name)
    if text is None:
        raise PromptError(f"{pack.domain.name} needs no {role} prompt, so there is none to take a copy of")
    target.write_text(text, encoding="utf-8")
    listing = Path(folder) / KUSTOMIZATION_FILE
    if listing.is_file():
        kustomization = listing.read_text(encoding="utf-8")
        mapping = read_mapping(kustomization, KUSTOMIZATION_FILE)
        # `load_pack` has checked it.
        assert isinstance(mapping, YamlMapping), mapping
        generators = mapping.values["configMapGenerator"]
        assert isinstance(generators, list)
        last = mapping.line("configMapGenerator", 0, "files", len(generators[0]["files"]) - 1)
        lines = kustomization.split("\n")
        lines.insert(last, f"{lines[last - 1].partition('-')[0]}- {role.file_name}")
        listing.write_text("\n".join(lines), encoding="utf-8")
    return target


def _starting_files(domain: str, extends: str | None) -> dict[str, str]:
    """File name -> text. A pack that extends another is complete; else every file describes what to write."""
    title = domain.replace("-", " ").capitalize()
    if extends is not None:
        text = _EXTENDING.format(title=title, extends=extends, gates=", ".join(Gate))
        return {DOMAIN_FILE: text, KUSTOMIZATION_FILE: _kustomization(domain, [DOMAIN_FILE])}
    prompts = {role.file_name: _prompt_to_fill(role) for role in PromptRole}
    text = _STANDING_ALONE.format(title=title, gates=", ".join(DEFAULT_GATES))
    listing = _kustomization(domain, [DOMAIN_FILE, *prompts])
    return {DOMAIN_FILE: text, **prompts, KUSTOMIZATION_FILE: listing}


_EXTENDING = """\
title: {title}
extends: {extends}

# Write below, and as further files in this folder, only what differs from {extends}.
# `scope prompts check` tells what is wrong; `scope prompts diff` shows what differs.
#
# corpus: where the source documents come from
# gates: [{gates}]
# task_types:
#   troubleshooting:
#     description: Find the cause of a described fault and give the steps that mend it.
#     weight: 2
#   writing:
#     enabled: false
"""

_STANDING_ALONE = """\
title: {title}
corpus: say here where the source documents come from
gates: [{gates}]
search_turns: {{1: 4, 2: 3, 3: 2}}
task_types:
  question:
    description: Say here what such a task asks for, in one or two sentences.
    weight: 1
"""


def _prompt_to_fill(role: PromptRole) -> str:
    contract = CONTRACTS[role]
    output = OUTPUTS[contract.output]
    inputs = ", ".join(contract.required)
    lines = ["---", f"role: {role}", f"inputs: [{inputs}]", f"output: {contract.output}", "---"]
    lines += [f"{{# The code reads {output.parsed}. #}}"]
    lines += [f"{{# May be used too: {name}, {INPUTS[name]}. #}}" for name in contract.optional]
    if role in GATE_ROLES:
        examples = f"Show at least {GATE_EXAMPLES} examples on each side"
        lines += [f"{{# {examples}, each ended by its score on a line. #}}"]
    lines += [f"Write: {text}" for text in output.mentions]
    lines += [f"{{{{ {name} }}}}" for name in contract.required]
    return "\n".join(lines) + "\n"


def _kustomization(domain: str, files: list[str]) -> str:
    listed_files = "".join(f"      - {name}\n" for name in files)
    return (
        "apiVersion: kustomize.config.k8s.io/v1beta1\n"
        "kind: Kustomization\n"
        "configMapGenerator:\n"
        f"  - name: prompts-{domain}\n"
        f"    files:\n{listed_files}"
        "generatorOptions:\n"
        "  disableNameSuffixHash: true\n"
    )
