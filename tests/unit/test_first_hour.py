"""The first hour of a person: the real command in a fresh folder, and what it prints."""

import io
import os
import pty
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from rich.console import Console

from scope_selfplay.base.terminal import LiveProgress, Progress
from scope_selfplay.config.load import load_config
from scope_selfplay.prompts.folder import pack_path
from scope_selfplay.run.begin import open_run
from tests.commands import ran
from tests.doc_commands import environment
from tests.engines import served
from tests.models import write_model
from tests.unit.store.runs import write_run
from tests.unit.viewer.conftest import viewed


def scope(folder: Path, *words: str, **env: str) -> CompletedProcess[str]:
    command = [sys.executable, "-m", "scope_selfplay", *words]
    encoding = env.get("PYTHONIOENCODING", "utf-8")
    return ran(command, cwd=folder, env=environment() | env, timeout=120, encoding=encoding)


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
        "scope: recipes.csv:6: 4 columns, the first line has 3 (id, title, text); a value with a line"
    )
    (tmp_path / "recipes.csv").write_text(rows.replace("Mix, then\nbake.", '"Mix, then\nbake."'))
    assert "2 of 2" in scope(tmp_path, "documents", "recipes.csv").stdout


def test_settings_are_shown_before_the_judge_has_a_place(tmp_path: Path) -> None:
    shown = scope(tmp_path, "config", "--set", "judge.kind=model")
    assert shown.returncode == 0 and "\n  kind: model\n" in shown.stdout
    assert shown.stderr.startswith("before a run begins: a model judge needs judge.endpoint.base_url")
    assert scope(tmp_path, "run", "--set", "judge.kind=model").returncode == 64


def test_a_name_that_is_none_is_told_what_one_is(tmp_path: Path) -> None:
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
    with viewed(folder.path) as opened:
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


CURVE = """
from scope_selfplay.base.terminal import bars, run_command, shown_progress
import click

@click.command()
def work():
    with shown_progress() as progress:
        progress.begin("make tasks", 2)
        progress.plot(0.5)
        progress.say("Käse, 東京")
    click.echo(f"Käse, 東京 {bars([0.0, 0.5, 1.0])}")

run_command(work, "scope")
"""


@pytest.mark.parametrize(
    ("locale", "shown"),
    [
        ("C.UTF-8", "Käse, 東京 ▁▅█"),
        ("C", "Käse, 東京 _=#"),
        ("de_DE.ISO-8859-1", "Käse, \\u6771\\u4eac _=#"),
    ],
)
def test_a_locale_without_blocks_gets_bars_in_ascii_and_ends_nothing(
    tmp_path: Path, locale: str, shown: str
) -> None:
    if "ISO" in locale:
        made = ["localedef", "-c", "-i", "de_DE", "-f", "ISO-8859-1", str(tmp_path / locale)]
        if shutil.which("localedef") is None or ran(made).returncode != 0:
            pytest.skip("needs the sources of locales")
    env = {**environment(), "LC_ALL": locale, "LOCPATH": str(tmp_path)}
    encoding = "latin-1" if "ISO" in locale else "utf-8"
    (tmp_path / "curve.py").write_text(CURVE, encoding="utf-8")
    done = ran([sys.executable, str(tmp_path / "curve.py")], env=env, encoding=encoding)
    assert (done.returncode, done.stdout) == (0, f"{shown}\n"), done.stderr
    pack = scope(tmp_path, "prompts", "show", "wikipedia", LC_ALL=locale, LOCPATH=str(tmp_path))
    assert pack.returncode == 0, pack.stderr


def test_every_reading_command_works_where_letters_are_latin(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "demo")
    page = "# Käse – 東京\n\n" + "Der Käse reift drei Monate in 東京 und wird dann gewogen. " * 4
    (tmp_path / "page.md").write_text(page, encoding="utf-8")
    for command in (
        "documents page.md",
        "tasks ls demo",
        "tasks show demo task-1-001",
        "tasks diff demo S_0 S_1",
        "report demo",
        "prompts diff support wikipedia",
        "judge try gate_source --dry --task @page.md --document @page.md",
    ):
        done = scope(tmp_path, *command.split(), LC_ALL="C", PYTHONIOENCODING="latin-1")
        assert done.returncode == 0 and done.stdout, f"{command}: {done.stderr}"


def test_what_changed_since_a_run_began_is_said_by_the_command_that_goes_on(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("kustomization.yaml")
    shutil.copytree(pack_path("embedded"), tmp_path / "packs" / "mine", ignore=ignored)
    given = [f"domain={tmp_path}/packs/mine", "corpus.sample=16", "model.slots=4"]
    config = load_config(None, [*given, f"model.path={write_model(tmp_path / 'model')}"])
    open_run(config, tmp_path / "runs", Progress())
    with (tmp_path / "packs" / "mine" / "solver.md").open("a") as prompt:
        prompt.write("\nBe brief.\n")
    command = [sys.executable, "-m", "scope_selfplay", "continue", "runs/demo"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    ) as going_on:
        assert going_on.stderr
        said = going_on.stderr.readline()
        going_on.terminate()
    keeps = "the run keeps its own, another --name begins one with these"
    assert f"/packs/mine: other prompts since the run began; {keeps}\n" in said, said


def prose(method: str, path: str, body: object) -> tuple[int, object]:
    if method == "GET":
        return 200, {"data": [{"id": "prose"}]}
    said = {
        "message": {"role": "assistant", "content": "One could see it either way."},
        "finish_reason": "stop",
    }
    return 200, {"choices": [said], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}


def test_a_judge_that_answers_prose_stops_the_start_and_its_exam_can_be_read(tmp_path: Path) -> None:
    rows = (
        f'{{"id": "{n}", "title": "Soup {n}", "text": "Soup {n} boils {n} minutes."}}\n' for n in range(40)
    )
    (tmp_path / "soups.jsonl").write_text("".join(rows))
    with served(prose) as url:
        settings = (
            *"corpus.path=soups.jsonl iterations=1 compare.tasks=2 tasks.target=2 solver.batch=2".split(),
            *"challenger.steps=1 challenger.batch=2 judge.kind=model".split(),
            f"judge.endpoint.base_url={url}/v1",
        )
        options = [word for each in settings for word in ("--set", each)]
        stopped = scope(tmp_path, "run", "--name", "soups", *options)
        warned = scope(tmp_path, "run", "--name", "warned", *options, "--set", "judge.exam=report").stderr
    assert stopped.returncode == 64 and not (tmp_path / "runs" / "soups").exists()
    last = stopped.stderr.splitlines()[-1]
    assert "judge's exam: the judge cannot answer gate_entity, compare_scores: 0.00" in last, stopped.stderr
    assert "One could see it" in last and "`scope judge exam runs/soups` shows each question" in last
    assert "gate_entity" in scope(tmp_path, "judge", "exam", "runs/soups").stdout
    assert warned.count("judge's exam: the judge cannot answer") == 1 and "make held-out tasks" in warned


@pytest.mark.parametrize(("env", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_is_coloured_but_for_those_who_want_none(
    tmp_path: Path, env: dict[str, str], is_coloured: bool
) -> None:
    command = [sys.executable, "-m", "scope_selfplay", "doctor"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, cwd=tmp_path, env=environment() | env, stdout=theirs, stderr=theirs):
        os.close(theirs)
        said = b""
        with suppress(OSError):  # How Linux says that the other end is closed.
            while part := os.read(ours, 4096):
                said += part
    os.close(ours)
    assert b"torch" in said and (b"\x1b[3" in said) == is_coloured
    assert "\x1b" not in scope(tmp_path, "doctor", **env).stdout


def test_windows_is_told_of_wsl_in_the_first_line() -> None:
    code = "import sys; sys.platform = 'win32'; from scope_selfplay.__main__ import main; main()"
    done = ran([sys.executable, "-c", code], env=environment())
    assert done.returncode and done.stderr.startswith("scope: Windows needs WSL")
