"""A resolved pack: its hash, inheritance, copies, differences, and how a new one begins."""

from pathlib import Path

import pytest

from scope_selfplay.base.errors import PromptError
from scope_selfplay.base.gates import Gate
from scope_selfplay.prompts.commands import new_pack
from scope_selfplay.prompts.folder import check_pack, load_pack
from scope_selfplay.prompts.pack import JudgeKind, diff_packs
from scope_selfplay.prompts.roles import PromptRole
from tests.unit.prompts.packs import PROMPTS, TAUGHT_PACK, copy_wikipedia, prompt_text, replace_in, write_pack

EXTENDING = "title: Law\nextends: wikipedia\n"


def solver_text(first_line: str) -> str:
    return prompt_text("solver", ["question"], first_line + "\n<answer>...</answer>\n{{ question }}")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("grade.md", "Be strict", "Be very strict"),
        ("grade.md", "Be strict", "Be  strict"),
        ("grade.md", "native_thinking]", "native_thinking ]"),
        ("kustomization.yaml", "generatorOptions:", "# by hand\ngeneratorOptions:"),
        ("domain.yaml", "{1: 4, 2: 3, 3: 2}", "{1: 4, 2: 3, 3: 3}"),
        ("domain.yaml", "title: Wikipedia", "title: The Wikipedia"),
        ("domain.yaml", "[entity, source, safety]", "[entity, source]"),
        ("domain.yaml", "enabled: false", "enabled: true"),
        ("domain.yaml", "# Searches that", "# The searches that"),
        ("domain.yaml", "gates: [entity, source, safety]", "gates:  [entity,source,safety]"),
        ("domain.yaml", "enabled: false", "enabled: false\njudge: model"),
    ],
)
def test_the_hash_changes_exactly_when_a_prompt_or_a_setting_does(
    tmp_path: Path, file: str, old: str, new: str
) -> None:
    pack = copy_wikipedia(tmp_path)
    before = load_pack(pack)
    replace_in(pack / file, old, new)
    after = load_pack(pack)
    assert (before.hash == after.hash) == (before.files() == after.files())
    says_nothing_new = file == "kustomization.yaml" or new.startswith(("# The", "gates:  ")) or "judge" in new
    assert (before.hash == after.hash) == says_nothing_new


def test_place_and_line_ends_and_a_byte_order_mark_do_not_count_for_the_hash(tmp_path: Path) -> None:
    pack = copy_wikipedia(tmp_path)
    content = (pack / "solver.md").read_bytes()
    (pack / "solver.md").write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    (pack / "kustomization.yaml").unlink()
    moved = pack.rename(tmp_path / "elsewhere")
    assert load_pack(moved).hash == load_pack(PROMPTS / "wikipedia").hash


def test_a_domain_inherits_what_it_does_not_say(tmp_path: Path) -> None:
    copy_wikipedia(tmp_path)
    domain = EXTENDING + (
        "gates: [entity]\nsearch_turns: {2: 1}\ntask_types:\n  writing: {weight: 3}\n"
        "  planning: {enabled: false}\n  brief:\n    description: A legal brief.\n"
    )
    pack = load_pack(write_pack(tmp_path / "law", domain=domain, solver=solver_text("You know the law.")))
    parent = load_pack(tmp_path / "wikipedia")
    assert (pack.domain.name, pack.domain.title, pack.domain.corpus) == ("law", "Law", parent.domain.corpus)
    assert (pack.domain.gates, pack.domain.search_turns) == ((Gate.ENTITY,), {2: 1})
    types = {kind.name: kind for kind in pack.domain.task_types}
    assert list(types) == [kind.name for kind in parent.domain.task_types] + ["brief"]
    assert (types["writing"].weight, types["writing"].description) == (
        3,
        parent.domain.task_types[3].description,
    )
    enabled = [kind.name for kind in pack.domain.task_types if kind.enabled]
    assert enabled == ["long_form_qa", "summarisation", "writing", "brief"]
    assert pack.render(PromptRole.SOLVER, question="Q").startswith("You know the law.")
    values = {"task": "T", "answer": "A", "criterion": "C"}
    assert pack.render(PromptRole.GRADE, **values) == parent.render(PromptRole.GRADE, **values)


def test_inheritance_goes_over_several_domains_and_the_nearest_wins(tmp_path: Path) -> None:
    copy_wikipedia(tmp_path)
    write_pack(tmp_path / "law", domain=EXTENDING, solver=solver_text("law"))
    near = write_pack(tmp_path / "tax", domain="title: Tax\nextends: law\n")
    assert load_pack(near).render(PromptRole.SOLVER, question="Q").startswith("law")
    (near / "solver.md").write_text(solver_text("tax"), encoding="utf-8")
    assert load_pack(near).render(PromptRole.SOLVER, question="Q").startswith("tax")


def test_a_change_in_an_extended_domain_changes_the_hash_unless_it_is_overridden(tmp_path: Path) -> None:
    parent = copy_wikipedia(tmp_path)
    same = load_pack(write_pack(tmp_path / "same", domain="extends: wikipedia\n"))
    assert (same.hash, same.prompts) == (load_pack(parent).hash, load_pack(parent).prompts)
    child = write_pack(tmp_path / "law", domain=EXTENDING, solver=solver_text("law"))
    before = load_pack(child).hash
    replace_in(parent / "solver.md", "Answer the question below.", "Answer this question.")
    assert load_pack(child).hash == before
    replace_in(parent / "grade.md", "Be strict", "Be stern")
    assert load_pack(child).hash != before


def test_the_files_of_a_resolved_pack_load_alone_with_the_same_hash_and_name(tmp_path: Path) -> None:
    copy_wikipedia(tmp_path)
    domain = EXTENDING + "task_types:\n  writing: {weight: 2.5}\n"
    pack = load_pack(write_pack(tmp_path / "law", domain=domain, solver=solver_text("law")))
    copy = tmp_path / "runs" / "prompts"
    copy.mkdir(parents=True)
    for name, text in pack.files().items():
        (copy / name).write_text(text, encoding="utf-8")
    assert load_pack(copy) == pack
    assert load_pack(copy).hash == pack.hash


def test_a_difference_shows_the_changed_lines_of_each_file(tmp_path: Path) -> None:
    pack = copy_wikipedia(tmp_path)
    before = load_pack(pack)
    replace_in(pack / "grade.md", "Be strict", "Be stern")
    replace_in(pack / "domain.yaml", "{1: 4, 2: 3, 3: 2}", "{1: 4, 2: 3, 3: 9}")
    shown = diff_packs(before, load_pack(pack)).splitlines()
    assert [line for line in shown if line.startswith("+++")] == [
        "+++ wikipedia/domain.yaml",
        "+++ wikipedia/grade.md",
    ]
    changed = [line for line in shown if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert changed[:2] == ["-  3: 2", "+  3: 9"]
    assert len(changed) == 4
    assert "Be stern" in changed[3]


def test_a_lexical_judge_needs_the_policys_prompts_only(tmp_path: Path) -> None:
    pack = load_pack(write_pack(tmp_path / "tiny", **TAUGHT_PACK))
    assert pack.domain.judge is JudgeKind.LEXICAL
    assert pack.render(PromptRole.SOLVER, question="who made glass ?") == "who made glass ?"
    assert PromptRole.GRADE not in pack.roles


def test_a_pack_with_a_lexical_judge_still_has_its_other_mistakes_found(tmp_path: Path) -> None:
    files = TAUGHT_PACK | {
        "grade": prompt_text("grade", ["task"], "{{ task }}"),
        "solver": prompt_text("solver", [], "answer"),
    }
    messages = " ".join(problem.what for problem in check_pack(write_pack(tmp_path / "tiny", **files)))
    for said in ("never mentions <score>", "never uses {{ answer }}"):
        assert said in messages
    # A policy that was taught must still be shown its subject.
    assert "never uses {{ question }}, which a solver prompt must show" in messages


@pytest.mark.parametrize(
    ("domain", "extends", "message"),
    [
        ("taken", None, "exists already"),
        ("Law!", None, "small letters, digits and hyphens"),
        ("../law", None, "small letters, digits and hyphens"),
        ("law", "wikipeda", r"did you mean wikipedia\?"),
    ],
)
def test_a_new_pack_is_refused_before_anything_is_written(
    tmp_path: Path, domain: str, extends: str | None, message: str
) -> None:
    copy_wikipedia(tmp_path).with_name("taken").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(PromptError, match=message):
        new_pack(tmp_path, domain, extends)
    assert sorted(tmp_path.rglob("*")) == before
