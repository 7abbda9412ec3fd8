"""A person in the judge's place: shown what a judge is shown, never what it said; counted against it afterwards."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from scope_selfplay.base.errors import ScopeError, UserError
from scope_selfplay.base.values import Rollout
from scope_selfplay.cli import cli
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.human import HumanFolder
from tests.unit.store.runs import rewrite, write_run

pytestmark = pytest.mark.integration


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run in which S_2 answers something else than S_0 and S_1."""
    made = write_run(tmp_path / "demo")
    answers = made.stage(2, Stage.COMPARE).rollouts
    rewrite(answers, Rollout, lambda each: each.model_copy(update={"answer": "more"}))
    return made


def play(folder: RunFolder, command: str, *words: str, replies: list[str], person: str = "ann") -> Result:
    file = folder.path / "replies.txt"
    file.write_text("\n".join(replies) + "\n")
    options = ["--answers", str(file), "--person", person]
    return CliRunner().invoke(cli, ["play", command, str(folder.path), *words, *options])


def stats(folder: RunFolder, section: str) -> Any:
    done = CliRunner().invoke(cli, ["report", str(folder.path), "--json"])
    return {each["title"]: each["parts"] for each in json.loads(done.stdout)}[section][0]


def test_every_reply_is_kept_and_counted_against_the_judge(folder: RunFolder) -> None:
    # The gate (the judge: yes), then two criteria of two answers (no, no / yes, no).
    done = play(folder, "judge", "--task", "task-1-002", replies=["y", "n", "y the year is there", "y", "?"])
    assert done.exit_code == 0 and "It is said." not in done.stdout and "about the source" not in done.stdout
    said = HumanFolder(folder).verdicts()
    assert [verdict.value for verdict in said] == [True, False, True, True, None]
    assert said[2].reasoning == "the year is there" and said[2].person == "ann"
    rows = {
        name.removeprefix("agree with people: "): row for name, *row in stats(folder, "The judge")["rows"]
    }
    assert rows["gate_source"][:2] == ["1.000", "1"]
    # What could not be said is no disagreement.
    assert rows["criteria"][:2] == ["0.667", "3"]
    assert "judge alone yes 0, person alone yes 1" in rows["criteria"][2]


def test_a_sample_goes_on_where_the_person_stopped(folder: RunFolder) -> None:
    first = play(folder, "judge", "--n", "6", replies=["y", "y", "/quit"])
    assert first.exit_code == 0 and "2 of 6 questions" in first.stderr
    assert play(folder, "judge", "--n", "6", replies=["n"] * 6).exit_code == 0
    questions = [verdict.question for verdict in HumanFolder(folder).verdicts()]
    assert len(questions) == 8 and len(set(questions)) == 8
    other = play(folder, "judge", "--n", "6", replies=["y"] * 6, person="bob")
    assert other.exit_code == 0, "another person is asked anew, in another order"


def test_a_prompt_is_shown_whole_once_and_then_by_what_is_new(folder: RunFolder) -> None:
    shown = play(folder, "judge", "--task", "task-1-002", replies=["y"] * 5).stdout
    assert shown.count("Decide whether") <= 1 + shown.count("gate_source")
    assert "Identifies the builder." in shown and "Provides the year." in shown


def test_a_reply_that_is_none_names_its_line(folder: RunFolder) -> None:
    done = play(folder, "judge", "--task", "task-1-002", replies=["y", "perhaps"])
    assert isinstance(done.exception, ScopeError) and "reply 2 ('perhaps')" in str(done.exception)
    assert len(HumanFolder(folder).verdicts()) == 1


def test_two_checkpoints_are_compared_blind_and_in_both_places(folder: RunFolder) -> None:
    done = play(folder, "judge", "S_1", "S_2", "--n", "6", replies=["1", "2", "= alike", "1", "?", "1"])
    assert done.exit_code == 0 and "S_1" not in done.stdout and "S_2" not in done.stdout
    kept = HumanFolder(folder).comparisons()
    assert len(kept) == 6 and {each.first for each in kept} == {"S_1", "S_2"}, "sides are drawn"
    assert kept[2].comparison.verdict.reasoning == "alike" and kept[4].comparison.outcome is None
    again = play(folder, "judge", "S_1", "S_2", replies=["1"] * 2)
    assert again.exit_code == 0 and "2 of 2 questions" in again.stderr
    _, duel = stats(folder, "People").splitlines()
    assert duel.startswith("S_2 against S_1, blind: ") and sum(map(int, re.findall(r" (\d)", duel))) == 7
    assert isinstance(play(folder, "judge", "S_1", "S_2", replies=["1"]).exception, UserError)


def test_equal_answers_are_no_question(folder: RunFolder) -> None:
    done = play(folder, "judge", "S_0", "S_1", replies=["1"])
    assert isinstance(done.exception, UserError) and "no two different answers" in str(done.exception)


def test_people_are_on_every_page(folder: RunFolder) -> None:
    play(folder, "judge", "--task", "task-1-002", replies=["y", "n", "y", "y <b>so</b>", "?"])
    shown = CliRunner().invoke(cli, ["report", str(folder.path)]).stdout
    assert "== People" in shown and "gate_source" in shown.split("== People")[1]
    task = CliRunner().invoke(cli, ["tasks", "show", str(folder.path), "task-1-002"]).stdout
    assert "What people said" in task and "<b>so</b>" in task
    report = folder.path / "report.html"
    assert CliRunner().invoke(cli, ["report", str(folder.path), "-o", str(report)]).exit_code == 0
    assert "<h2>People</h2>" in report.read_text() and "gate_source" in report.read_text()
