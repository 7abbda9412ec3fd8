"""Run folders of every format that was ever written are read, and a newer one is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scope_selfplay.errors import RecordError
from scope_selfplay.schemas import Candidate, CandidateStatus, Grade, Rollout
from scope_selfplay.store import Stage, read_manifest, read_records
from scope_selfplay.store.columns import RecordKind, arrow_schema
from scope_selfplay.store.folders import FORMAT, begin_format, checksum
from scope_selfplay.store.query import TaskQuery
from scope_selfplay.store.reader import RunReader

RUNS = sorted((Path(__file__).parents[2] / "fixtures" / "runs").glob("format-*"))


def test_there_is_a_run_of_every_format() -> None:
    assert [path.name for path in RUNS] == [f"format-{number}" for number in range(1, FORMAT + 1)]


@pytest.mark.integration
@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_a_run_of_every_format_is_read(path: Path) -> None:
    stage = path / "iteration-01" / "tasks"
    manifest = read_manifest(stage)
    assert manifest is not None and f"format-{manifest.format}" == path.name
    with RunReader(path) as reader:
        assert list(reader.records(RecordKind.CANDIDATES)) == read_records(
            stage / "candidates.jsonl", Candidate
        )
        assert list(reader.records(RecordKind.ROLLOUTS)) == read_records(stage / "rollouts.jsonl", Rollout)
        assert list(reader.records(RecordKind.GRADES)) == read_records(stage / "grades.jsonl", Grade)
        page = reader.tasks(TaskQuery(status=CandidateStatus.ACCEPTED))
        assert page.total == 3
        record = reader.task(page.lines[0].id)
        assert record.document is not None and record.written_by is not None
        assert len(record.attempts) == len(record.candidate.rollout_ids) > 0


def test_parquet_of_an_older_version_is_read_without_its_lines(tmp_path: Path) -> None:
    run = shutil.copytree(RUNS[1], tmp_path / "run")
    stage = run / "iteration-01" / "tasks"
    assert not pq.read_schema(stage / "candidates.parquet").equals(arrow_schema(Candidate))
    candidates = read_records(stage / "candidates.jsonl", Candidate)
    rollouts = read_records(stage / "rollouts.jsonl", Rollout)
    for lines in stage.glob("*.jsonl"):
        lines.unlink()
    with RunReader(run) as reader:
        assert reader.tasks().total == len(candidates) == 6
        assert list(reader.records(RecordKind.CANDIDATES)) == candidates
        assert list(reader.records(RecordKind.ROLLOUTS)) == rollouts


def with_columns(stage: Path, table: pa.Table) -> None:
    """Put other columns into a finished stage's candidates, as another version would have."""
    pq.write_table(table, stage / "candidates.parquet")
    file = stage / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["outputs"]["candidates.parquet"] = checksum(stage / "candidates.parquet")
    file.write_text(json.dumps(manifest))


def test_columns_are_matched_by_name_at_every_depth(tmp_path: Path) -> None:
    run = shutil.copytree(RUNS[1], tmp_path / "run")
    stage = run / "iteration-01" / "tasks"
    made = read_records(stage / "candidates.jsonl", Candidate)
    assert any(each.task and each.task.evidence_ids for each in made)
    rows = [each.model_dump(mode="json", exclude={"mean", "status"}) for each in made]
    for row, each in zip(rows, made, strict=True):
        if row["task"]:
            del row["task"]["evidence_ids"]
            row["task"]["of_tomorrow"] = 1
        row["status"] = each.status.value
    with_columns(stage, pa.Table.from_pylist(rows))
    with RunReader(run) as reader:
        assert list(reader.records(RecordKind.CANDIDATES)) == [
            each.model_copy(
                update={"mean": None, "task": each.task and each.task.model_copy(update={"evidence_ids": ()})}
            )
            for each in made
        ]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda table: table.drop_columns(["status"]), "has no column status"),
        (lambda table: table.set_column(0, "id", pa.array([[1]] * len(table))), "list"),
    ],
)
def test_columns_that_say_no_candidate_are_refused(tmp_path: Path, changed: Any, said: str) -> None:
    run = shutil.copytree(RUNS[1], tmp_path / "run")
    stage = run / "iteration-01" / "tasks"
    with_columns(stage, changed(pq.read_table(stage / "candidates.parquet")))
    with pytest.raises(
        RecordError, match=rf"candidates\.parquet: cannot be read as Candidate records .*{said}"
    ):
        RunReader(run)


def test_lines_that_a_manifest_lists_are_there_and_as_they_were(tmp_path: Path) -> None:
    run = shutil.copytree(RUNS[0], tmp_path / "run")
    lines = run / "iteration-01" / "tasks" / "candidates.jsonl"
    whole = lines.read_bytes()
    lines.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])
    with pytest.raises(RecordError, match=r"candidates\.jsonl: changed since the stage was finished"):
        RunReader(run)
    lines.unlink()
    with pytest.raises(RecordError, match=r"candidates\.jsonl: missing"):
        RunReader(run)


def test_a_newer_format_is_refused_by_whoever_reads_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUNS[-1], run)
    file = run / "iteration-01" / Stage.TASKS / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": FORMAT + 1}))
    for read in (lambda: RunReader(run), lambda: read_manifest(file.parent)):
        with pytest.raises(RecordError, match=f"is of format {FORMAT + 1}, this scope reads up to {FORMAT}"):
            read()


def test_half_of_a_stage_in_another_format_is_not_carried_over(tmp_path: Path) -> None:
    begin_format(tmp_path)
    begin_format(tmp_path)
    (tmp_path / "format").write_text("1\n")
    with pytest.raises(RecordError, match=r"was begun in format 1.*remove the stage folder"):
        begin_format(tmp_path)
