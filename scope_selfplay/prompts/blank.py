"""The files that a new domain begins with."""

from scope_selfplay.prompts.contracts import CONTRACTS, GATE_ROLES, INPUTS, OUTPUTS, PromptRole
from scope_selfplay.prompts.domain import DOMAIN_FILE


def starting_files(domain: str, extends: str | None) -> dict[str, str]:
    """File name -> text. One that extends is complete; a blank one says in every file what to write."""
    title = domain.replace("-", " ").capitalize()
    if extends is not None:
        return {
            DOMAIN_FILE: _EXTENDING.format(title=title, extends=extends),
            "kustomization.yaml": _kustomization(domain, [DOMAIN_FILE]),
        }
    prompts = {role.file_name: _blank_prompt(role) for role in PromptRole}
    return {
        DOMAIN_FILE: _STANDING_ALONE.format(title=title),
        **prompts,
        "kustomization.yaml": _kustomization(domain, [DOMAIN_FILE, *prompts]),
    }


_EXTENDING = """\
title: {title}
extends: {extends}

# Write below, and as further files in this folder, only what differs from {extends}.
# `scope prompts check` tells what is wrong; `scope prompts diff` shows what differs.
#
# corpus: where the source documents come from
# gates: [entity, source, safety]
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
gates: [entity, source]
search_turns: {{1: 4, 2: 3, 3: 2}}
task_types:
  question:
    description: Say here what such a task asks for, in one or two sentences.
    weight: 1
"""


def _blank_prompt(role: PromptRole) -> str:
    contract = CONTRACTS[role]
    reading = OUTPUTS[contract.output]
    lines = [
        "---",
        f"role: {role}",
        f"inputs: [{', '.join(contract.required)}]",
        f"output: {contract.output}",
        "---",
    ]
    lines += [f"{{# The code reads {reading.parsed}. #}}"]
    lines += [f"{{# May be used too: {name}, {INPUTS[name]}. #}}" for name in contract.optional]
    if role in GATE_ROLES:
        lines += ["{# Show at least four examples on each side, each ended by its score on a line. #}"]
    lines += [f"Write: {text}" for text in reading.mentions]
    lines += [f"{{{{ {name} }}}}" for name in contract.required]
    return "\n".join(lines) + "\n"


def _kustomization(domain: str, files: list[str]) -> str:
    listed = "".join(f"      - {name}\n" for name in files)
    return (
        "apiVersion: kustomize.config.k8s.io/v1beta1\n"
        "kind: Kustomization\n"
        "configMapGenerator:\n"
        f"  - name: prompts-{domain}\n"
        f"    files:\n{listed}"
        "generatorOptions:\n"
        "  disableNameSuffixHash: true\n"
    )
