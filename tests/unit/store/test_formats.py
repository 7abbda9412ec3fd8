"""A stage of another format is refused; parquet with other columns gives way to its lines."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from scope_selfplay.base.errors import RecordError
from scope_selfplay.base.values import Candidate
from scope_selfplay.store.columns import RecordKind
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import (
    FORMAT,
    MANIFEST,
    RunFolder,
    Stage,
    begin_format,
    checksum,
    read_manifest,
)
from scope_selfplay.store.reader import RunReader
from tests.unit.store.runs import finish, write_run


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return write_run(tmp_path / "demo")


def change_manifest(stage: Path, **changes: object) -> None:
    file = stage / MANIFEST
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.fault(22)
def test_parquet_with_other_columns_is_left_and_its_lines_are_read(folder: RunFolder) -> None:
    stage = finish(folder, 1, Stage.TASKS)
    candidates = read_records(stage / "candidates.jsonl", Candidate)
    file = stage / "candidates.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["mean"]), file)
    outputs = json.loads((stage / MANIFEST).read_text())["outputs"]
    change_manifest(stage, outputs=outputs | {"candidates.parquet": checksum(file)})
    with RunReader(folder.path) as reader:
        assert list(reader.records(RecordKind.CANDIDATES, "iteration = 1")) == candidates
    (stage / "candidates.jsonl").unlink()
    with pytest.raises(RecordError, match=r"candidates\.jsonl was removed"):
        RunReader(folder.path)


@pytest.mark.fault(22)
def test_another_format_is_refused_by_whoever_reads_it(folder: RunFolder) -> None:
    stage = finish(folder, 1, Stage.TASKS)
    change_manifest(stage, format=FORMAT + 1)
    for read in (lambda: RunReader(folder.path), lambda: read_manifest(stage)):
        with pytest.raises(RecordError, match=f"has format {FORMAT + 1}, .* reads format {FORMAT}"):
            read()


@pytest.mark.fault(22)
def test_half_of_a_stage_in_another_format_is_not_carried_over(tmp_path: Path) -> None:
    begin_format(tmp_path)
    begin_format(tmp_path)
    (tmp_path / "format").write_text("1\n")
    with pytest.raises(RecordError, match=r"was begun in format 1.*remove the stage folder"):
        begin_format(tmp_path)
