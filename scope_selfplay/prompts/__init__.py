"""Prompt packs: the texts that the three roles read, one folder per domain, swapped without touching code.

Reading order: `contracts` (what every role's prompt may use and must ask for), `domain` (domain.yaml),
`template` (the Jinja subset), `prompt_text` (a prompt's own words), `prompt_file` (one Markdown file), `pack`
(resolved: render, hash, diff), `resolve` (inheritance), `origins` (why), `shipped` (which folder a name
means), `folder`, `cli`.
Only `shipped` and `folder` touch the disk; the rest works on values. Jinja and YAML are imported when first
needed.
"""

from scope_selfplay.prompts.contracts import CONTRACTS, INPUTS, OUTPUTS, Contract, Output, PromptRole
from scope_selfplay.prompts.domain import Domain, JudgeKind, TaskType
from scope_selfplay.prompts.folder import (
    check_pack,
    load_pack,
    new_pack,
    own_prompt,
    pack_chain,
    pack_origins,
)
from scope_selfplay.prompts.pack import Pack, PromptValue, diff_packs
from scope_selfplay.prompts.problems import PackProblem
from scope_selfplay.prompts.resolve import Origin

__all__ = [
    "CONTRACTS",
    "INPUTS",
    "OUTPUTS",
    "Contract",
    "Domain",
    "JudgeKind",
    "Origin",
    "Output",
    "Pack",
    "PackProblem",
    "PromptRole",
    "PromptValue",
    "TaskType",
    "check_pack",
    "diff_packs",
    "load_pack",
    "new_pack",
    "own_prompt",
    "pack_chain",
    "pack_origins",
]
