"""The reader over lines and parquet: filters, order, pages, one task, what is appended, and what is damaged."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel

from scope_selfplay.base.errors import RecordError
from scope_selfplay.base.gates import Gate
from scope_selfplay.base.values import CandidateStatus, Fault, Reason
from scope_selfplay.store import sources
from scope_selfplay.store.columns import RecordKind, table_from_lines
from scope_selfplay.store.files import Appender, write_records
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.query import Sort, TaskQuery
from scope_selfplay.store.reader import RunReader
from tests.peak_memory import printed
from tests.unit.store.runs import candidate, document, write_judgements, write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    # A name that DuckDB would read as a pattern.
    return write_run(tmp_path_factory.mktemp("runs") / "demo [a]*'")


@pytest.fixture(scope="module")
def reader(folder: RunFolder) -> RunReader:
    return RunReader(folder.path)


def ids(reader: RunReader, **asked: object) -> list[str]:
    return [line.id for line in reader.tasks(TaskQuery.model_validate(asked)).lines]


def test_all_candidates_are_listed_in_the_order_in_which_they_were_made(reader: RunReader) -> None:
    page = reader.tasks(TaskQuery(limit=1000))
    wanted = [candidate(iteration, number).id for iteration in range(3) for number in range(30)]
    assert ([line.id for line in page.lines], page.total) == (wanted, 90)


@pytest.mark.parametrize(
    ("asked", "total"),
    [
        ({"iteration": 1}, 30),
        ({"iteration": 9}, 0),
        ({"status": "accepted"}, 36),
        ({"reason": "gate_source"}, 18),
        ({"type": "long_form_qa", "iteration": 2}, 8),
        ({"low": 0.7, "high": 0.8}, 18),
        ({"high": 0.0}, 18),
        ({"text": "HARBOUR 2", "iteration": 1}, 0),
        ({"text": "TREATY 2", "iteration": 1}, 2),
        ({"text": "doc-003"}, 3),
        ({"text": "50%"}, 0),
        ({"text": "'; DROP VIEW candidates; --"}, 0),
        ({"stage": "challenger"}, 0),
        ({"stage": None}, 90),
    ],
)
def test_every_filter_counts_what_it_should(reader: RunReader, asked: dict[str, object], total: int) -> None:
    assert reader.tasks(TaskQuery.model_validate(asked)).total == total


@pytest.mark.parametrize("sort", list(Sort))
@pytest.mark.parametrize("descending", [False, True])
def test_pages_put_together_are_the_whole_list(reader: RunReader, sort: Sort, descending: bool) -> None:
    asked = {"sort": sort, "descending": descending, "iteration": 1}
    whole = ids(reader, limit=1000, **asked)
    paged = [each for offset in range(0, 30, 7) for each in ids(reader, limit=7, offset=offset, **asked)]
    assert paged == whole and len(set(whole)) == 30


def test_a_sorted_list_has_what_lacks_a_value_last(reader: RunReader) -> None:
    for descending in (False, True):
        lines = reader.tasks(TaskQuery(sort=Sort.MEAN, descending=descending, limit=90)).lines
        known = [line.mean for line in lines if line.mean is not None]
        assert known == sorted(known, reverse=descending)
        assert [line.mean for line in lines[len(known) :]] == [None] * (90 - len(known))


def test_one_task_comes_with_everything_that_was_kept_of_it(reader: RunReader) -> None:
    record = reader.task("candidate-1-tasks-003")
    assert record.candidate == candidate(1, 3) and record.document == document(3)
    assert record.written_by is not None and record.written_by.turns[0].passages[0].score == 3.25
    assert [each.rollout.id for each in record.attempts] == ["solver-1-3-0", "solver-1-3-1"]
    assert [each.grade.score for each in record.attempts if each.grade] == [0.0, 0.5]


@pytest.mark.parametrize(
    ("name", "message"), [("nothing", "has no candidate nothing"), ("task-1-00", "several ids")]
)
def test_an_id_that_names_no_single_task_is_refused(reader: RunReader, name: str, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        reader.task(name)


def test_a_candidate_without_a_task_is_shown_too(reader: RunReader) -> None:
    record = reader.task("candidate-1-tasks-000")
    assert (record.candidate.task, record.attempts) == (None, ())


def test_neighbours_are_those_of_the_list_that_was_asked_for(reader: RunReader) -> None:
    query = TaskQuery(status=CandidateStatus.ACCEPTED, sort=Sort.MEAN, descending=True, limit=90)
    line = [each.id for each in reader.tasks(query).lines]
    for place in (0, 5, len(line) - 1):
        around = reader.neighbours(query, line[place])
        assert (around.before.id if around.before else None) == (line[place - 1] if place else None)
        assert (around.after.id if around.after else None) == (
            line[place + 1] if place + 1 < len(line) else None
        )
    outside = reader.neighbours(query, "candidate-1-tasks-000")
    assert (outside.before, outside.after) == (None, None)


def test_held_out_answers_and_comparisons_belong_to_their_task(reader: RunReader) -> None:
    attempts = reader.attempts_on("task-0-003")
    assert [(each.iteration, each.stage) for each in attempts] == [
        (0, Stage.TASKS),
        (0, Stage.TASKS),
        (0, Stage.COMPARE),
        (1, Stage.COMPARE),
        (2, Stage.COMPARE),
    ]
    matches = reader.comparisons_on("task-0-003")
    assert [(each.first, each.second) for each in matches] == [("S_0-cc", "S_1-cc"), ("S_1-cc", "S_2-cc")]
    assert matches[0].comparison.outcome == (0.25, -1.0)
    scores = reader.scores()
    assert len(scores) == 30 and {each.checkpoint for each in scores} == {"S_0-cc", "S_1-cc", "S_2-cc"}


def test_selections_and_scores_belong_to_the_task_whose_answers_they_judge(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo")
    write_judgements(folder, 1, "task-1-003")
    with RunReader(folder.path) as reader:
        selections, scores = reader.selections_on("task-1-003"), reader.scores_on("task-1-003")
        assert [each.selection.winner_ids for each in selections] == [("trained-1-2",), None]
        assert [each.score.value for each in scores] == [7.5, None]
        picked, failed = (each.selection.verdict for each in selections)
        assert picked is not None and (picked.reasoning, picked.tokens_out) == ("It says most.", 30)
        assert failed is not None and failed.fault is Fault.UNREADABLE
        assert {(each.iteration, each.stage) for each in scores} == {(1, Stage.SOLVER)}
        for other in ("task-1-004", "none"):
            assert reader.selections_on(other) == reader.scores_on(other) == []


def test_judgements_of_versions_without_a_verdict_are_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo")
    write_judgements(folder, 1, "task-1-003")
    for file in (folder.stage(1, Stage.SOLVER).selections, folder.stage(1, Stage.SOLVER).scores):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        bare = [{name: value for name, value in row.items() if name != "verdict"} for row in rows]
        write_records(file, bare)
    with RunReader(folder.path) as reader:
        assert [each.selection.verdict for each in reader.selections_on("task-1-003")] == [None, None]
        scores = [each.score for each in reader.scores_on("task-1-003")]
        assert [(score.value, score.verdict) for score in scores] == [(7.5, None), (None, None)]


def test_the_funnel_counts_every_candidate_once(reader: RunReader) -> None:
    counts = reader.funnel()
    assert sum(each.count for each in counts) == 90
    assert {(each.reason, each.count) for each in counts if each.iteration == 1} == {
        (Reason.ACCEPTED, 12),
        (Reason.NO_TASK, 6),
        (Reason.refused_by(Gate.SOURCE), 6),
        (Reason.TOO_HARD, 6),
    }


def test_records_come_back_as_values_in_order(reader: RunReader) -> None:
    found = list(reader.records(RecordKind.CANDIDATES, "iteration = ? AND mean > ?", [1, 0.5]))
    assert found == [each for number in range(30) if ((each := candidate(1, number)).mean or 0) > 0.5]


@pytest.mark.integration
def test_what_is_appended_is_seen_after_a_refresh_and_a_torn_line_when_it_is_whole(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo")
    file = folder.stage(1, Stage.TASKS).candidates
    with RunReader(folder.path) as reader:
        assert not reader.refresh()
        for number in range(30, 44):
            with Appender(file) as appender:
                appender.append(candidate(1, number))
            line = candidate(1, number + 1).model_dump_json().encode() + b"\n"
            file.write_bytes(file.read_bytes() + line[:40])
            assert reader.refresh() and reader.tasks(TaskQuery(iteration=1)).total == number + 1
        assert ids(reader, iteration=1, limit=100) == [candidate(1, number).id for number in range(44)]
        # Written anew, as when a stage settles.
        write_records(file, [candidate(1, 3)])
        assert reader.refresh() and reader.tasks(TaskQuery(iteration=1)).total == 1
        file.write_bytes(file.read_bytes() + bytes(4096))
        assert not reader.refresh()


def test_each_line_of_a_live_file_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []

    def counted(data: bytes, model: type[BaseModel], source: Path) -> Any:
        parsed.append(data.count(b"\n"))
        return table_from_lines(data, model, source)

    monkeypatch.setattr(sources, "table_from_lines", counted)
    monkeypatch.setattr(sources, "BLOCK", 4096)
    file = tmp_path / "candidates.jsonl"
    write_records(file, [candidate(1, number) for number in range(30)])
    names = (tmp_path / f"{number}.parquet" for number in itertools.count())
    reading = sources.LiveFile(file, RecordKind.CANDIDATES, lambda: next(names))
    assert reading.refresh() and len(parsed) > 3 and len(reading.rows) == 1
    most = 0
    for number in range(30, 130):
        with Appender(file) as appender:
            appender.append(candidate(1, number))
        assert reading.refresh()
        most = max(most, len(reading.rows))
    rows = [row["id"] for part in reading.rows for row in pq.read_table(part).to_pylist()]
    assert rows == [candidate(1, number).id for number in range(130)]
    assert sum(parsed) == 130 and most <= 12
    # The parts, and those that a query may still be about to open.
    assert len(list(tmp_path.glob("*.parquet"))) <= 2 * 12 + 1


@pytest.mark.integration
def test_a_large_live_file_is_converted_in_little_memory(tmp_path: Path) -> None:
    line = candidate(1, 2).model_dump_json().encode() + b"\n"
    file = tmp_path / "candidates.jsonl"
    file.write_bytes(line * (96_000_000 // len(line)))
    program = (
        "import itertools, pathlib, sys\n"
        "from scope_selfplay.store.sources import LiveFile, RecordKind\n"
        "from tests.peak_memory import peak_memory\n"
        "file = pathlib.Path(sys.argv[1]); numbers = itertools.count(); before = peak_memory()\n"
        "part = lambda: file.with_name(f'{next(numbers)}.parquet')\n"
        "assert LiveFile(file, RecordKind.CANDIDATES, part).refresh(); print(peak_memory() - before)"
    )
    assert printed(program, file) < 96e6


@pytest.mark.integration
def test_what_workers_of_one_stage_have_finished_is_seen_while_they_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo")
    stage = folder.stage(3, Stage.TASKS)
    with RunReader(folder.path) as reader:
        for worker in ("01-of-02-000", "00-of-02-000", "01-of-02-001"):
            share = stage.work / "shares" / worker
            share.mkdir(parents=True)
            for number in range(4):
                with Appender(share / "candidates.jsonl") as appender:
                    appender.append(candidate(3, number + 10 * int(worker[1]) + 20 * int(worker[-1])))
                assert reader.refresh()
        wanted = {candidate(3, number).id for start in (0, 10, 30) for number in range(start, start + 4)}
        assert set(ids(reader, iteration=3)) == wanted


@pytest.mark.integration
def test_a_stage_that_begins_or_is_removed_is_noticed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo")
    with RunReader(folder.path) as reader:
        assert reader.iterations() == [0, 1, 2] and len(reader.stages()) == 6
        stage = folder.stage(3, Stage.TASKS)
        stage.path.mkdir(parents=True)
        write_records(stage.candidates, [candidate(3, 2)])
        assert reader.refresh() and ids(reader, iteration=3) == ["candidate-3-tasks-002"]
        stage.candidates.unlink()
        assert reader.refresh() and ids(reader, iteration=3) == []


@pytest.mark.parametrize(
    ("kind", "old", "new", "said"),
    [
        (RecordKind.CANDIDATES, '"gate_source"', '"bogus"', r"candidate-1-tasks-001 .*reason.*found 'bogus'"),
        (RecordKind.ROLLOUTS, '"solver"', '"cook"', r"solver-1-2-0 .*role.*found 'cook'"),
        (RecordKind.GRADES, '"fault":null', '"fault":"tired"', r"solver-1-2-0 .*fault.*found 'tired'"),
    ],
)
def test_a_word_that_no_field_may_hold_is_named_with_stage_and_record(
    tmp_path: Path, kind: RecordKind, old: str, new: str, said: str
) -> None:
    folder = write_run(tmp_path / "demo")
    file = folder.stage(1, Stage.TASKS).path / f"{kind}.jsonl"
    file.write_text(file.read_text().replace(old, new, 1))
    with RunReader(folder.path) as reader:
        with pytest.raises(RecordError, match=f"iteration 1, tasks: {said}"):
            list(reader.records(kind))
        if kind is RecordKind.CANDIDATES:
            for ask in (reader.tasks, reader.funnel, lambda: reader.task("task-1-001")):
                with pytest.raises(RecordError, match=r"iteration 1, tasks:.* is damaged .*found 'bogus'"):
                    ask()
        else:
            with pytest.raises(RecordError, match="is damaged"):
                reader.task("task-1-002")


def test_an_empty_run_has_empty_lists(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("name: demo\n")
    with RunReader(tmp_path) as reader:
        assert (reader.tasks().total, reader.funnel(), reader.scores(), reader.stages()) == (0, [], [], {})


@pytest.mark.integration
def test_a_reader_of_lists_loads_no_pandas(folder: RunFolder) -> None:
    """Pandas would be a quarter of what `scope view` holds in memory."""
    code = (
        "import sys; from pathlib import Path; from scope_selfplay.store.reader import RunReader\n"
        "with RunReader(Path(sys.argv[1])) as reader: print(reader.tasks().total, 'pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder.path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "90 False\n"
