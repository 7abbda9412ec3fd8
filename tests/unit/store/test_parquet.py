"""From lines to parquet and back: what was written is what is read, and damage is named."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from scope_selfplay.base.errors import RecordError
from scope_selfplay.base.gates import Gate
from scope_selfplay.base.values import Candidate, Criterion, Document, Turn, Verdict
from scope_selfplay.store.card import CARD, run_card, stage_card
from scope_selfplay.store.columns import (
    ROWS_PER_GROUP,
    RecordKind,
    arrow_schema,
    record_from,
    table_from_lines,
    write_columns,
    write_parquet,
)
from scope_selfplay.store.files import find_record, find_records, write_atomic, write_records
from scope_selfplay.store.folder import RunFolder, Stage, StageManifest, checksums, publish_manifest
from scope_selfplay.store.query import TaskQuery
from scope_selfplay.store.reader import RunReader
from tests.peak_memory import printed
from tests.unit.store.runs import document, finish, write_run

# Everything that UTF-8 can hold, NUL and line ends with it.
st.register_type_strategy(str, st.text(st.characters(codec="utf-8"), max_size=12))
st.register_type_strategy(int, st.integers(0, 2**62))
numbers = st.floats(allow_nan=False, allow_infinity=False)
st.register_type_strategy(float, numbers)
st.register_type_strategy(Criterion, st.builds(Criterion, weight=numbers.map(abs)))
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

    @given(st.lists(st.from_type(kind.model), max_size=4))
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
    with RunReader(folder.path) as running:
        before = [
            running.tasks(TaskQuery(limit=100)),
            running.task("task-1-003"),
            running.attempts_on("task-0-003"),
        ]
        matches = running.comparisons_on("task-0-003")
    for iteration in range(3):
        for stage in (Stage.TASKS, Stage.COMPARE):
            finish(folder, iteration, stage)
    # The lines are not needed once the parquet exists.
    for path in folder.path.glob("iteration-*/*/*.jsonl"):
        path.unlink()
    with RunReader(folder.path) as done:
        after = [done.tasks(TaskQuery(limit=100)), done.task("task-1-003"), done.attempts_on("task-0-003")]
        assert (after, done.comparisons_on("task-0-003")) == (before, matches)
        assert all(done.stages().values())


def test_the_same_lines_make_the_same_parquet(folder: RunFolder, tmp_path: Path) -> None:
    source = folder.stage(1, Stage.TASKS).rollouts
    made = [tmp_path / "one.parquet", tmp_path / "two.parquet"]
    rows = [
        write_columns(source, path, RecordKind.ROLLOUTS.model, looked_up=RecordKind.ROLLOUTS.looked_up)
        for path in made
    ]
    assert (
        made[0].read_bytes() == made[1].read_bytes()
        and rows[0] == rows[1] == pq.read_metadata(made[0]).num_rows
    )


@pytest.mark.integration
def test_many_row_groups_take_little_more_memory_than_few(folder: RunFolder, tmp_path: Path) -> None:
    """Bloom filters of DuckDB's own size took 65 MB a row group, until the file was whole."""
    line = folder.stage(1, Stage.TASKS).grades.read_bytes().splitlines(keepends=True)[0]
    few, many = (_peak(tmp_path, line, groups=groups) for groups in (8, 40))
    assert many - few < 0.4e9


def _peak(folder: Path, line: bytes, *, groups: int) -> int:
    """Bytes that a process needed to write so many row groups."""
    source = folder / f"{groups}.jsonl"
    source.write_bytes(line * (groups * ROWS_PER_GROUP))
    program = (
        "import sys, pathlib; from scope_selfplay.store.columns import RecordKind, write_columns\n"
        "from tests.peak_memory import peak_memory\n"
        "source = pathlib.Path(sys.argv[1]); model = RecordKind.GRADES.model\n"
        "write_columns(source, source.with_suffix('.parquet'), model)\n"
        "print(peak_memory())"
    )
    return printed(program, source)


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


def test_a_finished_file_that_was_cut_off_or_removed_is_named(folder: RunFolder) -> None:
    file = finish(folder, 1, Stage.TASKS) / "rollouts.parquet"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RecordError, match=r"rollouts\.parquet has changed since the stage was finished"):
        RunReader(folder.path)
    file.unlink()
    with pytest.raises(RecordError, match=r"rollouts\.parquet was removed"):
        RunReader(folder.path)


def test_a_file_that_is_not_parquet_is_named_even_if_its_checksum_is_right(folder: RunFolder) -> None:
    path = folder.stage(1, Stage.TASKS).path
    (path / "candidates.parquet").write_bytes(b"PAR1 and nothing else")
    publish_manifest(path, StageManifest(stage="tasks", iteration=1, spec_hash="0", outputs=checksums(path)))
    with pytest.raises(RecordError, match=r"candidates\.parquet: not a parquet file"):
        RunReader(folder.path)


def test_a_document_is_found_in_the_corpus_without_reading_it_all(folder: RunFolder) -> None:
    found = find_record(folder.corpus, "doc-007", type(document(0)))
    assert found == document(7)
    assert find_record(folder.corpus, "doc-00", type(document(0))) is None
    many = find_records(folder.corpus, ["doc-039", "doc-000", "absent"], type(document(0)))
    assert many == {"doc-000": document(0), "doc-039": document(39)}


@given(st.lists(st.text(st.characters(codec="utf-8")), unique=True, max_size=6))
@example(["guide, part 2.md", 'say "so", he said.md', "back\\", 'a\\",', "guide"])
def test_a_document_is_found_by_any_id_that_it_may_have(tmp_path_factory: Any, ids: list[str]) -> None:
    corpus = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    made = {each: Document(id=each, title="t", text="x, y") for each in ids}
    write_records(corpus, made.values())
    assert find_records(corpus, ids, Document) == made
    assert all(find_record(corpus, each, Document) == document for each, document in made.items())


def test_the_card_names_the_files_and_says_what_became_of_the_candidates(folder: RunFolder) -> None:
    card = (finish(folder, 1, Stage.TASKS) / CARD).read_text()
    for part in (
        "candidates.parquet",
        "| rejected | no_task | 6 |",
        "| rejected | gate_source | 6 |",
        "- seed: `7`",
        "`rollouts` (66)",
    ):
        assert part in card, part
    whole = run_card(folder, "demo")
    assert "iteration-01/tasks/candidates.parquet" in whole and "iteration-02" not in whole


def test_the_card_of_a_run_says_that_its_judge_errs_on_purpose(folder: RunFolder) -> None:
    assert "on purpose" not in run_card(folder, "demo")
    write_atomic(folder.config, "name: demo\njudge:\n  noise: {first: 0.3}\n")
    assert "errs on purpose** (`judge.noise`): first 30%." in run_card(folder, "demo")
