"""The first hour of a person: the real command in a fresh folder, and what it prints."""

import io
import os
import re
import shutil
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from rich.console import Console
from starlette.testclient import TestClient

from scope_selfplay.base.terminal import LiveProgress
from scope_selfplay.report.app import Site, build_app
from scope_selfplay.report.pages import ShownRun
from tests.commands import ran
from tests.doc_commands import environment
from tests.unit.store.runs import write_run


def scope(folder: Path, *words: str, **env: str) -> CompletedProcess[str]:
    command = [sys.executable, "-m", "scope_selfplay", *words]
    return ran(command, cwd=folder, env=environment() | env, timeout=120)


def test_a_check_of_all_packs_finds_the_mistake_in_ones_own(tmp_path: Path) -> None:
    assert scope(tmp_path, "prompts", "new", "recipes").returncode == 0
    assert "recipes" in scope(tmp_path, "prompts", "check").stderr
    (tmp_path / "prompts" / "recipes" / "domain.yaml").write_text("title: Recipes\nextends: wikipeda\n")
    done = scope(tmp_path, "prompts", "check")
    assert done.returncode == 64 and "recipes/domain.yaml:2: extends wikipeda" in done.stdout


def test_a_row_that_does_not_fit_is_named_by_the_line_where_it_begins(tmp_path: Path) -> None:
    rows = 'id,title,text\n1,Soup,"Boil.\n\nServe."\n\n2,Bread,Mix, then\nbake.\n'
    (tmp_path / "recipes.csv").write_text(rows)
    said = scope(tmp_path, "documents", "recipes.csv").stderr
    assert said.startswith(
        "scope: recipes.csv:6: 4 columns, the head has 3 (id, title, text); a value with a line"
    )
    (tmp_path / "recipes.csv").write_text(rows.replace("Mix, then\nbake.", '"Mix, then\nbake."'))
    assert scope(tmp_path, "documents", "recipes.csv").stderr.startswith("2 documents")


def test_settings_are_shown_before_there_is_a_judge_and_names_are_explained(tmp_path: Path) -> None:
    done = scope(tmp_path, "config", "--set", "judge.kind=model", "--name", "soup")
    assert (done.returncode, done.stdout.startswith("name: soup\n")) == (0, True)
    assert (
        "no run begins with these settings: --set judge.kind=model: judge: a model judge needs" in done.stderr
    )
    refused = scope(tmp_path, "config", "--name", "ä ö")
    assert refused.returncode == 64 and "at most 32 small letters, digits and hyphens" in refused.stderr
    assert "[a-z0-9]" not in refused.stderr


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_live_table_is_no_wider_than_the_terminal(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    with LiveProgress(console) as live:
        live.begin("iteration 1: train the Challenger", 7)
        live.advance(3, "reward 0.45, difficulty 0.33, 35 rollouts under way, 1,234 tokens/s")
        for step in range(30):
            live.plot(step / 30)
    frames = console.file.getvalue().split("\x1b[2K")  # type: ignore[attr-defined]
    frame = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frames[-1].partition("\n")[0])
    assert len(frame) <= width and "iteration 1: train" in frame
    assert width < 60 or ("3 of 7" in frame and frame.rstrip().endswith("0:00:00"))


def test_a_run_that_is_deleted_while_it_is_viewed_is_a_page_that_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo")
    with TestClient(build_app(ShownRun(folder.path), Site()), base_url="http://localhost") as opened:
        page = opened.get("/tasks/0/tasks/candidate-0-tasks-003").text
        assert '\n<span class="dim">iteration 0' in page, "a space between the task's type and its iteration"
        shutil.rmtree(folder.path)
        for path in ("/", "/tasks", "/compare", "/training"):
            got = opened.get(path)
            assert got.status_code == 404 and "was deleted or moved" in got.text


def test_next_steps_name_the_program_as_this_shell_reaches_it(tmp_path: Path) -> None:
    programs = tmp_path / "my project" / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    code = "from scope_selfplay.base.terminal import scope_command; print(scope_command())"
    site = os.pathsep.join([environment()["PYTHONPATH"], *sys.path])

    def named(path: Path, folder: Path) -> str:
        env = {**environment(), "PATH": str(path), "PYTHONPATH": site}
        return ran([str(programs / "python"), "-c", code], cwd=folder, env=env).stdout.strip()

    assert named(tmp_path, tmp_path) == f"'{programs / 'python'}' -m scope_selfplay"
    (programs / "scope").touch(mode=0o755)
    assert named(programs, tmp_path) == "scope"
    assert named(tmp_path, programs.parents[1]) == ".venv/bin/scope"
    assert named(tmp_path, tmp_path / "my project" / ".venv") == "bin/scope"
