"""`scope prompts ...` as a person runs it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scope_selfplay.base.errors import CheckpointError, ExitCode, PromptError
from scope_selfplay.prompts.commands import prompts
from scope_selfplay.prompts.folder import SHIPPED, load_pack
from scope_selfplay.prompts.roles import PromptRole
from tests.unit.prompts.packs import PROMPTS, copy_wikipedia, prompt_text, replace_in, write_pack

PACKS = sorted(path.parent.name for path in PROMPTS.glob("*/domain.yaml"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def scope_prompts(*arguments: str) -> Result:
    return CliRunner().invoke(prompts, arguments)


def test_every_shipped_pack_is_checked_when_none_is_named() -> None:
    result = scope_prompts("check")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"{len(PACKS)} pack(s) without mistakes: {', '.join(PACKS)}\n"


def test_mistakes_are_lines_on_stdout_and_the_exit_code_is_64(tmp_path: Path) -> None:
    pack = copy_wikipedia(tmp_path)
    line = replace_in(pack / "solver.md", "{{ question }}", "{{ qustion }}")
    result = scope_prompts("check", "./wikipedia")
    assert result.exit_code == ExitCode.USER
    assert result.stdout.startswith(f"wikipedia/solver.md:{line}: uses {{{{ qustion }}}};")
    [problem] = json.loads(scope_prompts("check", "./wikipedia", "--json").stdout)
    assert problem["where"] == f"wikipedia/solver.md:{line}"
    assert problem["what"].startswith("uses {{ qustion }};")


def test_budgets_can_be_counted_with_a_tokenizer_and_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the retrieval extra")
    # One token a character: every prompt of the pack is over its budget.
    model = tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.enable_padding(length=4096)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for given in ("tokenizer.json", "."):
        result = scope_prompts("check", "wikipedia", "--tokenizer", given)
        assert result.exit_code == ExitCode.USER
        body = next(p.body for p in load_pack(PROMPTS / "wikipedia").prompts if p.role == PromptRole.GRADE)
        assert f"takes about {len(body)} tokens; a grade prompt has 1000" in result.stdout

    (tmp_path / "tokenizer.json").write_text("{}")
    error = scope_prompts("check", "wikipedia", "--tokenizer", ".").exception
    assert isinstance(error, CheckpointError) and "\n" not in str(error)


def test_a_role_is_shown_as_it_is_and_where_it_comes_from_beside_it() -> None:
    result = scope_prompts("show", "embedded", "solver")
    assert result.stdout == (PROMPTS / "embedded" / "solver.md").read_text() + "\n"
    assert result.stderr == f"=== solver.md (own: {PROMPTS.as_posix()}/embedded/solver.md)\n"
    assert scope_prompts("show", "embedded", "solvr").exit_code == 2
    assert "title: The embedded world" in scope_prompts("show", "embedded", "domain").stdout


def law() -> None:
    """A pack below prompts/ that changes one file, one key and one weight, and adds a task type."""
    domain = (
        "title: Law\nextends: wikipedia\ngates: [entity]\ntask_types:\n  writing:\n    weight: 2\n"
        "  brief:\n    description: Write a brief.\n"
    )
    solver = prompt_text("solver", ["question"], "<answer>x</answer>\n{{ question }}")
    write_pack(Path("prompts/law"), domain=domain, solver=solver)


def test_it_is_shown_which_file_and_key_is_own_and_which_inherited() -> None:
    law()
    shown = json.loads(scope_prompts("show", "law", "--json").stdout)
    assert len(shown["hash"]) == 16
    origins = {each["what"]: (each["reason"], each["place"]) for each in shown["origins"]}
    wikipedia = PROMPTS.as_posix() + "/wikipedia"
    assert origins["title"] == ("own", "prompts/law/domain.yaml:1")
    assert origins["gates"] == ("own", "prompts/law/domain.yaml:3")
    assert origins["judge"] == ("the default", "")
    assert origins["search_turns"][0] == "inherited from wikipedia"
    assert origins["search_turns"][1].startswith(f"{wikipedia}/domain.yaml:")
    assert origins["task_types.writing"] == ("own, over wikipedia", "prompts/law/domain.yaml:5")
    assert origins["task_types.brief"] == ("own", "prompts/law/domain.yaml:7")
    assert origins["task_types.planning"][0] == "inherited from wikipedia"
    assert origins["solver.md"] == ("own, instead of that of wikipedia", "prompts/law/solver.md")
    assert origins["grade.md"] == ("inherited from wikipedia", f"{wikipedia}/grade.md")
    assert origins["gate_source.md"][0].endswith("unused: the gate source is not in use")
    assert shown["files"].keys() == {"domain.yaml", *(role.file_name for role in PromptRole)}
    whole = scope_prompts("show", "law").stdout
    assert "=== solver.md (own, instead of that of wikipedia: prompts/law/solver.md)" in whole
    assert "=== grade.md (inherited from wikipedia: " in whole


def hash_of(domain: str) -> str:
    shown = json.loads(scope_prompts("show", domain, "--json").stdout)
    return str(shown["hash"])


def test_a_prompt_that_is_not_needed_says_why_and_cannot_be_taken() -> None:
    shown = json.loads(scope_prompts("show", "embedded", "--json").stdout)
    reasons = {each["what"]: each["reason"] for each in shown["origins"]}
    assert reasons["grade.md"] == "not needed: a lexical judge reads no prompts"
    write_pack(Path("prompts/tiny"), domain="title: Tiny\nextends: embedded\n")
    error = scope_prompts("new", "tiny", "grade").exception
    assert isinstance(error, PromptError) and "needs no grade prompt" in str(error)


def test_packs_are_compared() -> None:
    assert "embedded/solver.md" in scope_prompts("diff", "embedded", "wikipedia").stdout
    assert scope_prompts("diff", "embedded", "embedded").stdout.strip() == ""


def test_a_new_pack_may_extend_nothing_and_lacks_only_the_examples_of_its_gates() -> None:
    assert scope_prompts("new", "law", "--blank").stdout.count("\n") == len(PromptRole) + 2
    assert "extends" not in Path("prompts/law/domain.yaml").read_text()
    problems = json.loads(scope_prompts("check", "law", "--json").stdout)
    files = {Path(each["where"].rpartition(":")[0]).name for each in problems}
    assert files == {f"gate_{gate}.md" for gate in ("entity", "source", "safety")}
    assert all("shows 0 examples" in each["what"] for each in problems)


def test_an_inherited_prompt_can_be_taken_into_the_pack_and_is_listed() -> None:
    scope_prompts("new", "law")
    listing = Path("prompts/law/kustomization.yaml")
    listing.write_text("# by hand\n" + listing.read_text())
    before = hash_of("law")
    assert scope_prompts("new", "law", "grade").stdout == "prompts/law/grade.md\n"
    assert Path("prompts/law/grade.md").read_bytes() == (PROMPTS / "wikipedia" / "grade.md").read_bytes()
    assert listing.read_text().startswith("# by hand\n")
    assert scope_prompts("check", "law").exit_code == 0
    # The words are the same, wherever they lie.
    assert hash_of("law") == before
    again = scope_prompts("new", "law", "grade").exception
    assert isinstance(again, PromptError) and "in the pack already" in str(again)
    assert "did you mean solver?" in str(scope_prompts("new", "law", "solvr").exception)


@pytest.mark.parametrize("changed", [(), ("grade", "solver")])
def test_a_pack_is_begun_complete_with_the_prompts_that_are_to_be_changed(changed: tuple[str, ...]) -> None:
    made = scope_prompts("new", "tax-law", *changed).stdout.split()
    files = ["domain.yaml", "kustomization.yaml", *(f"{role}.md" for role in changed)]
    assert made == [f"prompts/tax-law/{name}" for name in files]
    assert scope_prompts("check", "tax-law").exit_code == 0
    assert load_pack(Path("prompts/tax-law")).domain.title == "Tax law"


@pytest.mark.parametrize("domain", SHIPPED)
def test_of_a_shipped_pack_one_of_ones_own_is_offered_by_commands_that_work(domain: str) -> None:
    before = names_and_texts(PROMPTS / domain)
    error = scope_prompts("new", domain, "solver").exception
    assert isinstance(error, PromptError) and "pack of your own" in str(error)
    assert names_and_texts(PROMPTS / domain) == before
    command = str(error).partition("there: ")[2]
    assert scope_prompts(*command.split()[2:]).exit_code == 0, command
    own = PROMPTS / domain / "solver.md"
    # A pack that has no such prompt takes it from the one that it extends.
    source = own if own.exists() else PROMPTS / "wikipedia" / "solver.md"
    assert Path(f"prompts/my-{domain}/solver.md").read_bytes() == source.read_bytes()


def names_and_texts(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_the_packs_that_ship_are_those_of_the_repository() -> None:
    assert sorted(SHIPPED) == PACKS
