"""The reader over lines and parquet: filters, order, pages, one task, what is appended, and what is damaged; which
Solver a run kept, and the link to it."""

import itertools
from pathlib import Path

import pytest
from click.testing import CliRunner

from scope_selfplay.base.errors import RecordError
from scope_selfplay.base.intervals import Estimate
from scope_selfplay.base.values import CandidateStatus, Fault, Gate, Reason
from scope_selfplay.cli import cli
from scope_selfplay.report.rendering import render_report
from scope_selfplay.store.card import run_card
from scope_selfplay.store.columns import RecordKind
from scope_selfplay.store.files import Appender, point_at, write_atomic, write_records
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.query import Sort, TaskQuery
from scope_selfplay.store.ratings import Decision, Ratings, kept_solver
from scope_selfplay.store.reader import RunReader
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


@pytest.mark.parametrize(
    ("asked", "total"),
    [
        ({"iteration": 1}, 30),
        ({"status": "accepted"}, 36),
        ({"reason": "gate_source"}, 18),
        ({"type": "long_form_qa", "iteration": 2}, 8),
        ({"low": 0.7, "high": 0.8}, 18),
        ({"text": "TREATY 2", "iteration": 1}, 2),
        ({"text": "'; DROP VIEW candidates; --"}, 0),
        ({"stage": "challenger"}, 0),
    ],
)
def test_every_filter_counts_what_it_should(reader: RunReader, asked: dict[str, object], total: int) -> None:
    assert reader.tasks(TaskQuery.model_validate(asked)).total == total


def test_all_candidates_are_listed_in_the_order_they_were_made_page_by_page(reader: RunReader) -> None:
    made = [candidate(iteration, number).id for iteration in range(3) for number in range(30)]
    page = reader.tasks(TaskQuery(limit=1000))
    assert ([line.id for line in page.lines], page.total) == (made, 90)
    for sort, descending in itertools.product(Sort, (False, True)):
        asked = {"sort": sort, "descending": descending, "iteration": 1}
        whole = ids(reader, limit=1000, **asked)
        paged = [each for offset in range(0, 30, 7) for each in ids(reader, limit=7, offset=offset, **asked)]
        assert paged == whole and sorted(whole) == made[30:60]


def test_one_task_comes_with_everything_that_was_kept_of_it(reader: RunReader) -> None:
    record = reader.task("candidate-1-tasks-003")
    assert record.candidate == candidate(1, 3) and record.document == document(3)
    assert record.written_by is not None and record.written_by.turns[0].passages[0].score == 3.25
    assert [each.rollout.id for each in record.attempts] == ["solver-1-3-0", "solver-1-3-1"]
    assert [each.grade.score for each in record.attempts if each.grade] == [0.0, 0.5]
    bare = reader.task("candidate-1-tasks-000")
    assert (bare.candidate.task, bare.attempts) == (None, ())
    for name, message in (("nothing", "has no candidate nothing"), ("task-1-00", "several ids")):
        with pytest.raises(RecordError, match=message):
            reader.task(name)


def test_neighbours_are_those_of_the_list_that_was_asked_for(reader: RunReader) -> None:
    query = TaskQuery(status=CandidateStatus.ACCEPTED, sort=Sort.MEAN, descending=True, limit=90)
    line = [each.id for each in reader.tasks(query).lines]
    beside = [None, *line, None]
    for place in (0, 5, len(line) - 1):
        found = [each and each.id for each in reader.neighbours(query, line[place])]
        assert found == [beside[place], beside[place + 2]]
    assert reader.neighbours(query, "candidate-1-tasks-000") == [None, None]


def test_held_out_answers_and_comparisons_belong_to_their_task(reader: RunReader) -> None:
    attempts = reader.attempts_on("task-0-003")
    places = [(0, Stage.TASKS)] * 2 + [(iteration, Stage.COMPARE) for iteration in range(3)]
    assert [(each.iteration, each.stage) for each in attempts] == places
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
            assert reader.selections_on(other) == [] == reader.scores_on(other)


def test_the_funnel_counts_every_candidate_once(reader: RunReader) -> None:
    counts = reader.funnel()
    assert sum(each.count for each in counts) == 90
    assert {(each.reason, each.count) for each in counts if each.iteration == 1} == {
        (Reason.ACCEPTED, 12),
        (Reason.NO_TASK, 6),
        (Reason.refused_by(Gate.SOURCE), 6),
        (Reason.TOO_HARD, 6),
    }


@pytest.mark.integration
def test_what_a_running_stage_and_its_workers_write_is_seen_after_a_refresh(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo")
    file, begun = folder.stage(1, Stage.TASKS).candidates, folder.stage(3, Stage.TASKS)
    with RunReader(folder.path) as reader:
        assert reader.iterations() == [0, 1, 2] and len(reader.stages()) == 6 and not reader.refresh()
        for number in range(30, 44):
            with Appender(file) as appender:
                appender.append(candidate(1, number))
            # A torn line is seen when it is whole.
            line = candidate(1, number + 1).model_dump_json().encode() + b"\n"
            file.write_bytes(file.read_bytes() + line[:40])
            assert reader.refresh() and reader.tasks(TaskQuery(iteration=1)).total == number + 1
        assert ids(reader, iteration=1, limit=100) == [candidate(1, number).id for number in range(44)]
        # Written anew, as when a stage settles.
        write_records(file, [candidate(1, 3)])
        assert reader.refresh() and reader.tasks(TaskQuery(iteration=1)).total == 1
        file.write_bytes(file.read_bytes() + bytes(4096))
        assert not reader.refresh()
        for worker in ("01-of-02-000", "00-of-02-000", "01-of-02-001"):
            share = begun.work / "shares" / worker
            share.mkdir(parents=True)
            for number in range(4):
                with Appender(share / "candidates.jsonl") as appender:
                    appender.append(candidate(3, number + 10 * int(worker[1]) + 20 * int(worker[-1])))
                assert reader.refresh()
        wanted = {candidate(3, number).id for start in (0, 10, 30) for number in range(start, start + 4)}
        assert set(ids(reader, iteration=3)) == wanted
        file.unlink()
        assert reader.refresh() and ids(reader, iteration=1) == []


@pytest.mark.parametrize(
    ("kind", "old", "new", "said"),
    [
        (RecordKind.CANDIDATES, '"gate_source"', '"bogus"', r"candidate-1-tasks-001 .*reason.*found 'bogus'"),
        (RecordKind.ROLLOUTS, '"solver"', '"cook"', r"solver-1-2-0 .*role.*found 'cook'"),
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
        lists = (reader.tasks, reader.funnel) if kind is RecordKind.CANDIDATES else ()
        name = "task-1-001" if kind is RecordKind.CANDIDATES else "task-1-002"
        for ask in (lambda: reader.task(name), *lists):
            with pytest.raises(RecordError, match="is damaged"):
                ask()


def test_an_empty_run_has_empty_lists(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("name: demo\n")
    with RunReader(tmp_path) as reader:
        assert (reader.tasks().total, reader.funnel(), reader.scores(), reader.stages()) == (0, [], [], {})


PROMOTE, KEEP, STOP = Decision.PROMOTE, Decision.KEEP, Decision.STOP


def rule(folder: RunFolder, *decisions: Decision) -> None:
    for iteration, decision in enumerate(decisions):
        estimate = Estimate(value=0.5, low=0.4, high=0.6, items=10)
        ratings = Ratings(
            decision=decision,
            promoted=decision is PROMOTE,
            reason=f"because of {iteration}",
            held_out={f"S_{number}": {"all": estimate} for number in range(iteration + 1)},
        )
        stage = folder.stage(iteration, Stage.COMPARE)
        stage.path.mkdir(parents=True, exist_ok=True)
        write_atomic(stage.ratings, ratings.model_dump_json())


@pytest.mark.parametrize(("decisions", "kept"), [([PROMOTE], "S_0"), ([PROMOTE, PROMOTE, STOP], "S_1")])
def test_the_newest_promoted_solver_is_kept_and_the_newest_ruling_said(
    tmp_path: Path, decisions: list[Decision], kept: str
) -> None:
    folder = RunFolder(tmp_path)
    assert kept_solver(folder) is None
    rule(folder, *decisions)
    found = kept_solver(folder)
    assert found is not None and found.solver == kept and found.decision is decisions[-1]
    assert found.checkpoint == ("" if kept == "S_0" else f"iteration-0{kept[-1]}/solver/checkpoint")
    last = len(decisions) - 1
    assert found.words == f"{kept}, by iteration {last}: {decisions[-1]}: because of {last}"


@pytest.mark.integration
def test_a_demoted_solver_is_named_as_such_wherever_a_run_is_shown(tmp_path: Path) -> None:
    folder, out = write_run(tmp_path / "demo"), tmp_path / "exported"
    rule(folder, PROMOTE, PROMOTE, KEEP)
    words = "S_1, by iteration 2: keep: because of 2"
    stats = CliRunner().invoke(cli, ["report", str(folder.path)])
    assert words in stats.stdout and "iteration-01/solver/checkpoint, best/" in stats.stdout
    with RunReader(folder.path) as reader:
        assert words in render_report(reader)
    assert words in run_card(folder, "demo")
    done = CliRunner().invoke(cli, ["export", str(folder.path), "--format", "trl", "-o", str(out)])
    assert done.exit_code == 0 and words in (out / "README.md").read_text()


def test_a_link_is_relative_moves_with_its_folder_and_is_replaced_and_a_folder_is_not(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "base"
    (run / "iteration-01").mkdir(parents=True)
    elsewhere.mkdir()
    assert point_at(run / "best", elsewhere) and (run / "best").resolve() == elsewhere
    assert point_at(run / "best", run / "iteration-01")
    moved = run.rename(tmp_path / "moved")
    assert (moved / "best").resolve() == moved / "iteration-01"
    assert [path.name for path in moved.iterdir() if path.name.startswith(".")] == []
    (elsewhere / "own").touch()
    assert not point_at(elsewhere, moved) and (elsewhere / "own").exists()
