"""Records on disk: what a kill, a full disk, a bit flip and a second writer do to them."""

import os
import random
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import RecordError
from scope_selfplay.base.values import Document
from scope_selfplay.store import files
from scope_selfplay.store.files import Appender, read_records, read_rows, write_atomic, write_records
from scope_selfplay.store.folder import StageManifest, checksums, publish_manifest, read_manifest

DOCUMENTS = [Document(id=f"d{row}", title=f"Title {row}", text="text\nwith a line end é") for row in range(5)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "documents.jsonl"
    write_records(path, DOCUMENTS)
    return path


@pytest.mark.fault(8)
@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_dropped_and_cut_off_before_appending(file: Path, cut: int) -> None:
    file.write_bytes(file.read_bytes()[:-cut])
    assert read_records(file.with_name("absent.jsonl"), Document) == []
    assert read_records(file, Document) == DOCUMENTS[:-1]
    with Appender(file) as appender:
        appender.append(DOCUMENTS[-1])
    assert read_records(file, Document) == DOCUMENTS


def test_records_of_many_threads_are_on_disk_when_append_returns(tmp_path: Path) -> None:
    file = tmp_path / "many.jsonl"
    with Appender(file) as appender, ThreadPoolExecutor(8) as threads:

        def append(number: int) -> bool:
            appender.append({"number": number})
            return b'{"number": %d}\n' % number in file.read_bytes()

        assert all(threads.map(append, range(200)))
    assert sorted(row["number"] for row in read_rows(file)) == list(range(200))


@pytest.mark.fault(8)
@pytest.mark.parametrize("part", [b"", b'{"id": "d5", "ti'])
def test_a_tail_of_zeros_is_dropped_and_cut_off(file: Path, part: bytes) -> None:
    file.write_bytes(file.read_bytes() + part + bytes(4096))
    assert read_records(file, Document) == DOCUMENTS
    with Appender(file):
        pass
    assert b"\0" not in file.read_bytes()
    assert read_records(file, Document) == DOCUMENTS


@pytest.mark.parametrize("block", [1, 7, 64])
@pytest.mark.parametrize("kept", [b"", b"\n", b"a\nbb\n", b"a" * 63 + b"\n"])
@pytest.mark.parametrize("torn", [b"", b"c", b"c" * 64])
def test_the_last_complete_line_is_found_from_the_end(
    kept: bytes, torn: bytes, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK", block)
    path = tmp_path / "records.jsonl"
    path.write_bytes(kept + torn)
    with Appender(path):
        pass
    assert path.read_bytes() == kept


@pytest.mark.fault(8)
@pytest.mark.parametrize("damaged", [b"{", b'{"id": "d2"}', b"[]", b"", b"\0\0\0", b"\xff"])
def test_damage_in_the_middle_is_named_with_file_and_line(file: Path, damaged: bytes) -> None:
    lines = file.read_bytes().split(b"\n")
    lines[2] = damaged
    file.write_bytes(b"\n".join(lines))
    with pytest.raises(RecordError, match=r"documents\.jsonl:3: damaged record \((\w+: )?[A-Z]") as caught:
        read_records(file, Document)
    assert "\n" not in str(caught.value)
    file.write_bytes(b'{"a": 1}\n[1]\n')
    with pytest.raises(RecordError, match=r"documents\.jsonl:2: damaged record \(Input should be an object"):
        read_rows(file)


def test_what_is_written_is_on_disk_before_it_has_its_name_and_its_name_before_the_write_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            is_folder = name == "sync" and stat.S_ISDIR(os.fstat(given[0]).st_mode)
            order.append("sync folder" if is_folder else name)
            return real(*given)

        return call

    for name, function in (("sync", os.fsync), ("rename", os.replace), ("link", os.link)):
        monkeypatch.setattr(os, function.__name__, noted(name, function))
    write_atomic(tmp_path / "whole", "text")
    write_atomic(tmp_path / "first", "text", exclusive=True)
    with Appender(tmp_path / "rows.jsonl") as rows:
        rows.append({"a": 1})
    assert order == ["sync", "rename", "sync folder", "sync", "link", "sync folder", "sync"]


def test_a_number_that_json_lacks_is_never_written(tmp_path: Path) -> None:
    with Appender(tmp_path / "metrics.jsonl") as appender, pytest.raises(ValueError, match="JSON compliant"):
        appender.append({"loss": float("nan")})


def manifest_of(folder: Path) -> StageManifest:
    return StageManifest(stage="tasks", iteration=1, spec_hash="0" * 16, outputs=checksums(folder))


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks"
    (folder / "checkpoint").mkdir(parents=True)
    (folder / ".work").mkdir()
    (folder / ".work" / "scratch").write_text("not an output")
    (folder / "checkpoint" / "weights").write_bytes(random.Random(0).randbytes(500))
    write_records(folder / "candidates.jsonl", DOCUMENTS)
    publish_manifest(folder, manifest_of(folder))
    return folder


def test_a_manifest_lists_every_file_that_is_not_scratch_and_the_first_to_publish_wins(stage: Path) -> None:
    first = read_manifest(stage)
    assert first is not None and set(first.outputs) == {"candidates.jsonl", "checkpoint/weights"}
    publish_manifest(stage, manifest_of(stage).model_copy(update={"spec_hash": "1" * 16}))
    assert read_manifest(stage) == first
    assert not list(stage.glob("*.part")) and not list(stage.glob(".*.part"))
    # It is named by what it made and not by how long that took.
    assert first.hash == first.model_copy(update={"seconds": 9.0}).hash
    assert first.hash != first.model_copy(update={"outputs": {}}).hash


def test_every_flipped_bit_is_found_and_a_missing_output(stage: Path) -> None:
    weights = stage / "checkpoint" / "weights"
    whole = weights.read_bytes()
    rng = random.Random(1)
    for _ in range(50):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        weights.write_bytes(damaged)
        with pytest.raises(RecordError, match="weights has changed since the stage was finished"):
            read_manifest(stage)
    weights.write_bytes(whole)
    assert read_manifest(stage) is not None
    (stage / "candidates.jsonl").unlink()
    with pytest.raises(RecordError, match=r"candidates\.jsonl was removed"):
        read_manifest(stage)
