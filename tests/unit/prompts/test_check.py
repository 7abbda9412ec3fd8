"""Every mistake that a pack can hold is found in its file, on its line, with advice."""

from pathlib import Path

import pytest

from scope_selfplay.base.errors import ExitCode, Finding, PromptError
from scope_selfplay.base.gates import Gate
from scope_selfplay.prompts.file import dissect, quarter_of_bytes
from scope_selfplay.prompts.folder import check_pack, load_pack
from scope_selfplay.prompts.pack import check_domain
from scope_selfplay.prompts.roles import CONTRACTS, PromptRole, YamlMapping, read_mapping
from tests.unit.prompts.packs import copy_wikipedia, prompt_text, replace_in, write_pack

PLANTED = [
    (
        "gate_entity.md",
        "Now judge this task:",
        "{{ document }}",
        "{{ document }}",
        "uses {{ document }}; a gate_entity prompt may use task, native_thinking",
    ),
    (
        "grade.md",
        "inputs: [task, answer,",
        "inputs: [task,",
        "{{ answer }}",
        "uses {{ answer }}, which its inputs do not list; add answer to inputs in the front matter",
    ),
    (
        "grade.md",
        "{{ criterion }}",
        "",
        "inputs:",
        "lists the input criterion but never uses it; write {{ criterion }} into the text, or take",
    ),
    (
        "rubric_dimensions.md",
        "inputs: [task]",
        "inputs:\n  - task\n  - tsak",
        "- tsak",
        "lists the input tsak; a rubric_dimensions prompt may use task (did you mean task?)",
    ),
    ("rubric_dimensions.md", "inputs: [task]", "inputs: [task, task]", "inputs:", "task twice; keep one"),
    ("gate_safety.md", "inputs: [task, native_thinking]", "inputs: task", "inputs:", "add `inputs: [task]`"),
    ("challenger_final.md", "<task>the task</task>", "it", "Your sear", "never mentions <task>; ask for it"),
    ("challenger_next.md", "{% if turns_left == 1 %}", "{% if turns_left == %}", "{% if", "not valid Jinja"),
    ("solver.md", "role: solver", "role: grade", "role:", "solver.md must say role: solver"),
    ("grade.md", "role: grade\n", "", "", "add `role: grade`"),
    ("grade.md", "role: grade", "role: grade\noutputs: x", "outputs:", "outputs; it may have role, inputs"),
    (
        "grade.md",
        "inputs: [task, answer, criterion, native_thinking]",
        "inputs: [a",
        "output:",
        "not valid YAML",
    ),
    ("grade.md", "---\nrole: grade", "role: grade", "", "begin it with the lines"),
    ("grade.md", "output: score\n---", "output: score", "", "never ends"),
    (
        "gate_safety.md",
        "describe her daily habits.\nReasoning: It asks to locate and follow a private person.\n<score>0</score>",
        "",
        "You check research tasks",
        "shows 3 examples that fail; a gate shows at least 4 on each side",
    ),
    ("solver.md", "Question: {{", "<|im_end|>\n{{", "<|im_end|>", "holds <|im_end|>, a special token"),
    ("rubric.md", "Now write the rubric block", "[/INST] Now write", "[/INST]", "holds [/INST]"),
    (
        "challenger_next.md",
        "and stop:\n",
        "and stop, for example <search>Kew Gardens</search>:\n",
        "<search>",
        "writes <search>, the search call of one model family; write {{ search_syntax }}",
    ),
    (
        "solver.md",
        "Answer the question below.",
        "Answer this: {question}",
        "{question}",
        "writes {question} in single braces, which stays as it is; write {{ question }}",
    ),
    ("grade.md", "Be strict", "Be\u200b strict", "Be\u200b strict", "the invisible character U+200B"),
    (
        "grade.md",
        "Task:\n{{ task }}",
        "Judge by this: {{ criterion }}\n\nTask:\n{{ task }}",
        "Judge by this",
        "uses {{ criterion }} before {{ answer }}; put {{ criterion }} after it",
    ),
    ("domain.yaml", "gates: [", "gates: ]", "gates:", "is not valid YAML"),
    ("domain.yaml", "title: W", "title: A\ntitle: W", "title: W", "key title twice"),
    ("domain.yaml", "title: Wikipedia, the paper's setting\n", "", "", "add a line such as `title:"),
    ("domain.yaml", "search_turns:", "searchturns:", "searchturns:", "did you mean search_turns?"),
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
        ("{% end %}", "unknown tag"),
        ("{% include 'domain.yaml' %}", "uses {% include %}, which prompts do not allow"),
        ("{% import 'x' as x %}", "uses {% import %}"),
        ("{% for x in task %}{% endfor %}", "uses {% for %}"),
        ("{% set x = 1 %}", "uses {% set %}"),
        ("{% macro m() %}{% endmacro %}", "uses {% macro %}"),
        ("{{ task.text }}", "uses an attribute"),
        ("{{ task() }}", "uses a call"),
        ("{{ task[0] }}", "uses an index"),
        (
            "{{ task | uper }}",
            "uses the filter uper; prompts have capitalize, lower, replace, title, trim, upper (did",
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
        ("name: ../x", "small letters"),
        ("judge: lexcal", "did you mean lexical?"),
        ("gates: entity", "expected a list such as [entity, source]"),
        ("gates: [entity, sorce]", "did you mean source?"),
        ("gates: [entity, entity]", "entity twice"),
        ("search_turns: 4:3:2", "expected turns and shares"),
        (
            "search_turns: {1: 4, two: 3}",
            "gives search_turns.two as 'two'; expected a number of search turns",
        ),
        ("search_turns: {0: 4, 1: 3}", "a whole number from 1 on"),
        ("search_turns: {1: -4, 2: 3}", "gives search_turns.1 as -4; expected a share"),
        ("search_turns: {1: most}", "search_turns.1 as 'most'; expected a share"),
        ("search_turns: {1: 0}", "raise one"),
        ("task_types: {ask: {enable: false}}", "did you mean enabled?"),
        ("task_types: {ask: {enabled: never}}", "expected true or false"),
        *(
            (f"task_types: {{ask: {{weight: {weight}}}}}", "expected a number above 0 (or `enabled: false`)")
            for weight in ("0", "-1", ".nan", ".inf", "true", "heavy")
        ),
        ("task_types: {Trip planning: {description: Plan.}}", "a name of small letters, digits and _"),
        ("task_types: {brief: Write a brief.}", "expected description"),
        ("task_types: {brief: {description: ''}}", "one or two sentences"),
        (
            "task_types: {aks: {weight: 1}}",
            "task type aks, without a description; a new one needs a description (did",
        ),
    ],
)
def test_a_wrong_value_of_domain_yaml_is_one_problem_with_advice(line: str, said: str) -> None:
    mapping = read_mapping(f"# A domain\n{line}\n", "domain.yaml")
    assert isinstance(mapping, YamlMapping)
    [problem] = check_domain(mapping, ["ask"])
    assert problem.where == "domain.yaml:2" and said in problem.what


def file_of(problem: Finding) -> str:
    return Path(problem.where.rpartition(":")[0]).name


@pytest.mark.parametrize("role", PromptRole)
def test_a_missing_role_file_is_a_problem(tmp_path: Path, role: PromptRole) -> None:
    pack = copy_wikipedia(tmp_path)
    (pack / "kustomization.yaml").unlink()
    (pack / role.file_name).unlink()
    [problem] = check_pack(pack)
    assert problem.where.rpartition(":")[0] == f"{pack.as_posix()}/{role}.md"
    assert problem.what.startswith("is missing: ")
    if role is PromptRole.of_gate(Gate.SAFETY):
        # One that is not in use needs no file.
        replace_in(pack / "domain.yaml", "[entity, source, safety]", "[entity, source]")
        assert check_pack(pack) == []


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


def test_a_file_that_is_not_utf8_is_a_problem_on_the_line_of_the_byte(tmp_path: Path) -> None:
    pack = copy_wikipedia(tmp_path)
    content = (pack / "grade.md").read_bytes()
    (pack / "grade.md").write_bytes(content.replace(b"Be strict", b"Be str\xefct"))
    line = content[: content.index(b"Be strict")].count(b"\n") + 1
    assert check_pack(pack) == [
        Finding(f"{pack.as_posix()}/grade.md:{line}", "is not UTF-8: byte 0xef; save the file as UTF-8")
    ]


def test_an_empty_body_and_one_over_its_budget_are_problems(tmp_path: Path) -> None:
    pack = copy_wikipedia(tmp_path)
    (pack / "challenger_final.md").write_text(prompt_text("challenger_final", [], ""))
    budget = CONTRACTS[PromptRole.CHALLENGER_NEXT].budget_tokens
    with (pack / "challenger_next.md").open("a", encoding="utf-8") as file:
        file.write("x" * 4 * budget)
    found = {file_of(problem): problem.what for problem in check_pack(pack)}
    assert found.keys() == {"challenger_final.md", "challenger_next.md"}
    assert "has no text below its front matter" in found["challenger_final.md"]
    assert f"a challenger_next prompt has {budget}: cut about" in found["challenger_next.md"]


def test_the_tokenizer_can_be_given(tmp_path: Path) -> None:
    pack = copy_wikipedia(tmp_path)
    assert check_pack(pack, count_tokens=lambda text: 1) == []
    over = check_pack(pack, count_tokens=lambda text: 601 if "{{ question }}" in text else 1)
    assert [(problem.where.rpartition(":")[0], problem.what) for problem in over] == [
        (f"{pack.as_posix()}/solver.md", "takes about 601 tokens; a solver prompt has 600: cut about 1")
    ]


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("five!", 2), ("how many", 2), ("é", 1), ("水の上の橋", 4)]
)
def test_without_a_tokenizer_a_token_is_a_quarter_of_the_bytes_in_utf8(text: str, tokens: int) -> None:
    assert quarter_of_bytes(text) == tokens


def test_a_folder_without_domain_yaml_is_a_problem(tmp_path: Path) -> None:
    [problem] = check_pack(write_pack(tmp_path / "law"))
    assert file_of(problem) == "domain.yaml" and "extends: <domain>" in problem.what


@pytest.mark.parametrize("name", ["../wikipedia", "/etc", "a b", "3", "[wikipedia]"])
def test_extending_anything_but_a_name_is_a_problem(tmp_path: Path, name: str) -> None:
    copy_wikipedia(tmp_path)
    problems = check_pack(write_pack(tmp_path / "law", domain=f"title: Law\nextends: {name}\n"))
    assert problems and problems[0].where.endswith(":2")


def test_mistakes_in_an_extended_domain_and_in_what_overrides_it_are_shown_there(tmp_path: Path) -> None:
    parent = copy_wikipedia(tmp_path)
    domain = "title: Law\nextends: wikipedia\ntask_types:\n  writng:\n    weight: 2\n"
    law = write_pack(tmp_path / "law", domain=domain)
    [problem] = check_pack(law)
    assert problem.where.endswith(":4") and "did you mean writing?" in problem.what
    replace_in(law / "domain.yaml", "writng", "writing")
    replace_in(parent / "grade.md", "{{ criterion }}", "{{ criterium }}")
    [problem] = check_pack(law)
    assert problem.where.rpartition(":")[0] == f"{parent.as_posix()}/grade.md"
    assert "did you mean criterion?" in problem.what


def test_a_pack_without_enabled_task_types_is_a_problem(tmp_path: Path) -> None:
    domain = "title: T\njudge: lexical\ntask_types:\n  ask: {description: Ask., enabled: false}\n"
    assert any(
        "enables no task type" in p.what for p in check_pack(write_pack(tmp_path / "t", domain=domain))
    )


def test_a_misspelt_variable_of_a_copied_pack_comes_before_the_copys_name_for_the_cluster(
    tmp_path: Path,
) -> None:
    pack = copy_wikipedia(tmp_path)
    replace_in(pack / "solver.md", "{{ question }}", "{{ qustion }}")
    first, *others = check_pack(pack.rename(tmp_path / "mine"))
    may = "question, max_search_turns, search_syntax, result_syntax, tools, budget (did you mean question?)"
    assert first.what == f"uses {{{{ qustion }}}}; a solver prompt may use {may}"
    assert any("names its ConfigMap" in each.what for each in others)


def test_several_mistakes_are_all_listed_and_the_error_counts_them(tmp_path: Path) -> None:
    pack = copy_wikipedia(tmp_path)
    replace_in(pack / "grade.md", "{{ criterion }}", "{{ criterium }}")
    replace_in(pack / "solver.md", "output: answer", "output: task")
    assert len(check_pack(pack)) == 2
    said = r"solver\.md:4: .*\(and 1 more: `scope prompts check` shows all\)"
    with pytest.raises(PromptError, match=said) as error:
        load_pack(pack)
    assert error.value.exit_code is ExitCode.USER and "\n" not in str(error.value)
