"""The folder of an evaluation: what is kept, in which order, who may join, and what its readers show."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from scope_selfplay.base.errors import RecordError, RunMismatchError
from scope_selfplay.cli import cli
from scope_selfplay.evaluation.folder import ContestantRecord, EvaluationReader
from scope_selfplay.evaluation.scorers import Answer, AnswerScore
from scope_selfplay.report.app import Site, build_app
from scope_selfplay.store.files import Appender, read_records
from tests.unit.benchmarking.invented import ITEMS, LOADED, SPEC, score_of, write_evaluation


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_order_in_which_answers_came_does_not_show(tmp_path: Path) -> None:
    one = write_evaluation(tmp_path / "a").path
    other = write_evaluation(tmp_path / "b", backwards=True).path
    for name in ("result.json", "answers.jsonl", "scores.jsonl", "comparisons.jsonl", "README.md"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    ids = pq.read_table(other / "answers.parquet", columns=["id"])["id"].to_pylist()
    assert ids == ["new-0", "new-1", "new-2", "old-0", "old-1", "old-2"]


def test_a_score_that_was_made_again_replaces_the_first(tmp_path: Path) -> None:
    from scope_selfplay.evaluation.evaluate import finish

    folder = write_evaluation(tmp_path / "a")
    with Appender(folder.scores) as scores:
        scores.append(score_of("old", 0, 1.0))
    result = finish(folder, LOADED, seed=0)
    assert len(read_records(folder.scores, AnswerScore)) == 6
    headline = result.headline("old")
    assert headline is not None and headline.value == pytest.approx(2 / 3)


def test_answers_keep_what_they_took_and_no_token_ids(tmp_path: Path) -> None:
    first = read_records(write_evaluation(tmp_path / "a").answers, Answer)[0]
    assert (first.tokens, first.context, first.rollout.searches) == (5, 10, 1)
    assert all(not turn.ids and not turn.prompt_ids for turn in first.rollout.turns)


def test_another_evaluation_and_other_weights_of_one_name_are_refused(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "a")
    folder.begin(SPEC.model_copy(update={"version": "2"}), ITEMS)
    with pytest.raises(
        RunMismatchError, match=r"another evaluation \(other: seed, judges\); use another --out"
    ):
        folder.begin(SPEC.model_copy(update={"seed": 1, "judges": ()}), ITEMS)
    folder.join(ContestantRecord(name="third", identity="third-1"))
    with pytest.raises(RunMismatchError, match="third was third-1 and is now third-2"):
        folder.join(ContestantRecord(name="third", identity="third-2"))


def test_two_checkpoints_side_by_side_come_by_their_difference(tmp_path: Path) -> None:
    reader = EvaluationReader(write_evaluation(tmp_path / "a").path)
    rows = reader.changes("old", "new")
    assert [(row.task_id, row.gain) for row in rows] == [("i0", 1.0), ("i1", 0.0), ("i2", 0.0)]
    record = reader.item("i0")
    assert [each.answer.checkpoint for each in record.answers] == ["new", "old"]
    assert [score.value for each in record.answers for score in each.scores] == [1.0, 0.0]
    assert len(record.comparisons) == 2
    with pytest.raises(RecordError, match="i9: is no item of tiny"):
        reader.item("i9")


def test_the_terminal_shows_leaderboard_item_and_difference(tmp_path: Path) -> None:
    path = str(write_evaluation(tmp_path / "a").path)
    board = shown("report", path)
    assert board.index("new ") < board.index("old ") and "0.667" in board and "Beside each other" in board
    item = shown("tasks", "show", path, "i0", "--passages")
    for text in (
        "Question 0",
        "new, answer 1",
        "old, answer 1",
        "The heron.",
        "new against old: 1 : 0",
    ):
        assert text in item
    # What a model wrote cannot colour the terminal.
    assert "\x1b" not in item and "\\x1b[31mowl" in item
    assert shown("tasks", "diff", path, "old", "new", "--limit", "1").splitlines()[1:] == [
        "task\told\tnew\ttext",
        "i0\t0.000\t1.000\tQuestion 0 <b>?",
    ]
    assert json.loads(shown("report", path, "--json"))["benchmark"] == "tiny"
    assert json.loads(shown("tasks", "show", path, "i0", "--json"))["item"]["id"] == "i0"


def test_the_report_is_one_file_and_escapes_what_models_wrote(tmp_path: Path) -> None:
    path = str(write_evaluation(tmp_path / "a").path)
    shown("report", path, "-o", str(tmp_path / "report.html"))
    text = (tmp_path / "report.html").read_text()
    assert "Question 0 &lt;b&gt;?" in text and "<b>?" not in text and "Beside each other" in text


def test_the_browser_shows_leaderboard_items_and_answers(tmp_path: Path) -> None:
    reader = EvaluationReader(write_evaluation(tmp_path / "a").path)
    with TestClient(build_app(reader, Site(hosts=("*",)))) as client:
        assert "Beside each other" in client.get("/").text
        items = client.get("/items", params={"a": "old", "b": "new"}).text
        assert items.index("Question 0") < items.index("Question 1")
        one = client.get("/items/i0").text
        assert "new, answer 1" in one and "The new one knows." in one and "<b>?" not in one
        assert client.get("/items/nothing").status_code == 404
        refused = client.get("/items", params={"a": "nobody"})
        assert refused.status_code == 400 and "no such checkpoint; there are new, old" in refused.text


def test_an_evaluation_that_has_not_ended_says_how_to_go_on(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "a")
    folder.result.unlink()
    with pytest.raises(RecordError, match="has no result yet; give the same `scope eval` command again"):
        EvaluationReader(folder.path).result()
    with pytest.raises(RecordError, match="no folder of `scope eval`"):
        EvaluationReader(tmp_path)
