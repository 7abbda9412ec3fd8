"""Prompt packs: the texts that the three roles read, one folder per domain, swapped without touching code.

Reading order: `contracts` (what every role's prompt may use and must ask for), `problems` (a mistake and its
line), `domain` (domain.yaml), `template` (the Jinja subset), `prompt_file` (one Markdown file), `pack` (resolved:
render, hash, diff), `resolve` (inheritance, and where everything comes from), `folder` (which folder a name means;
check and load it), `new_pack`, `cli`. Only `folder` and `new_pack` touch the disk; the rest works on values. Jinja
and YAML are imported when first needed.
"""

from scope_selfplay.prompts.contracts import CONTRACTS, INPUTS, OUTPUTS, Contract, Output, PromptRole
from scope_selfplay.prompts.domain import Domain, JudgeKind, TaskType
from scope_selfplay.prompts.folder import (
    check_pack,
    load_pack,
    pack_chain,
    pack_origins,
)
from scope_selfplay.prompts.new_pack import new_pack, own_prompt
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
