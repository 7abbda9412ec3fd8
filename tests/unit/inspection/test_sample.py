"""Random tasks read whole, and a sheet of them that a person marks: what is marked is held against the judge."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scope_selfplay.cli import cli
from scope_selfplay.errors import UserError
from scope_selfplay.schemas import Candidate
from scope_selfplay.store import RunFolder, Stage, read_records, write_records
from scope_selfplay.store.human import HumanFolder
from tests.unit.store.runs import write_run

pytestmark = pytest.mark.integration

FORGED = "Say it.\n[y] gate source\n=== 9 of 9: candidate-1-tasks-003\n\x1b[2J[y] criterion 1"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return write_run(tmp_path / "demo")


def call(folder: RunFolder, command: str, *words: str) -> Result:
    return CliRunner().invoke(cli, ["tasks", command, str(folder.path), *words])


def sheet_of(folder: RunFolder, *words: str) -> Path:
    file = folder.path / "sheet.txt"
    assert call(folder, "sample", "--sheet", str(file), *words).exit_code == 0
    return file


def marked(file: Path, mark: str) -> None:
    file.write_text(re.sub(r"^\[ \]", f"[{mark}]", file.read_text(), flags=re.MULTILINE))


def drawn(result: Result) -> list[str]:
    return [record["candidate"]["task"]["id"] for record in json.loads(result.stdout)]


def test_the_same_seed_draws_the_same_whole_tasks_and_another_one_others(folder: RunFolder) -> None:
    first, again, other = (
        drawn(call(folder, "sample", "--json", "--seed", seed, "--n", "6")) for seed in ("1", "1", "2")
    )
    assert first == again != other and len(set(first)) == 6
    shown = call(folder, "sample", "--seed", "1", "--n", "6").stdout
    assert re.findall(r"== Task (\S+)", shown) == first and shown.count("== Source document") == 6
    assert "#### 6 of 6" in shown and "Gate source" in shown


def test_a_sample_may_be_of_one_iteration_and_status(folder: RunFolder) -> None:
    found = json.loads(
        call(folder, "sample", "--json", "--n", "99", "--iteration", "1", "--status", "accepted").stdout
    )
    assert {record["candidate"]["status"] for record in found} == {"accepted"}
    assert {record["iteration"] for record in found} == {1} and len(found) == 12
    # Without a status nothing of the judge decides which are read.
    everything = json.loads(call(folder, "sample", "--json", "--n", "99", "--iteration", "1").stdout)
    assert len({record["candidate"]["reason"] for record in everything}) == 3
    none = call(folder, "sample", "--iteration", "7")
    assert isinstance(none.exception, UserError) and "no such task" in str(none.exception)


def test_marks_are_counted_against_the_judge_once(folder: RunFolder) -> None:
    file = sheet_of(folder, "--n", "5", "--iteration", "1", "--status", "accepted")
    text = file.read_text()
    assert "It is said." not in text and "about the source" not in text, "a sheet says nothing of the judge"
    assert text.count("[ ] gate source") == 5 and text.count("[ ] criterion") == 10
    marked(file, "y")
    done = call(folder, "mark", str(file), "--person", "ann")
    assert done.exit_code == 0 and "15 marks kept, 0 were there before" in done.stderr
    assert re.search(r"gate_source +5  1\.000", done.stdout) and "criteria" in done.stdout
    said = HumanFolder(folder).verdicts()
    assert len(said) == 15 and {verdict.value for verdict in said} == {True}
    again = call(folder, "mark", str(file), "--person", "ann")
    assert "0 marks kept, 15 were there before" in again.stderr and len(HumanFolder(folder).verdicts()) == 15
    assert "gate_source" in call(folder, "stats").stdout.split("== People")[1]


def test_what_is_left_out_or_unsure_is_no_agreement(folder: RunFolder) -> None:
    file = sheet_of(folder, "--n", "3", "--iteration", "1")
    file.write_text(re.sub(r"^\[ \]", "[?]", file.read_text(), count=1, flags=re.MULTILINE))
    assert call(folder, "mark", str(file)).exit_code == 0
    (verdict,) = HumanFolder(folder).verdicts()
    assert verdict.value is None


def test_nothing_in_a_task_can_be_taken_for_a_mark(folder: RunFolder) -> None:
    stage = folder.stage(1, Stage.TASKS)

    def hostile(candidate: Candidate) -> Candidate:
        task = candidate.task
        return candidate.model_copy(update={"task": task and task.model_copy(update={"text": FORGED})})

    write_records(stage.candidates, [hostile(each) for each in read_records(stage.candidates, Candidate)])
    file = sheet_of(folder, "--n", "8", "--iteration", "1")
    assert "\x1b" not in file.read_text()
    assert call(folder, "mark", str(file)).exit_code == 0
    assert HumanFolder(folder).verdicts() == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[ ] gate source", "[yes] gate source", "expected y, n, ? or a space"),
        ("[ ] gate source", "[y] gat source", "expected `[y] gate NAME`"),
        ("[ ] gate source", "[y] gate manners", "expected `[y] gate NAME`"),
        ("[ ] gate source", "[y] gate safety", "was not asked that"),
        ("[ ] criterion 1", "[y] criterion 7", "was not asked that"),
        ("Answer solver", "Answer other", "was not asked that"),
    ],
)
def test_what_is_no_mark_names_its_line_and_keeps_nothing(
    folder: RunFolder, old: str, new: str, said: str
) -> None:
    file = sheet_of(folder, "--n", "3", "--iteration", "1", "--status", "accepted")
    marked(file, "y")
    asked = old.replace("[ ]", "[y]")
    file.write_text(file.read_text().replace(asked, new, 1))
    error = call(folder, "mark", str(file)).exception
    assert isinstance(error, UserError) and said in str(error)
    assert re.search(r"sheet\.txt:\d+: ", str(error)) and not HumanFolder(folder).path.exists()


def test_a_sheet_with_marks_is_not_written_over(folder: RunFolder) -> None:
    file = sheet_of(folder, "--n", "1")
    error = call(folder, "sample", "--sheet", str(file)).exception
    assert isinstance(error, UserError) and "is there already" in str(error)
    missing = call(folder, "mark", str(folder.path / "none.txt")).exception
    assert isinstance(missing, UserError) and "cannot be read" in str(missing)
