"""From lines to parquet and back: what was written is what is read, and damage is named; a run of a release is read by
the later ones, a stage of another format is refused, and parquet with other columns gives way to its lines."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from scope_selfplay.base.errors import RecordError
from scope_selfplay.base.values import Candidate, Criterion, Document, Gate, Passage, Turn, Verdict
from scope_selfplay.store.card import CARD, run_card, stage_card
from scope_selfplay.store.columns import (
    RecordKind,
    arrow_schema,
    record_from,
    table_from_lines,
    write_columns,
    write_parquet,
)
from scope_selfplay.store.files import find_records, read_records, write_atomic, write_records
from scope_selfplay.store.folder import (
    FORMAT,
    MANIFEST,
    RunFolder,
    Stage,
    StageManifest,
    begin_format,
    checksum,
    checksums,
    publish_manifest,
    read_manifest,
)
from scope_selfplay.store.query import TaskQuery
from scope_selfplay.store.reader import RunReader
from tests import schemas
from tests.unit.store.runs import finish, write_run

# Everything that UTF-8 can hold, NUL and line ends with it.
st.register_type_strategy(str, st.text(st.characters(codec="utf-8"), max_size=12))
st.register_type_strategy(int, st.integers(0, 2**62))
numbers = st.floats(allow_nan=False, allow_infinity=False)
st.register_type_strategy(float, numbers)
st.register_type_strategy(Criterion, st.builds(Criterion, weight=numbers.map(abs)))
st.register_type_strategy(Passage, st.builds(Passage, metadata=st.just({})))
no_ids = {"prompt_ids": (), "ids": (), "logprobs": None}
st.register_type_strategy(Turn, st.from_type(Turn).map(lambda turn: turn.model_copy(update=no_ids)))
st.register_type_strategy(
    Candidate,
    st.builds(
        Candidate,
        task=...,
        gates=st.dictionaries(st.sampled_from(Gate), st.from_type(Verdict)),
        rubric=...,
        rollout_ids=...,
        mean=...,
    ),
)


@pytest.mark.integration
@pytest.mark.parametrize("kind", RecordKind)
def test_what_goes_through_columns_comes_back_equal_and_has_its_line_on_the_card(
    kind: RecordKind, tmp_path: Path
) -> None:
    seen: list[BaseModel] = []

    @given(st.lists(st.from_type(kind.model), max_size=2))
    @settings(deadline=None)
    def check(made: list[BaseModel]) -> None:
        lines = "".join(each.model_dump_json() + "\n" for each in made).encode()
        table = table_from_lines(lines, kind.model, Path("unused"))
        assert table.schema == arrow_schema(kind.model)
        assert [record_from(kind.model, row) for row in table.to_pylist()] == made
        seen.extend(made)

    check()
    write_records(tmp_path / f"{kind}.jsonl", seen)
    assert write_parquet(tmp_path) == {kind: len(seen)}
    rows = pq.read_table(tmp_path / f"{kind}.parquet").to_pylist()
    assert [record_from(kind.model, row) for row in rows] == seen
    assert f"- `{kind}` ({len(seen):,})" in stage_card("r", 1, Stage.SOLVER, tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return write_run(tmp_path / "demo")


@pytest.mark.integration
def test_a_finished_stage_reads_like_a_running_one(folder: RunFolder) -> None:
    def seen() -> list[object]:
        with RunReader(folder.path) as reader:
            of_task = [reader.attempts_on("task-0-003"), reader.comparisons_on("task-0-003")]
            return [reader.tasks(TaskQuery(limit=100)), reader.task("task-1-003"), *of_task]

    before = seen()
    for iteration in range(3):
        for stage in (Stage.TASKS, Stage.COMPARE):
            finish(folder, iteration, stage)
    # The lines are not needed once the parquet exists.
    for path in folder.path.glob("iteration-*/*/*.jsonl"):
        path.unlink()
    assert seen() == before
    with RunReader(folder.path) as done:
        assert all(done.stages().values())


def test_a_torn_last_line_is_left_out_and_damage_before_it_is_named(
    folder: RunFolder, tmp_path: Path
) -> None:
    source = folder.stage(1, Stage.TASKS).candidates
    whole = source.read_bytes()
    source.write_bytes(whole[:-30])
    assert write_columns(source, tmp_path / "a.parquet", RecordKind.CANDIDATES.model) == 29
    lines = whole.split(b"\n")
    source.write_bytes(b"\n".join([*lines[:7], b'{"id": 1', *lines[8:]]))
    with pytest.raises(RecordError, match=r"candidates\.jsonl:8: damaged record"):
        write_columns(source, tmp_path / "b.parquet", RecordKind.CANDIDATES.model)
    assert not (tmp_path / "b.parquet").exists() and not list(tmp_path.glob(".*.part"))


def test_a_file_that_is_not_parquet_is_named_even_if_its_checksum_is_right(folder: RunFolder) -> None:
    path = folder.stage(1, Stage.TASKS).path
    (path / "candidates.parquet").write_bytes(b"PAR1 and nothing else")
    publish_manifest(path, StageManifest(stage="tasks", iteration=1, spec_hash="0", outputs=checksums(path)))
    with pytest.raises(RecordError, match=r"candidates\.parquet: not a parquet file"):
        RunReader(folder.path)


@given(st.lists(st.text(st.characters(codec="utf-8")), unique=True, max_size=6))
@example(["guide, part 2.md", 'say "so", he said.md', "back\\", 'a\\",', "guide"])
def test_a_document_is_found_by_any_id_that_it_may_have(tmp_path_factory: Any, ids: list[str]) -> None:
    corpus = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    made = {each: Document(id=each, title="t", text="x, y") for each in ids}
    write_records(corpus, made.values())
    assert find_records(corpus, [*ids, "absent"], Document) == made
    assert all(find_records(corpus, [each], Document) == {each: document} for each, document in made.items())


def test_the_card_names_the_files_what_became_of_the_candidates_and_that_the_judge_errs_on_purpose(
    folder: RunFolder,
) -> None:
    card = (finish(folder, 1, Stage.TASKS) / CARD).read_text()
    for part in ("candidates.parquet", "| rejected | gate_source | 6 |", "- seed: `7`", "`rollouts` (66)"):
        assert part in card, part
    whole = run_card(folder, "demo")
    assert "iteration-01/tasks/candidates.parquet" in whole and "iteration-02" not in whole
    assert "on purpose" not in whole
    write_atomic(folder.config, "name: demo\njudge:\n  noise: {first: 0.3}\n")
    assert "errs on purpose** (`judge.noise`): first 30%." in run_card(folder, "demo")


KEPT = sorted((Path(__file__).parents[2] / "fixtures" / "runs").glob("*.tar.xz"))
"""Small runs as their releases wrote them, without checkpoints; a new format leaves none of the older."""


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
    for changes in ({"format": FORMAT - 1}, {"format": FORMAT + 1, "of_a_later_version": 1}):
        change_manifest(stage, **changes)
        said = f"has format {changes['format']}, this version of scope reads format {FORMAT}; use the version"
        for read in (lambda: RunReader(folder.path), lambda: read_manifest(stage)):
            with pytest.raises(RecordError, match=said) as refused:
                read()
            assert "\n" not in str(refused.value)


@pytest.mark.fault(22)
def test_half_of_a_stage_in_another_format_is_not_carried_over(tmp_path: Path) -> None:
    begin_format(tmp_path)
    begin_format(tmp_path)
    (tmp_path / "format").write_text("1\n")
    with pytest.raises(RecordError, match=r"was begun in format 1.*remove the stage folder"):
        begin_format(tmp_path)


def test_the_shipped_schema_is_what_is_written() -> None:
    """After a change of a model: `python -m tests.schemas`, and a new FORMAT where older files would be misread."""
    assert schemas.SCHEMA.read_text(encoding="utf-8") == schemas.render()


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.name)
def test_the_run_of_a_release_is_read_and_is_as_the_schema_says(kept: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(kept, tmp_path)
    (run,) = tmp_path.iterdir()
    with RunReader(run) as reader:
        assert [(place, done is not None) for place, done in reader.stages().items()] == [
            *(((0, stage), True) for stage in (Stage.TASKS, Stage.COMPARE)),
            *(((1, stage), True) for stage in Stage),
        ]
        for kind, count in ((kind, (run.rglob(f"{kind}.jsonl"))) for kind in RecordKind):
            lines = sum(len(path.read_text().splitlines()) for path in count)
            assert len(list(reader.records(kind))) == lines, kind
        assert all(reader.task(line.id).document is not None for line in reader.tasks().lines)
    schemas.validate(run)
