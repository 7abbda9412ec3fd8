"""A resolved pack: its hash, inheritance, copies, differences, and how a new one begins."""

from pathlib import Path

import pytest

from scope_selfplay.base.errors import PromptError
from scope_selfplay.base.values import Document, Gate, Task
from scope_selfplay.config.judge import JudgeConfig
from scope_selfplay.corpus.screen import TaskSource
from scope_selfplay.judge.protocol import RubricQuestion
from scope_selfplay.judge.questions import JudgePrompts
from scope_selfplay.policy.episodes import ChallengerPrompts
from scope_selfplay.prompts.commands import new_pack
from scope_selfplay.prompts.folder import check_pack, load_pack, pack_path, shipped_prompts
from scope_selfplay.prompts.pack import JudgeKind
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.run.candidate import challenger_prompts
from tests.unit.prompts.packs import PROMPTS, TAUGHT_PACK, copy_wikipedia, prompt_text, replace_in, write_pack

EXTENDING = "title: Law\nextends: wikipedia\n"


def solver_text(first_line: str) -> str:
    return prompt_text("solver", ["question"], first_line + "\n<answer>...</answer>\n{{ question }}")


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("grade.md", "Be strict", "Be  strict", True),
        ("grade.md", "native_thinking]", "native_thinking ]", True),
        ("kustomization.yaml", "generatorOptions:", "# by hand\ngeneratorOptions:", False),
        ("domain.yaml", "{1: 4, 2: 3, 3: 2}", "{1: 4, 2: 3, 3: 3}", True),
        ("domain.yaml", "title: Wikipedia", "title: The Wikipedia", True),
        ("domain.yaml", "[entity, source, safety]", "[entity, source]", True),
        ("domain.yaml", "enabled: false", "enabled: true", True),
        ("domain.yaml", "# Searches that", "# The searches that", False),
        ("domain.yaml", "gates: [entity, source, safety]", "gates:  [entity,source,safety]", False),
        ("domain.yaml", "enabled: false", "enabled: false\njudge: model", False),
    ],
)
def test_the_hash_changes_exactly_when_a_prompt_or_a_setting_does(
    tmp_path: Path, file: str, old: str, new: str, changes: bool
) -> None:
    pack = copy_wikipedia(tmp_path)
    before = load_pack(pack)
    replace_in(pack / file, old, new)
    after = load_pack(pack)
    assert (before.hash != after.hash) == (before.files() != after.files()) == changes


def test_place_and_line_ends_and_a_byte_order_mark_do_not_count_for_the_hash(tmp_path: Path) -> None:
    pack = copy_wikipedia(tmp_path)
    content = (pack / "solver.md").read_bytes()
    (pack / "solver.md").write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    (pack / "kustomization.yaml").unlink()
    moved = pack.rename(tmp_path / "elsewhere")
    assert load_pack(moved).hash == load_pack(PROMPTS / "wikipedia").hash
    (tmp_path / "linked").symlink_to(moved)
    assert load_pack(tmp_path / "linked").domain.name == "linked"


def test_a_domain_inherits_what_it_does_not_say(tmp_path: Path) -> None:
    copy_wikipedia(tmp_path)
    domain = EXTENDING + (
        "gates: [entity]\nsearch_turns: {1: 0, 2: 1}\ntask_types:\n  writing: {weight: 3}\n"
        "  planning: {enabled: false}\n  brief:\n    description: A legal brief.\n"
    )
    pack = load_pack(write_pack(tmp_path / "law", domain=domain, solver=solver_text("You know the law.")))
    parent, own = load_pack(tmp_path / "wikipedia"), pack.domain
    assert (own.name, own.title, own.corpus) == ("law", "Law", parent.domain.corpus)
    assert (own.gates, own.search_turns) == ((Gate.ENTITY,), {1: 0, 2: 1})
    inherited = {kind.name: kind for kind in parent.domain.task_types}
    types = {kind.name: kind for kind in own.task_types}
    assert list(types) == [*inherited, "brief"] and not types["planning"].enabled
    assert types["writing"] == inherited["writing"].model_copy(update={"weight": 3})
    assert pack.render(PromptRole.SOLVER, question="Q").startswith("You know the law.")
    values = {"task": "T", "answer": "A", "criterion": "C"}
    assert pack.render(PromptRole.GRADE, **values) == parent.render(PromptRole.GRADE, **values)


@pytest.mark.parametrize("extended", ["wikipedia", "support", "small"])
def test_tasks_are_in_the_documents_language_or_in_the_domains_and_like_its_examples(
    tmp_path: Path, extended: str
) -> None:
    def told(more: str) -> ChallengerPrompts:
        pack = load_pack(write_pack(tmp_path / "amt", domain=f"title: Amt\nextends: {extended}\n{more}"))
        assert load_pack(write_pack(tmp_path / "run" / "amt", **_stems(pack.files()))) == pack
        document = Document(id="a", title="Ein Titel", text="?", metadata={"language": "de"})
        kind = next(each.name for each in pack.domain.task_types if each.enabled)
        return challenger_prompts(pack, "<search>", TaskSource(document, kind, 2))

    plain = told("")
    assert "in German (de)" in plain.opening and "as they should be" not in plain.opening
    own = told("language: French\nexamples: [Warum so spät, Was kostet es]\n")
    assert " in French" in own.opening and (plain.language, own.language) == ("de", "fr")
    assert "as they should be:\n- Warum so spät\n- Was kostet es" in own.opening
    if extended == "small":
        # A small model does as the last prompt says.
        assert "in German (de)" in plain.closing and "in French" in own.closing


def test_rubrics_are_in_the_language_of_their_tasks(tmp_path: Path) -> None:
    def asked(more: str, language: str) -> tuple[str, str]:
        pack = load_pack(write_pack(tmp_path / "amt", domain=f"title: Amt\nextends: small\n{more}"))
        document = Document(id="a", title="Ein Titel", text="?", metadata={"language": language})
        task = Task(id="t", text="Warum so?", type="long_form_qa", document_id="a")
        made = JudgePrompts(pack, JudgeConfig(), key=b"k").render(RubricQuestion(task, [document]))
        return made.prompt, made.form

    for more, language, name in (("", "de-AT", "German"), ("language: French\n", "de", "French")):
        prompt, form = asked(more, language)
        assert f"They are in {name}." in prompt and "States that" not in prompt + form
    for more, language in (("", "en"), ("language: English\n", "de")):
        prompt, form = asked(more, language)
        assert "the language of the request" in prompt and '"text": "States that [' in form


def _stems(files: dict[str, str]) -> dict[str, str]:
    return {name.partition(".")[0]: text for name, text in files.items()}


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
    # Inheritance goes over several domains.
    near = write_pack(tmp_path / "tax", domain="title: Tax\nextends: law\n")
    assert load_pack(near).render(PromptRole.SOLVER, question="Q").startswith("law")


def test_the_files_of_a_resolved_pack_load_alone_with_the_same_hash_and_name(tmp_path: Path) -> None:
    copy_wikipedia(tmp_path)
    domain = "title: Öffentliches Recht\nextends: wikipedia\ntask_types:\n  writing: {weight: 2.5}\n"
    pack = load_pack(write_pack(tmp_path / "law", domain=domain, solver=solver_text("law")))
    copy = tmp_path / "runs" / "prompts"
    copy.mkdir(parents=True)
    for name, text in pack.files().items():
        (copy / name).write_text(text, encoding="utf-8")
    assert load_pack(copy) == pack and load_pack(copy).hash == pack.hash
    assert pack.files()["domain.yaml"].startswith("name: law\ntitle: Öffentliches Recht\ngates:\n")


def test_a_lexical_judge_needs_the_policys_prompts_only(tmp_path: Path) -> None:
    pack = load_pack(write_pack(tmp_path / "tiny", **TAUGHT_PACK))
    assert pack.domain.judge is JudgeKind.LEXICAL
    # In every version, so that a run goes on.
    assert pack.hash == "52a4511766bca642"
    # Braces of JSON and LaTeX stay.
    assert pack.render(PromptRole.SOLVER, question="who?") == '{"a": {"b": [1]}} \\boxed{A} {x} who?'
    assert PromptRole.GRADE not in pack.roles
    # A policy that was taught must still be shown its subject.
    problems = check_pack(write_pack(tmp_path / "tiny", solver=prompt_text("solver", [], "answer")))
    assert "never uses {{ question }}, which a solver" in " ".join(problem.what for problem in problems)


@pytest.mark.parametrize(
    ("domain", "extends", "message"),
    [
        ("taken", None, "exists already"),
        ("../Law!", None, "small letters, digits and hyphens"),
        ("law", "wikipeda", r"did you mean wikipedia\?"),
        ("embedded", None, "name of a pack that ships"),
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


def test_a_bare_name_is_a_shipped_pack_or_one_below_prompts_and_one_with_a_slash_that_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (Path("wikipedia"), Path("prompts/wikipedia")):
        write_pack(folder, domain="title: Mine\n")
    assert pack_path("wikipedia") == shipped_prompts() / "wikipedia" == PROMPTS / "wikipedia"
    assert pack_path("./wikipedia") == pack_path("wikipedia/") == Path("wikipedia")
    assert pack_path(str(Path("wikipedia").resolve())) == Path("wikipedia").resolve()
    for name, said in (("prompts/math", "prompts/math: no such folder"), ("law", "is given with a slash$")):
        with pytest.raises(PromptError, match=said):
            pack_path(name)
    write_pack(Path("law"), domain=EXTENDING)
    with pytest.raises(PromptError, match=r"so write \./law$"):
        pack_path("law")
    write_pack(Path("prompts/law"), domain=EXTENDING)
    assert pack_path("law") == Path("prompts/law")
