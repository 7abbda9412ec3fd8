"""A person in the judge's place: shown what a judge is shown, counted against it, at a script or a terminal."""

import json
import os
import pty
import re
import select
import subprocess
import sys
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


BACKSPACE, CTRL_D = "\x7f", "\x04"


class Terminal:
    """A command at a pseudo-terminal of 24 rows and 80 columns."""

    def __init__(self, *words: str) -> None:
        self._master, slave = pty.openpty()
        command = [sys.executable, "-m", "scope_selfplay.cli", *words]
        environment = os.environ | {"TERM": "xterm", "LINES": "24", "COLUMNS": "80"}
        # A session of its own, so that keys become signals as at a real terminal.
        self._process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.text, self._read = "", 0

    def wait_for(self, words: str) -> None:
        """Until the words are printed after those waited for before."""
        while words not in self.text[self._read :]:
            assert self._more(), f"{words!r} did not come; there is {self.text[-2000:]!r}"
        self._read = self.text.index(words, self._read) + len(words)

    def _more(self) -> str:
        """What is printed within two minutes; "" at the end."""
        ready, _, _ = select.select([self._master], [], [], 120)
        try:
            new = os.read(self._master, 65536).decode("utf-8", "replace") if ready else ""
        except OSError:
            new = ""
        self.text += new
        return new

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def end(self) -> int:
        while self._more():
            pass
        code = self._process.wait(timeout=120)
        os.close(self._master)
        return code


def test_keys_are_edited_and_leaving_keeps_what_was_finished(folder: RunFolder) -> None:
    terminal = Terminal("play", "judge", str(folder.path), "--task", "task-1-002", "--person", "ann")
    terminal.wait_for("y/n/?>")
    terminal.type("nx" + BACKSPACE + " so it seems\r")
    terminal.wait_for("question 2 of 5")
    terminal.wait_for("y/n/?>")
    terminal.type("perhaps\r")
    terminal.wait_for("is no reply")
    terminal.wait_for("y/n/?>")
    terminal.type(CTRL_D)
    assert terminal.end() == 0 and "1 of 5 questions answered" in terminal.text
    (verdict,) = HumanFolder(folder).verdicts()
    assert verdict.value is False and verdict.reasoning == "so it seems"
