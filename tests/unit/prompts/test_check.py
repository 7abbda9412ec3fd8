"""Every mistake that a pack can hold is found in its file, on its line, with advice."""

from pathlib import Path

import pytest

from scope_selfplay.base.errors import Finding
from scope_selfplay.prompts.file import dissect, quarter_of_bytes
from scope_selfplay.prompts.folder import check_pack
from scope_selfplay.prompts.pack import check_domain
from scope_selfplay.prompts.roles import CONTRACTS, PromptRole, YamlMapping, read_mapping
from tests.unit.prompts.packs import copy_wikipedia, prompt_text, replace_in, write_pack

GATE_EXAMPLE = (
    "describe her daily habits.\nReasoning: It asks to locate and follow a private person.\n<score>0</score>"
)
PLANTED = [
    ("gate_entity.md", "Now judge", "{{ document }}", "{{ document }}", "a gate_entity prompt may use task"),
    ("grade.md", "task, answer,", "task,", "{{ answer }}", "add answer to inputs in the front matter"),
    ("grade.md", "{{ criterion }}", "", "inputs:", "never uses it; write {{ criterion }} into the text"),
    ("rubric_dimensions.md", "[task]", "\n  - task\n  - tsak", "- tsak", "lists the input tsak; a rubric"),
    ("gate_safety.md", "inputs: [task, native_thinking]", "inputs: task", "inputs:", "add `inputs: [task]`"),
    ("challenger_final.md", "<task>the task</task>", "it", "Your sear", "never mentions <task>; ask for it"),
    ("solver.md", "role: solver", "role: grade", "role:", "solver.md must say role: solver"),
    ("grade.md", "role: grade\n", "", "", "add `role: grade`"),
    ("grade.md", "role: grade", "role: grade\noutputs: x", "outputs:", "outputs; it may have role, inputs"),
    ("grade.md", "[task, answer, criterion, native_thinking]", "[a", "output:", "not valid YAML"),
    ("grade.md", "---\nrole: grade", "role: grade", "", "begin it with the lines"),
    ("grade.md", "output: score\n---", "output: score", "", "never ends"),
    ("gate_safety.md", GATE_EXAMPLE, "", "You check", "shows 3 examples that fail; a gate shows at least 4"),
    ("solver.md", "Question: {{", "<|im_end|>\n{{", "<|im_end|>", "holds <|im_end|>, a special token"),
    ("challenger_next.md", "stop:\n", "<search>Kew</search>\n", "<search>", "write {{ search_syntax }}"),
    ("solver.md", "Answer the question below.", "{question}", "{question}", "in single braces, which stays"),
    ("grade.md", "Be strict", "Be\u200b strict", "Be\u200b strict", "the invisible character U+200B"),
    ("grade.md", "Task:\n{{ task }}", "{{ criterion }}{{ task }}", "{{ crit", "put {{ criterion }} after it"),
    ("domain.yaml", "title: Wikipedia, the paper's setting\n", "", "", "add a line such as `title:"),
    ("kustomization.yaml", "      - grade.md\n", "", "files:", "does not list grade.md; add it under files"),
    ("kustomization.yaml", "- grade.md", "- grade.md\n      - x.md", "- x.md", "which the folder has not"),
    ("kustomization.yaml", "- solver.md", "- solver.md\n      - solver.md # 2", "# 2", "solver.md twice"),
    ("kustomization.yaml", "prompts-wikipedia", "prompts-wiki", "name:", "expected prompts-wikipedia"),
    ("kustomization.yaml", "configMapGenerator:", "configMaps:", "", "expected configMapGenerator"),
    ("kustomization.yaml", "disableNameSuffixHash: true", "labels: {}", "generatorOptions", "by its name"),
]


@pytest.mark.parametrize(("file", "old", "new", "at", "message"), PLANTED)
def test_a_planted_mistake_is_the_one_problem_with_file_line_and_advice(
    tmp_path: Path, file: str, old: str, new: str, at: str, message: str
) -> None:
    """On the line that holds `at` in the broken file."""
    pack = copy_wikipedia(tmp_path)
    replace_in(pack / file, old, new)
    text = (pack / file).read_text(encoding="utf-8")
    line = text[: text.index(at)].count("\n") + 1
    problems = check_pack(pack)
    assert [problem.where for problem in problems] == [f"{(pack / file).as_posix()}:{line}"], problems
    assert message in problems[0].what


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        ("{{ task", "every {{ has its }}"),
        ("{% include 'domain.yaml' %}", "uses {% include %}, which prompts do not allow"),
        ("{% for x in task %}{% endfor %}", "uses {% for %}"),
        ("{% set x = 1 %}", "uses {% set %}"),
        ("{{ task.text }}", "uses an attribute"),
        ("{{ task() }}", "uses a call"),
        ("{{ task[0] }}", "uses an index"),
        (
            "{{ task | uper }}",
            "the filter uper; prompts have capitalize, lower, replace, title, trim, upper (",
        ),
        ("{% if task is odd %}{% endif %}", "the test `is odd`"),
    ],
)
def test_a_template_has_variables_conditions_and_filters_alone(tag: str, said: str) -> None:
    [fault] = dissect(f"Judge.\n{tag}\n").faults
    assert said in fault.message and fault.line >= 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("title:", "expected a line of text"),
        ("judge: lexcal", "did you mean lexical?"),
        ("gates: entity", "expected a list such as [entity, source]"),
        ("gates: [entity, sorce]", "did you mean source?"),
        ("gates: [entity, entity]", "entity twice"),
        ("search_turns: 4:3:2", "expected turns and shares"),
        ("search_turns: {two: 3}", "gives search_turns.two as 'two'; expected a number of search turns"),
        ("search_turns: {1: -4, 2: 3}", "gives search_turns.1 as -4; expected a share"),
        ("search_turns: {1: 0}", "raise one"),
        ("task_types: {ask: {enable: false}}", "did you mean enabled?"),
        ("task_types: {ask: {weight: 0}}", "expected a number above 0 (or `enabled: false`)"),
        ("task_types: {Trip planning: {description: Plan.}}", "a name of small letters, digits and _"),
        ("task_types: {brief: {description: ''}}", "one or two sentences"),
        ("task_types: {aks: {weight: 1}}", "aks, without a description; a new one needs a description (did"),
    ],
)
def test_a_wrong_value_of_domain_yaml_is_one_problem_with_advice(line: str, said: str) -> None:
    mapping = read_mapping(f"# A domain\n{line}\n", "domain.yaml")
    assert isinstance(mapping, YamlMapping)
    [problem] = check_domain(mapping, ["ask"])
    assert problem.where == "domain.yaml:2" and said in problem.what


def file_of(problem: Finding) -> str:
    return Path(problem.where.rpartition(":")[0]).name


def test_a_missing_role_file_is_a_problem(tmp_path: Path) -> None:
    pack = copy_wikipedia(tmp_path)
    (pack / "kustomization.yaml").unlink()
    # A judge of a pack without a guard asks none.
    for role in set(PromptRole) - {PromptRole.GUARD}:
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


def test_a_domain_without_its_file_or_that_extends_no_name_is_a_problem(tmp_path: Path) -> None:
    [problem] = check_pack(write_pack(tmp_path / "empty"))
    assert file_of(problem) == "domain.yaml" and "extends: <domain>" in problem.what
    first, *_ = check_pack(write_pack(tmp_path / "law", domain="title: Law\nextends: ../wikipedia\n"))
    assert first.where.endswith(":2")


def test_files_and_folders_that_are_no_prompts_are_problems_but_hidden_ones_are_not(tmp_path: Path) -> None:
    pack = copy_wikipedia(tmp_path)
    (pack / "Solver.md").write_text("x")
    (pack / "notes").mkdir()
    (pack / "..2031_01_01").mkdir()
    (pack / "README.md").write_text("# About\n")
    (pack / "grade-strict.md").write_bytes((pack / "grade.md").read_bytes())
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
    found = {file_of(problem): problem.what for problem in problems}
    assert found.keys() == {"challenger_final.md", "challenger_next.md"}
    assert "has no text below its front matter" in found["challenger_final.md"]
    assert f"a challenger_next prompt has {budget}: cut about" in found["challenger_next.md"]
    # Tokens are a quarter of the bytes in UTF-8, where no tokenizer counts them.
    assert [quarter_of_bytes(text) for text in ("", "five!", "水の上の橋")] == [0, 2, 4]
