"""Prompt packs: the texts that the three roles read, one folder per domain, swapped without touching code.

Reading order: `contracts` (what every role's prompt may use and must ask for), `problems` (a mistake and its
line), `domain` (domain.yaml), `template` (the Jinja subset), `prompt_file` (one Markdown file), `pack` (resolved:
render, hash, diff), `resolve` (inheritance, and where everything comes from), `folder` (which folder a name means;
check and load it), `new_pack`, `cli`. Only `folder` and `new_pack` touch the disk; the rest works on values. Jinja
and YAML are imported when first needed.
"""

from scope_selfplay.prompts.contracts import CONTRACTS, PromptRole
from scope_selfplay.prompts.domain import TaskType
from scope_selfplay.prompts.folder import check_pack, load_pack
from scope_selfplay.prompts.pack import Pack, diff_packs

__all__ = ["CONTRACTS", "Pack", "PromptRole", "TaskType", "check_pack", "diff_packs", "load_pack"]
