"""Every mistake that a pack can hold is found in its file, on its line, with advice."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import Finding, PromptError
from scope_selfplay.prompts.file import dissect, quarter_of_bytes
from scope_selfplay.prompts.folder import check_pack, load_pack
from scope_selfplay.prompts.pack import check_domain
from scope_selfplay.prompts.roles import CONTRACTS, PromptRole, YamlMapping, read_mapping
from tests.unit.prompts.packs import PROMPTS, TAUGHT_PACK, copy_wikipedia, prompt_text, replace_in, write_pack

GOLDEN = PROMPTS.parent / "tests" / "golden" / "problems.json"


def test_every_mistake_is_one_problem_with_its_file_line_and_advice(tmp_path: Path) -> None:
    """Set SCOPE_UPDATE_GOLDEN=1 to write them anew, then read the difference."""
    cases = json.loads(GOLDEN.read_text(encoding="utf-8"))
    found: dict[str, Any] = {"packs": [], "templates": {}, "domains": {}}
    for number, case in enumerate(cases["packs"]):
        pack = copy_wikipedia(tmp_path / str(number))
        replace_in(pack / case["file"], case["old"], case["new"])
        [problem] = check_pack(pack)
        found["packs"].append(case | {"problem": str(problem).removeprefix(f"{pack.as_posix()}/")})
    for tag in cases["templates"]:
        [fault] = dissect(f"Judge.\n{tag}\n").faults
        found["templates"][tag] = f"{fault.line}: {fault.message}"
    for line in cases["domains"]:
        mapping = read_mapping(f"# A domain\n{line}\n", "domain.yaml")
        assert isinstance(mapping, YamlMapping)
        [found["domains"][line]] = map(str, check_domain(mapping, ["ask"]))
    if os.environ.get("SCOPE_UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert found == cases


def test_mistakes_come_in_the_order_of_their_lines(tmp_path: Path) -> None:
    mapping = read_mapping("\nname: Law!" + "\n" * 8 + "gates: entity\n", "a:b/domain.yaml")
    assert isinstance(mapping, YamlMapping)
    assert [each.where for each in check_domain(mapping, [])] == ["a:b/domain.yaml:2", "a:b/domain.yaml:10"]
    solver = prompt_text("solver", ["question"], "{{ then }}\n{{ also }}\n{{ question }}")
    pack = write_pack(tmp_path / "tiny", **TAUGHT_PACK | {"solver": solver})
    assert [each.where.rpartition("/")[2] for each in check_pack(pack)] == ["solver.md:6", "solver.md:7"]
    with pytest.raises(
        PromptError, match=r"uses {{ then }}.* \(and 1 more: `scope prompts check` shows all\)$"
    ):
        load_pack(pack)


def file_of(problem: Finding) -> str:
    return Path(problem.where.rpartition(":")[0]).name


def test_a_missing_role_file_is_a_problem(tmp_path: Path) -> None:
    pack = copy_wikipedia(tmp_path)
    (pack / "kustomization.yaml").unlink()
    # A judge of a pack without a guard asks none; readers are those of short answers.
    for role in set(PromptRole) - {PromptRole.GUARD, PromptRole.SOLVER_READING}:
        text = (pack / role.file_name).read_bytes()
        (pack / role.file_name).unlink()
        [problem] = check_pack(pack)
        assert problem.where.rpartition(":")[0] == f"{pack.as_posix()}/{role}.md"
        assert problem.what.startswith("is missing: ")
        (pack / role.file_name).write_bytes(text)
    # One that is not in use needs no file.
    replace_in(pack / "domain.yaml", "[entity, source, safety]", "[entity, source]")
    (pack / "gate_safety.md").unlink()
    assert check_pack(pack) == []
    replace_in(
        pack / "domain.yaml", "task_types:", "task_types:\n  quiz: {description: A question., answer: span}"
    )
    [problem] = check_pack(pack)
    assert "solver_reading.md" in problem.where and "answer: span" in problem.what


def test_a_domain_without_its_file_or_that_extends_no_name_is_a_problem(tmp_path: Path) -> None:
    [problem] = check_pack(write_pack(tmp_path / "empty"))
    assert file_of(problem) == "domain.yaml" and "extends: <domain>" in problem.what
    first, *_ = check_pack(write_pack(tmp_path / "law", domain="title: Law\nextends: ../wikipedia\n"))
    assert first.where.endswith(":2")
    for name, extended in {"tax": "customs", "customs": "duty", "duty": "tax"}.items():
        write_pack(tmp_path / name, domain=f"title: {name}\nextends: {extended}\n")
    [circle] = check_pack(tmp_path / "tax")
    assert circle.where.endswith("/duty/domain.yaml:2") and "tax -> customs -> duty -> tax;" in circle.what


def test_files_and_folders_that_are_no_prompts_are_problems_but_hidden_ones_are_not(tmp_path: Path) -> None:
    pack = copy_wikipedia(tmp_path)
    (pack / "Solver.md").write_text("x")
    (pack / "notes").mkdir()
    (pack / "..2031_01_01").mkdir()
    (pack / "README.md").write_text("# About\n")
    (pack / "grade-strict.md").write_bytes((pack / "grade.md").read_bytes().replace(b"-\n", b"- \n"))
    (pack / "select.md").rename(pack / "choosing.md")
    (pack / "kustomization.yaml").unlink()
    found = {file_of(problem): problem.what for problem in check_pack(pack)}
    assert found.keys() == {"Solver.md", "notes", "grade-strict.md", "choosing.md", "select.md"}
    assert "did you mean solver.md?" in found["Solver.md"]
    assert "one flat folder" in found["notes"]
    assert "is the grade prompt too, and grade.md is the one that counts" in found["grade-strict.md"]
    assert "did you mean select.md?" in found["choosing.md"]


def test_a_body_that_is_empty_over_its_budget_or_not_utf8_is_a_problem(tmp_path: Path) -> None:
    pack = copy_wikipedia(tmp_path)
    (pack / "challenger_final.md").write_text(prompt_text("challenger_final", [], ""))
    budget = CONTRACTS[PromptRole.CHALLENGER_NEXT].budget_tokens
    with (pack / "challenger_next.md").open("a", encoding="utf-8") as file:
        file.write("x" * 4 * budget)
    content = (pack / "grade.md").read_bytes()
    (pack / "grade.md").write_bytes(content.replace(b"Be strict", b"Be str\xefct"))
    line = content[: content.index(b"Be strict")].count(b"\n") + 1
    broken, *problems = check_pack(pack)
    assert broken.where == f"{pack.as_posix()}/grade.md:{line}"
    assert broken.what == "is not UTF-8: byte 0xef; save the file as UTF-8"
    empty = (
        f"{pack.as_posix()}/challenger_final.md:6: has no text below its front matter; write the prompt there"
    )
    assert empty in map(str, problems)
    found = {file_of(problem): problem.what for problem in problems}
    assert found.keys() == {"challenger_final.md", "challenger_next.md"}
    assert f"a challenger_next prompt has {budget}: cut about" in found["challenger_next.md"]
    tokens, more = map(int, re.findall(r"about (\d+)", found["challenger_next.md"]))
    assert tokens - more == budget
    (pack / "challenger_next.md").write_text((pack / "challenger_next.md").read_text()[: -4 * more])
    assert "challenger_next.md" not in map(file_of, check_pack(pack))
    # Tokens are a quarter of the bytes in UTF-8.
    assert [quarter_of_bytes(text) for text in ("", "five!", "水の上の橋")] == [0, 2, 4]
