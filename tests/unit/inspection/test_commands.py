"""The commands as they are used: in a pipe, with --json, over text that wants to own the terminal."""

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from scope_selfplay.base.errors import UserError
from scope_selfplay.cli import cli
from scope_selfplay.report.record import show_list
from scope_selfplay.report.rendering import render_report
from scope_selfplay.store.files import write_records
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.query import TaskQuery
from scope_selfplay.store.reader import RunReader
from tests.unit.store.runs import candidate, write_judgements, write_run
from tests.unit.viewer.test_pages import Elements

pytestmark = pytest.mark.integration

HOSTILE = "\x1b[2J\x1b]0;owned\x07 <script>alert(1)</script>\tand \u202e\nmore " + "long " * 80


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    made = write_run(tmp_path_factory.mktemp("runs") / "demo")
    stage = made.stage(2, Stage.TASKS)
    rows = [candidate(2, number) for number in range(30)]
    task = rows[2].task
    assert task is not None
    rows[2] = rows[2].model_copy(update={"task": task.model_copy(update={"text": HOSTILE}), "mean": 0.5})
    write_records(stage.candidates, rows)
    return made


def call(folder: RunFolder, *words: str) -> Result:
    return CliRunner().invoke(cli, ["tasks", words[0], str(folder.path), *words[1:]])


def test_a_piped_list_has_one_whole_task_a_line(folder: RunFolder) -> None:
    done = call(folder, "ls", "--iteration", "2", "--limit", "100")
    header, *lines = done.stdout.splitlines()
    assert len(lines) == 30 and all(line.count("\t") == header.count("\t") for line in lines)
    assert ("long " * 80).strip() in done.stdout
    assert "\x1b" not in done.stdout and "\u202e" not in done.stdout and "\x07" not in done.stdout


def test_filters_and_sorting_reach_the_list(folder: RunFolder) -> None:
    def listed(*words: str) -> Any:
        return json.loads(call(folder, "ls", *words, "--json").stdout)

    found = listed("--status", "accepted", "--min", "0.5", "--sort", "mean", "--desc")
    means = [line["mean"] for line in found["lines"]]
    assert found["total"] == 19 and means == sorted(means, reverse=True) and min(means) >= 0.5
    both = listed("--gate", "source", "--searches", "2")
    assert both["total"] == 6 and {line["search_turns"] for line in both["lines"]} == {2}
    assert call(folder, "ls", "--gate", "none").exit_code == 2


def test_a_terminal_gets_every_task_whole_at_any_width(folder: RunFolder) -> None:
    console = Console(width=72, record=True, file=StringIO())
    with RunReader(folder.path) as reader:
        show_list(reader.tasks(TaskQuery(iteration=2, limit=3)), console)
    text = console.export_text()
    assert len(re.findall(r"\blong\b", text)) == 80 and "…" not in text
    assert "--offset 3 shows the next" in text


def test_one_task_is_shown_with_all_that_was_kept_of_it(folder: RunFolder) -> None:
    text = call(folder, "show", "task-0-003", "--passages").stdout
    for part in (
        "== Task task-0-003",
        "== Source document doc-003",
        "A treaty\n",
        "== Gate source: yes",
        "[critical] Identifies the builder.",
        "== Attempt 2: S_0-bb, finished, 0 searches, score",
        "== Iteration 2, compare: S_2-cc",
        "== S_0-cc against S_1-cc: 0.25 : -1",
        "seed         7",
    ):
        assert part in text, part
    found = json.loads(call(folder, "show", "task-0-003", "--json").stdout)
    assert [len(found[name]) for name in ("attempts", "other_attempts", "comparisons")] == [2, 3, 2]


def test_a_judges_picks_and_numbers_are_shown_with_their_reasons(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo")
    write_judgements(folder, 1, "task-1-003", HOSTILE)
    text = call(folder, "show", "task-1-003").stdout
    for part in (
        "== Picked in iteration 1, solver: trained-1-2\n  shown      trained-1-0",
        "== Picked in iteration 1, solver: no verdict",
        "  7.5        trained-1-0 (explicit, criterion 2; iteration 1, solver)\n  judge      \\x1b[2J",
        "  no verdict trained-1-1 (implicit; iteration 1, solver)\n  unreadable",
    ):
        assert part in text, part
    assert "another task" not in text and "\x1b" not in text
    found = json.loads(call(folder, "show", "task-1-003", "--json").stdout)
    assert found["selections"][0]["selection"]["verdict"]["reasoning"] == HOSTILE
    assert [each["score"]["value"] for each in found["scores"]] == [7.5, None]


def test_stats_count_every_candidate_and_two_checkpoints_are_compared_on_the_same_tasks(
    folder: RunFolder,
) -> None:
    text = CliRunner().invoke(cli, ["report", str(folder.path)]).stdout
    assert "== Iteration 2" in text and "kept" in text and "near duplicates" in text
    assert re.search(r"mean score of tried tasks +0\.333 fine +0\.\d+ fine +0-1 +0\.3 to 0\.7\n", text)
    assert re.search(r"near duplicates +0\.000 fine +\S+ \w+( !)? +share +at most 0\.1\n", text)
    page = json.loads(CliRunner().invoke(cli, ["report", str(folder.path), "--json"]).stdout)
    (iteration,) = (section["parts"] for section in page if section["title"] == "Iteration 1")
    funnel, _, histogram, *_ = (part["rows"] for part in iteration)
    assert [int(row[1]) for row in funnel] == [30, 24, 18, 18, 18, 12]
    assert sum(int(row[1]) for row in histogram) == 18
    assert re.search(r"candidates kept +0\.400 fine +0\.\d+ fine", text), "iterations, beside each other"
    first, _, *lines = call(folder, "diff", "S_0", "S_2").stdout.splitlines()
    assert first.startswith("S_2 minus S_0: +0.000 [-0.278, +0.278] over 10 tasks") and not lines


def test_a_report_replaces_a_file_only_when_told_to(folder: RunFolder, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("mine")
    command = ["report", str(folder.path), "-o", str(target)]
    done = CliRunner().invoke(cli, command)
    assert isinstance(done.exception, UserError) and "--force" in str(done.exception)
    assert target.read_text() == "mine"
    assert CliRunner().invoke(cli, [*command, "--force"]).exit_code == 0 and "<html" in target.read_text()
    assert CliRunner().invoke(cli, [*command, "--force", "--samples", "5"]).exit_code == 0
    alone = CliRunner().invoke(cli, ["report", str(folder.path), "--samples", "5"])
    assert isinstance(alone.exception, UserError) and "give -o" in str(alone.exception)
    # Held-out tasks too, with what Solvers answered.
    assert [target.read_text().count(f"Iteration {number}, accepted") for number in (0, 1, 2)] == [5, 5, 5]


def test_the_report_needs_nothing_outside_itself_and_escapes_what_models_wrote(folder: RunFolder) -> None:
    with RunReader(folder.path) as reader:
        text = render_report(reader)
    page = Elements(text)
    assert not {"script", "link", "iframe", "img"} & set(page.names)
    assert not [name for name, _ in page.attributes if name in ("src", "href") or name.startswith("on")]
    assert "&lt;script&gt;alert(1)" in text and "\x1b" not in text
    assert text.count("<svg") > 5 and "Iteration 2" in text and "default-src" in text
