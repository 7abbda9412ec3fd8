"""Packs for these tests: the repository's own, copies to break, and sample values for every input."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from scope_selfplay.prompts.roles import CONTRACTS, PromptRole

REPOSITORY = Path(__file__).resolve().parents[3]
PROMPTS = REPOSITORY / "prompts"

SAMPLES: dict[str, str | int | bool] = {
    "document_title": "Eddystone Lighthouse",
    "document_text": "Smeaton's tower of 1759 used hydraulic lime and dovetailed granite blocks.",
    "task_type": "long form qa",
    "task_description": "One question about how or why something works.",
    "language": "the language of the document (en)",
    "foreign": "German",
    "examples": "- Why does mortar set?",
    "search_turns": 2,
    "search_syntax": '<tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>',
    "turns_left": 1,
    "question": "How did the search for a water-resistant mortar lead to modern cement?",
    "passages": "Eddystone Lighthouse\nSmeaton used hydraulic lime.",
    "max_search_turns": 5,
    "result_syntax": "between <tool_response> and </tool_response>",
    "tools": '- open: Shows a whole document. <open>{"document": "a title"}</open>',
    "budget": "8,192",
    "task": "<<<task 1a2b>>>\nHow did Smeaton's mortar lead to cement?\n<<<end 1a2b>>>",
    "document": "<<<document 3c4d>>>\nSmeaton's tower of 1759 used hydraulic lime.\n<<<end 3c4d>>>",
    "documents": "<<<document 3c4d>>>\nSmeaton's tower of 1759 used hydraulic lime.\n<<<end 3c4d>>>",
    "answer": "<<<answer 5e6f>>>\nSmeaton found that clay makes lime set under water.\n<<<end 5e6f>>>",
    "criterion": "Identifies clay in the limestone as what made the mortar set under water.",
    "rubric": "1. Identifies clay in the limestone as the cause.\n2. Explains the step to Portland cement.",
    "reference": "<<<reference 7a8b>>>\nClay.\n<<<end 7a8b>>>",
    "trace": "<<<candidate kappa>>>\nClay.\n<<<end kappa>>>",
    "first": "<<<candidate kappa>>>\nClay.\n<<<end kappa>>>",
    "second": "<<<candidate sigma>>>\nSand.\n<<<end sigma>>>",
    "first_label": "kappa",
    "second_label": "sigma",
    "candidates": "<<<kappa>>>\nClay.\n<<<end kappa>>>\n<<<sigma>>>\nSand.\n<<<end sigma>>>",
    "winners": 1,
    "results": True,
    "native_thinking": False,
}


def copy_wikipedia(folder: Path) -> Path:
    """A copy of the complete pack that a test may break."""
    return Path(shutil.copytree(PROMPTS / "wikipedia", folder / "wikipedia"))


def write_pack(folder: Path, **files: str) -> Path:
    """A pack folder of the given files; `domain="..."` is domain.yaml, every other name is a role."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / ("domain.yaml" if name == "domain" else f"{name}.md")).write_text(text, encoding="utf-8")
    return folder


def replace_in(path: Path, old: str, new: str) -> int:
    """Replace the only `old` of the text; returns the line on which it was."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {path.name}"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return text[: text.index(old)].count("\n") + 1


def prompt_text(role: str, inputs: Sequence[str], body: str) -> str:
    """A role's file with correct front matter."""
    output = CONTRACTS[PromptRole(role)].output
    return f"---\nrole: {role}\ninputs: [{', '.join(inputs)}]\noutput: {output}\n---\n{body}\n"


TAUGHT_PACK = {
    "domain": "title: Tiny\njudge: lexical\ntask_types:\n  ask: {description: Ask for facts.}\n",
    "challenger": prompt_text("challenger", ["document_text"], "{{ document_text }}"),
    "challenger_next": prompt_text("challenger_next", [], "next"),
    "challenger_invalid": prompt_text("challenger_invalid", [], "again"),
    "challenger_final": prompt_text("challenger_final", [], "task"),
    "solver": prompt_text("solver", ["question"], '{"a": {"b": [1]}} \\boxed{A} {x} {{ question }}\n'),
}
"""The smallest pack: a lexical judge, and a policy that learnt its protocol by training."""
