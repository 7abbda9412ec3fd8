"""A person in the judge's place: shown what a judge is shown, and counted against it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from scope_selfplay.base.errors import UserError
from scope_selfplay.base.values import Rollout
from scope_selfplay.cli import cli
from scope_selfplay.run.exam import marks_of
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.query import HumanFolder
from scope_selfplay.testing.chat_server import FakeServer
from tests.integration.serving.threads import in_thread
from tests.judges import always
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
    words = ("play", command, str(folder.path), *words, "--person", person)
    return CliRunner().invoke(cli, words, input="\n".join(replies) + "\n")


def stats(folder: RunFolder, section: str) -> Any:
    done = CliRunner().invoke(cli, ["report", str(folder.path), "--json"])
    return {each["title"]: each["parts"] for each in json.loads(done.stdout)}[section][0]


def test_every_reply_is_kept_and_counted_against_the_judge(folder: RunFolder) -> None:
    # The gate (the judge: yes), then two criteria of two answers (no, no / yes, no).
    replies = ["y", "n", "y the year is there", "y <b>so</b>", "?"]
    done = play(folder, "judge", "--task", "task-1-002", replies=replies)
    assert done.exit_code == 0 and "It is said." not in done.stdout and "about the source" not in done.stdout
    # A prompt is shown whole once, and then by what is new.
    assert done.stdout.count("Decide whether") <= 1 + done.stdout.count("gate_source")
    assert "Identifies the builder." in done.stdout and "Provides the year." in done.stdout
    said = HumanFolder(folder).verdicts()
    assert [verdict.value for verdict in said] == [True, False, True, True, None]
    assert said[2].reasoning == "the year is there" and said[2].person == "ann"
    marks = [("gate_source", True), ("grade", False), ("grade", True), ("grade", True)]
    assert [(each.question.name, each.expected) for each in marks_of(folder.path)] == marks
    with in_thread(FakeServer(always("<score>1</score>")).serving()) as url:
        own = [f"judge.canaries.file={folder.path}", f"--out={folder.path / 'kept'}", "--json"]
        found = CliRunner().invoke(cli, ["judge", "exam", "--base-url", url, "--set", *own]).stdout
    counts = {name: each["own"] for name, each in json.loads(found)["wikipedia"]["questions"].items()}
    assert counts["gate_source"] == 1 and counts["grade"] == 3 == sum(counts.values()) - 1
    rows = {
        name.removeprefix("agree with people: "): row for name, *row in stats(folder, "The judge")["rows"]
    }
    assert rows["gate_source"][:2] == ["1.000", "1"]
    # What could not be said is no disagreement.
    assert rows["criteria"][:2] == ["0.667", "3"]
    assert "judge alone yes 0, person alone yes 1" in rows["criteria"][2]
    # People are on every page.
    task = CliRunner().invoke(cli, ["tasks", "show", str(folder.path), "task-1-002"]).stdout
    assert "What people said" in task and "<b>so</b>" in task
    page = folder.path / "report.html"
    shown = CliRunner().invoke(cli, ["report", str(folder.path), "-o", str(page)])
    assert shown.exit_code == 0 and "agree with people: criteria" in page.read_text()
    # Of what two people see in two ways nothing is known.
    play(folder, "judge", "--task", "task-1-002", replies=["n", "/quit"], person="bob")
    assert len(marks_of(folder.path)) == 3


def test_a_sample_goes_on_where_the_person_stopped(folder: RunFolder) -> None:
    first = play(folder, "judge", "--n", "6", replies=["y", "y", "/quit"])
    assert first.exit_code == 0 and "2 of 6 questions" in first.stderr
    assert play(folder, "judge", "--n", "6", replies=["n"] * 6).exit_code == 0
    questions = [verdict.question for verdict in HumanFolder(folder).verdicts()]
    assert len(questions) == 8 and len(set(questions)) == 8
    # Whoever leaves by Ctrl-D has said what was said.
    left = play(folder, "judge", "--n", "6", replies=["y"], person="cy")
    assert left.exit_code == 0 and "1 of 6 questions" in left.stderr
    other = play(folder, "judge", "--n", "6", replies=["y"] * 6, person="bob")
    assert other.exit_code == 0, "another person is asked anew, in another order"


def test_a_reply_of_a_script_that_is_none_ends_it(folder: RunFolder) -> None:
    done = play(folder, "judge", "--task", "task-1-002", replies=["y", "perhaps", "n"])
    assert isinstance(done.exception, UserError) and "'perhaps' is no reply" in str(done.exception)
    assert len(HumanFolder(folder).verdicts()) == 1


def test_two_checkpoints_are_compared_blind_and_in_both_places(folder: RunFolder) -> None:
    done = play(folder, "judge", "S_1", "S_2", "--n", "6", replies=["1", "2", "= alike", "1", "?", "1"])
    assert done.exit_code == 0 and "S_1" not in done.stdout and "S_2" not in done.stdout
    kept = HumanFolder(folder).comparisons()
    assert len(kept) == 6 and {each.first for each in kept} == {"S_1", "S_2"}, "sides are drawn"
    assert kept[2].comparison.verdict.reasoning == "alike" and kept[4].comparison.outcome is None
    again = play(folder, "judge", "S_1", "S_2", replies=["1"] * 2)
    assert again.exit_code == 0 and "2 of 2 questions" in again.stderr
    duel = stats(folder, "People")
    assert duel.startswith("S_2 against S_1, blind: ") and sum(map(int, re.findall(r" (\d)", duel))) == 7
    assert isinstance(play(folder, "judge", "S_1", "S_2", replies=["1"]).exception, UserError)
    equal = play(folder, "judge", "S_0", "S_1", replies=["1"]).exception
    assert isinstance(equal, UserError) and "no two different answers" in str(equal)
