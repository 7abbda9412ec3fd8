"""`scope prompts ...` as a person runs it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scope_selfplay.base.errors import ExitCode, PromptError
from scope_selfplay.prompts.commands import prompts
from scope_selfplay.prompts.folder import load_pack
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


def test_a_role_is_shown_as_it_is_and_where_it_comes_from_beside_it() -> None:
    result = scope_prompts("show", "embedded", "solver")
    assert result.stdout == (PROMPTS / "embedded" / "solver.md").read_text() + "\n"
    assert result.stderr == f"=== solver.md (own: {PROMPTS.as_posix()}/embedded/solver.md)\n"
    assert scope_prompts("show", "embedded", "solvr").exit_code == 2
    assert "title: The embedded world" in scope_prompts("show", "embedded", "domain").stdout


def test_it_is_shown_which_file_and_key_is_own_and_which_inherited() -> None:
    domain = (
        "title: Law\nextends: wikipedia\ngates: [entity]\ntask_types:\n  writing:\n    weight: 2\n"
        "  brief:\n    description: Write a brief.\n"
    )
    solver = prompt_text("solver", ["question"], "<answer>x</answer>\n{{ question }}")
    write_pack(Path("prompts/law"), domain=domain, solver=solver)
    shown = json.loads(scope_prompts("show", "law", "--json").stdout)
    origins = {each["what"]: (each["reason"], each["place"]) for each in shown["origins"]}
    wikipedia = PROMPTS.as_posix() + "/wikipedia"
    assert origins["gates"] == ("own", "prompts/law/domain.yaml:3")
    assert origins["judge"] == ("the default", "")
    assert origins["search_turns"][0] == "inherited from wikipedia"
    assert origins["search_turns"][1].startswith(f"{wikipedia}/domain.yaml:")
    assert origins["task_types.writing"] == ("own, over wikipedia", "prompts/law/domain.yaml:5")
    assert origins["task_types.brief"] == ("own", "prompts/law/domain.yaml:7")
    assert origins["solver.md"] == ("own, instead of that of wikipedia", "prompts/law/solver.md")
    assert origins["grade.md"] == ("inherited from wikipedia", f"{wikipedia}/grade.md")
    assert origins["gate_source.md"][0].endswith("unused: the gate source is not in use")
    tiny = json.loads(scope_prompts("show", "embedded", "--json").stdout)["origins"]
    reasons = {each["what"]: each["reason"] for each in tiny}
    assert reasons["grade.md"] == "not needed: a lexical judge reads no prompts"
    assert shown["files"].keys() == {
        "domain.yaml",
        *(role.file_name for role in PromptRole if role is not PromptRole.SOLVER_READING),
    }
    whole = scope_prompts("show", "law").stdout
    assert "=== solver.md (own, instead of that of wikipedia: prompts/law/solver.md)" in whole
    assert "=== grade.md (inherited from wikipedia: " in whole
    changes = scope_prompts("diff", "law", "wikipedia").stdout.splitlines()
    for line in ("--- law/solver.md", "+++ wikipedia/solver.md", "-<answer>x</answer>", "-title: Law"):
        assert line in changes
    assert "--- law/grade.md" not in changes
    assert scope_prompts("diff", "law", "law").stdout.strip() == ""


def test_a_new_pack_is_complete() -> None:
    made = scope_prompts("new", "tax-law", "grade", "solver").stdout.split()
    files = ("domain.yaml", "kustomization.yaml", "grade.md", "solver.md")
    assert made == [f"prompts/tax-law/{name}" for name in files]
    assert scope_prompts("check", "tax-law").exit_code == 0
    assert load_pack(Path("prompts/tax-law")).domain.title == "Tax law"


def test_an_inherited_prompt_can_be_taken_into_the_pack_and_is_listed() -> None:
    scope_prompts("new", "law")
    listing = Path("prompts/law/kustomization.yaml")
    listing.write_text("# by hand\n" + listing.read_text())
    before = load_pack("prompts/law").hash
    assert scope_prompts("new", "law", "grade").stdout == "prompts/law/grade.md\n"
    assert Path("prompts/law/grade.md").read_bytes() == (PROMPTS / "wikipedia" / "grade.md").read_bytes()
    assert listing.read_text().startswith("# by hand\n")
    assert scope_prompts("check", "law").exit_code == 0
    # The words are the same, wherever they lie.
    assert load_pack("prompts/law").hash == before
    again = scope_prompts("new", "law", "grade").exception
    assert isinstance(again, PromptError) and "in the pack already" in str(again)
    # A lexical judge reads no prompts.
    write_pack(Path("prompts/tiny"), domain="title: Tiny\nextends: embedded\n")
    assert "needs no grade prompt" in str(scope_prompts("new", "tiny", "grade").exception)
