"""The packs of this repository: one has the paper's setting, the README is true."""

import re

import pytest

from scope_selfplay.base.values import Gate
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.prompts.pack import KEYS, Pack
from scope_selfplay.prompts.roles import CONTRACTS, OUTPUTS, POLICY_ROLES, SHORT, PromptRole
from tests.reference_files import read_reference
from tests.unit.prompts.packs import PROMPTS

PACKS = sorted(path.parent for path in PROMPTS.glob("*/domain.yaml"))
RULES = read_reference("prompt_rules.json")["packs"]


def test_every_pack_can_be_mounted_and_is_named_by_the_readme() -> None:
    text = (PROMPTS / "README.md").read_text(encoding="utf-8")
    assert [folder.name for folder in PACKS if f"| `{folder.name}/` |" not in text] == []
    assert all((folder / "kustomization.yaml").is_file() for folder in PACKS)


def test_the_wikipedia_pack_has_the_papers_setting(pack: Pack) -> None:
    domain = pack.domain
    enabled = [kind.name for kind in domain.task_types if kind.enabled]
    assert enabled == ["long_form_qa", "summarisation", "planning", "writing"]
    assert [kind.name for kind in domain.task_types if not kind.enabled] == ["creative_writing"]
    assert {kind.weight for kind in domain.task_types} == {1}
    assert domain.search_turns == {1: 4, 2: 3, 3: 2}
    assert domain.gates == (Gate.ENTITY, Gate.SOURCE, Gate.SAFETY)


@pytest.mark.parametrize("name", RULES)
def test_the_papers_rules_stand_in_the_prompt(name: str) -> None:
    bodies = {prompt.role: prompt.body for prompt in load_pack(PROMPTS / name).prompts}
    for role, rules in RULES[name].items():
        assert [rule for rule in rules if rule not in bodies[PromptRole(role)]] == [], role


def table(heading: str, level: str = "##") -> dict[str, list[str]]:
    """The rows of the first table under a heading of prompts/README.md, by their first cell."""
    text = (PROMPTS / "README.md").read_text(encoding="utf-8")
    section = text.split(f"\n{level} {heading}\n")[1].split("\n#")[0]
    rows = [line.strip("|").split(" | ") for line in section.split("\n") if line.startswith("| `")]
    return {row[0].strip(" `"): [cell.strip() for cell in row[1:]] for row in rows}


def names(cell: str) -> tuple[str, ...]:
    return () if cell == "-" else tuple(name.strip("`") for name in cell.split(", "))


def test_the_readmes_table_of_roles_is_the_contracts() -> None:
    shown = {
        file: (names(required), names(optional), names(output), int(tokens.replace(",", "")))
        for file, (required, optional, output, tokens) in table("Roles").items()
    }
    assert shown == {
        role.file_name: (contract.required, contract.optional, contract.outputs, contract.budget_tokens)
        for role, contract in CONTRACTS.items()
    }


def test_the_readmes_tables_of_inputs_outputs_and_keys_are_the_codes() -> None:
    assert table("Inputs").keys() == {name for contract in CONTRACTS.values() for name in contract.inputs}
    shown = {name: (names(mentions), parsed) for name, (mentions, parsed) in table("Outputs").items()}
    assert shown == {output: (reading.mentions, reading.parsed) for output, reading in OUTPUTS.items()}
    assert table("`domain.yaml`", "###").keys() == set(KEYS)


def test_the_small_pack_asks_shortly_behind_the_text_and_shows_no_fact_that_could_be_copied() -> None:
    pack = load_pack(PROMPTS / "small")
    wordy = {prompt.role: re.findall(r"^.{30,}$", prompt.body, re.MULTILINE) for prompt in pack.prompts}
    assert {role: lines for role, lines in wordy.items() if len(lines) > 6} == {}
    assert {role for role, shorter in SHORT_ROLES.items() if pack.output_of(role) is not shorter} == set()
    (grade,) = (prompt.body for prompt in pack.prompts if prompt.role is PromptRole.GRADE)
    assert grade.index("{{ answer }}") < grade.index("{{ criterion }}")
    wikipedia = load_pack(PROMPTS / "wikipedia")
    for prompt in [*pack.prompts, *(each for each in wikipedia.prompts if each.role is PromptRole.RUBRIC)]:
        assert re.findall(r"\b\d{4}\b", prompt.body) == []


SHORT_ROLES = {
    role: SHORT.get(contract.output, contract.output)
    for role, contract in CONTRACTS.items()
    if role not in POLICY_ROLES
}
