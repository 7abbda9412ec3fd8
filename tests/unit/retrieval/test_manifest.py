import json
import random
from pathlib import Path

import pytest

from retrieval.build import build_bm25
from retrieval.client import open_index
from retrieval.folder import MANIFEST, PASSAGES, IndexManifest, Verify, index_hash, read_manifest
from scope_selfplay.base.errors import RecordError
from scope_selfplay.base.values import Document


@pytest.fixture
def built(tmp_path: Path, coast: list[Document]) -> IndexManifest:
    return build_bm25(coast, tmp_path)


def test_building_the_same_corpus_twice_gives_the_same_identity(
    tmp_path: Path, coast: list[Document]
) -> None:
    first, second = (build_bm25(coast, tmp_path / name) for name in ("a", "b"))
    assert first.identity == second.identity


def test_every_flipped_bit_is_found(tmp_path: Path, built: IndexManifest) -> None:
    draw = random.Random(5)
    found = 0
    for name in built.files:
        path = tmp_path / name
        data = bytearray(path.read_bytes())
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        intact = path.read_bytes()
        path.write_bytes(data)
        with pytest.raises(RecordError, match=f"{name}: damaged"):
            read_manifest(tmp_path)
        path.write_bytes(intact)
        found += 1
    print(f"flipped bits: {found} injected, {found} found")
    assert read_manifest(tmp_path, Verify.FULL) == built


def test_a_cut_file_is_found_by_its_size_alone(tmp_path: Path, built: IndexManifest) -> None:
    path = tmp_path / "indices.csc.index.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RecordError, match="the manifest says"):
        read_manifest(tmp_path, Verify.SIZES)


def test_an_unfinished_folder_is_not_an_index(tmp_path: Path, built: IndexManifest) -> None:
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(RecordError, match="has not finished"):
        read_manifest(tmp_path)


def test_an_index_of_another_corpus_is_refused(tmp_path: Path, coast: list[Document]) -> None:
    manifest = build_bm25(coast, tmp_path / "a")
    other = build_bm25(coast[::-1], tmp_path / "b")
    mixed = manifest.model_copy(update={"files": {**manifest.files, PASSAGES: other.files[PASSAGES]}})
    (tmp_path / "a" / PASSAGES).write_bytes((tmp_path / "b" / PASSAGES).read_bytes())
    (tmp_path / "a" / MANIFEST).write_text(mixed.model_dump_json())
    with pytest.raises(RecordError, match="another corpus"):
        read_manifest(tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "message"),
    [({"format": 99}, "format 99"), ({"index_hash": "0"}, "does not follow"), ({"rows": 0}, "damaged")],
)
def test_a_manifest_that_cannot_be_true_is_refused(
    tmp_path: Path, built: IndexManifest, change: dict[str, object], message: str
) -> None:
    (tmp_path / MANIFEST).write_text(built.model_copy(update=change).model_dump_json())
    with pytest.raises(RecordError, match=message):
        read_manifest(tmp_path)


@pytest.mark.parametrize("change", [{"nprobe": 7}, {"refine": 8.0}, {"encoder_hash": "e" * 64}])
def test_the_identity_covers_how_the_index_looks_and_with_which_encoder(
    tmp_path: Path, built: IndexManifest, change: dict[str, object]
) -> None:
    changed = built.model_copy(update=change)
    assert index_hash(changed) != built.index_hash
    (tmp_path / MANIFEST).write_text(changed.model_dump_json())
    with pytest.raises(RecordError, match="does not follow"):
        read_manifest(tmp_path)


def test_an_index_with_other_rows_than_its_manifest_is_refused(tmp_path: Path, built: IndexManifest) -> None:
    with pytest.raises(RecordError, match="the manifest says 7"):
        open_index(tmp_path, built.model_copy(update={"rows": 7}))


def test_an_index_of_a_release_that_wrote_its_rows_is_read(tmp_path: Path, built: IndexManifest) -> None:
    path = tmp_path / MANIFEST
    rows = {"source": "s", "first": 0, "end": 6, "total": 6}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"source_rows": rows}))
    assert read_manifest(tmp_path).identity == built.identity
