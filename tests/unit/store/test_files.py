"""Records on disk: what a kill, a full disk, a bit flip and a second writer do to them."""

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent

import pytest

from scope_selfplay.base.errors import RecordError, StorageError
from scope_selfplay.base.values import Document
from scope_selfplay.store import files
from scope_selfplay.store.files import Appender, part_of, read_records, read_rows, write_atomic, write_records
from scope_selfplay.store.folder import StageManifest, checksums, publish_manifest, read_manifest

DOCUMENTS = [Document(id=f"d{row}", title=f"Title {row}", text="text\nwith a line end é") for row in range(5)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "documents.jsonl"
    write_records(path, DOCUMENTS)
    return path


def test_records_read_back_as_they_were(file: Path) -> None:
    assert read_records(file, Document) == DOCUMENTS
    assert [row["id"] for row in read_rows(file)] == ["d0", "d1", "d2", "d3", "d4"]
    assert read_records(file.with_name("absent.jsonl"), Document) == []


@pytest.mark.fault(8)
@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_dropped_and_cut_off_before_appending(file: Path, cut: int) -> None:
    file.write_bytes(file.read_bytes()[:-cut])
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


def test_a_row_that_is_not_an_object_is_damage(file: Path) -> None:
    file.write_bytes(b'{"a": 1}\n[1]\n')
    with pytest.raises(RecordError, match=r"documents\.jsonl:2: damaged record \(Input should be an object"):
        read_rows(file)


def test_a_number_that_json_lacks_is_never_written(tmp_path: Path) -> None:
    with Appender(tmp_path / "metrics.jsonl") as appender, pytest.raises(ValueError, match="JSON compliant"):
        appender.append({"loss": float("nan")})


FULL_DISK = """
    import resource, signal, sys
    from pathlib import Path
    from scope_selfplay.base.errors import StorageError
    from scope_selfplay.store.files import Appender, write_atomic
    # A write beyond this size fails as on a full disk.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    folder = Path(sys.argv[1])
    for writer in ("append", "atomic"):
        try:
            if writer == "append":
                with Appender(folder / "rows.jsonl") as rows:
                    rows.append({"a": 1})
                    rows.append({"b": "x" * 200})
            else:
                write_atomic(folder / "whole.json", "y" * 200)
        except StorageError as error:
            print(writer, error)
"""


@pytest.mark.fault(7)
def test_a_full_disk_is_one_clear_error_and_costs_nothing_that_was_there(tmp_path: Path) -> None:
    write_atomic(tmp_path / "whole.json", "before")
    done = subprocess.run(
        [sys.executable, "-c", dedent(FULL_DISK), str(tmp_path)], capture_output=True, text=True, check=True
    )
    append, atomic = done.stdout.splitlines()
    assert append.startswith("append") and "rows.jsonl: cannot be written (File too large)" in append
    assert atomic.startswith("atomic") and "whole.json: cannot be written (File too large)" in atomic
    assert read_rows(tmp_path / "rows.jsonl") == [{"a": 1}]
    assert (tmp_path / "whole.json").read_text() == "before"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rows.jsonl", "whole.json"]


def test_a_folder_that_is_missing_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        write_atomic(tmp_path / "none" / "file", "text")
    with pytest.raises(StorageError, match="No such file"):
        Appender(tmp_path / "none" / "file")


@pytest.mark.fault(7)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_device_that_is_full_says_so(tmp_path: Path) -> None:
    # The temporary name of this process is taken by a file that accepts nothing.
    part_of(tmp_path / "whole.json").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left"):
        write_atomic(tmp_path / "whole.json", "text")
    assert list(tmp_path.iterdir()) == []


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


def test_a_manifest_lists_every_file_that_is_not_scratch(stage: Path) -> None:
    manifest = read_manifest(stage)
    assert manifest is not None
    assert set(manifest.outputs) == {"candidates.jsonl", "checkpoint/weights"}


def test_the_first_to_publish_wins(stage: Path) -> None:
    first = read_manifest(stage)
    publish_manifest(stage, manifest_of(stage).model_copy(update={"spec_hash": "1" * 16}))
    assert read_manifest(stage) == first
    assert not list(stage.glob("*.part")) and not list(stage.glob(".*.part"))


def test_every_flipped_bit_is_found(stage: Path) -> None:
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


def test_a_missing_output_is_found(stage: Path) -> None:
    (stage / "candidates.jsonl").unlink()
    with pytest.raises(RecordError, match=r"candidates\.jsonl was removed"):
        read_manifest(stage)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"{"])
def test_a_damaged_manifest_is_named(stage: Path, content: bytes) -> None:
    (stage / "manifest.json").write_bytes(content)
    with pytest.raises(RecordError, match=r"manifest\.json: damaged"):
        read_manifest(stage)


def test_a_manifest_is_named_by_what_it_made_and_not_by_how_long_it_took(stage: Path) -> None:
    manifest = read_manifest(stage)
    assert manifest is not None
    assert manifest.hash == manifest.model_copy(update={"seconds": 9.0}).hash
    assert manifest.hash != manifest.model_copy(update={"outputs": {}}).hash
