"""Vectors, the recall gate and dense builds, on a random encoder of a few thousand weights."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from retrieval.build import Recipe
from retrieval.build_dense import BATCH, BLOCK_ROWS, SHARD_ROWS, DenseBuild, build_dense
from retrieval.client import open_index, open_searcher
from retrieval.dense import (
    DenseIndex,
    ExhaustiveSearch,
    FineCopy,
    IvfIndex,
    SearchEffort,
    exact,
    fine_codes,
    fine_span,
    measure,
    open_vectors,
    tune,
)
from retrieval.folder import IndexManifest, read_manifest
from retrieval.profiles import ProfileName, factory
from scope_selfplay.base.errors import RecordError, RunMismatchError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Document
from scope_selfplay.testing.random_encoder import write_random_encoder

pytestmark = pytest.mark.integration

DENSE = ["flat", "balanced", "compact"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_random_encoder(folder, np.random.default_rng(1), layers=1, hidden=64, heads=4)


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    draw = np.random.default_rng(3)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))

    def words() -> str:
        # Few letters each: the mean over a text's characters must not be the same for all texts.
        alphabet = draw.choice(letters, size=3)
        return " ".join("".join(draw.choice(alphabet, size=5)) for _ in range(4))

    return [Document(id=f"d{row}", title=f"title {row}", text=words()) for row in range(300)]


def recipe(model: Path, profile: str) -> Recipe:
    return Recipe(
        profile=profile, source="x", source_bytes=1, encoder=str(model), family="e5", backend="onnx"
    )


def unit(draw: np.random.Generator, rows: int, dimensions: int = 64) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Clustered unit vectors: like text, unlike pure noise, they have neighbours."""
    centres = draw.standard_normal((40, dimensions))
    vectors = centres[draw.integers(0, 40, rows)] + 0.6 * draw.standard_normal((rows, dimensions))
    return np.ascontiguousarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def test_exact_over_blocks_equals_one_search() -> None:
    vectors = unit(np.random.default_rng(1), 500)
    blocks = exact(vectors[:20], [vectors[:7], vectors[7:8], vectors[8:]], topk=5)
    assert (blocks.rows == ExhaustiveSearch(vectors).nearest(vectors[:20], 5).rows).all()


@pytest.mark.parametrize("profile", [ProfileName.BALANCED, ProfileName.COMPACT])
def test_the_gate_finds_a_setting_and_refuses_an_index_of_garbage(profile: ProfileName) -> None:
    """FAISS stores garbage without a word when `add_core` is called on some indexes: recall 0."""
    draw = np.random.default_rng(2)
    vectors = unit(draw, 2000)
    expected = exact(vectors[:100], [vectors]).rows

    def index_of(stored: np.ndarray[Any, np.dtype[np.float32]]) -> IvfIndex:
        index = faiss.index_factory(64, factory(profile, 2000), faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add(stored)
        span = fine_span(stored)
        fine = FineCopy(fine_codes(stored, span), span) if profile is ProfileName.COMPACT else None
        return IvfIndex(index, SearchEffort(1, 1.0), fine)

    good = index_of(vectors)
    looking, report = tune(good, vectors[:100], expected, 0.9)
    assert report.recall >= 0.9
    assert measure(good.nearest, vectors[:100], expected) == report.recall
    assert looking.nprobe >= 1
    garbage = index_of(unit(draw, 2000))
    _, refused = tune(garbage, vectors[:100], expected, 0.9)
    assert measure(garbage.nearest, vectors[:100], expected) == refused.recall < 0.9


@pytest.mark.parametrize("profile", DENSE)
async def test_a_build_of_every_profile_passes_its_gate_and_searches(
    tmp_path: Path, model: Path, documents: list[Document], profile: str
) -> None:
    manifest = build_dense(documents, DenseBuild(tmp_path, recipe(model, profile), shard_rows=64))
    assert manifest.gate is not None
    assert manifest.gate.recall >= manifest.gate.target - 0.005
    assert read_manifest(tmp_path) == manifest
    searcher = open_searcher(tmp_path)
    passages = await searcher.search(documents[5].text, 1000)
    assert len({passage.id for passage in passages}) == len(passages) > 3
    assert searcher.identity == manifest.identity
    scores = [passage.score for passage in passages]
    assert scores == sorted(scores, reverse=True)
    assert not list(tmp_path.rglob("*.part"))


class Interrupted(Exception):
    pass


class StopAfter(Progress):
    """Interrupts a build at a row of a step, and keeps how many passages were encoded."""

    def __init__(self, step: str = "", rows: int = 0) -> None:
        self.step, self.rows, self.now, self.encoded = step, rows, "", 0

    def begin(self, title: str, total: int | None) -> None:
        self.now = title
        self.advance(0)

    def advance(self, done: int, note: str = "") -> None:
        if self.now == "encode":
            self.encoded = done
        if self.now == self.step and done >= self.rows:
            raise Interrupted


@pytest.mark.parametrize(
    ("step", "rows"),
    [("passages", 300), ("encode", 64), ("encode", 200), ("train", 0), ("index", 128), ("recall gate", 0)],
)
def test_an_interrupted_build_resumes_to_the_same_index(
    tmp_path: Path, model: Path, documents: list[Document], step: str, rows: int
) -> None:
    whole = build_dense(documents, DenseBuild(tmp_path / "a", recipe(model, "compact"), shard_rows=64))
    plan = DenseBuild(tmp_path / "b", recipe(model, "compact"), shard_rows=64)
    with pytest.raises(Interrupted):
        build_dense(documents, plan, StopAfter(step, rows))
    with pytest.raises(RecordError, match="not finished"):
        read_manifest(tmp_path / "b")
    assert build_dense(documents, plan).identity == whole.identity


@pytest.mark.parametrize("profile", DENSE)
def test_the_index_does_not_depend_on_where_a_build_can_be_stopped(
    tmp_path: Path, model: Path, documents: list[Document], profile: str
) -> None:
    made = [
        build_dense(
            documents, DenseBuild(tmp_path / str(rows), recipe(model, profile), shard_rows=rows)
        ).identity
        for rows in (64, 128, BLOCK_ROWS)
    ]
    assert len(set(made)) == 1
    assert SHARD_ROWS % BATCH == BLOCK_ROWS % SHARD_ROWS == 0


def test_the_encoding_of_a_small_corpus_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    """A kill cost up to 65,536 passages: eleven minutes, and all that a small corpus has."""
    tiny = write_random_encoder(tmp_path / "e5", np.random.default_rng(1), layers=1, hidden=32, heads=2)
    words = ["abc", "bcd", "cde", "xyz", "uvw"]
    small = [Document(id=str(n), title="", text=f"{words[n % 5]} {n}") for n in range(9000)]
    plan = DenseBuild(tmp_path / "index", recipe(tiny, "flat"))
    with pytest.raises(Interrupted):
        build_dense(small, plan, StopAfter("encode", 8500))
    whole = StopAfter()
    build_dense(small, plan, whole)
    assert whole.encoded == 9000 - 8192


def test_shards_of_another_size_are_not_taken_for_these(
    tmp_path: Path, model: Path, documents: list[Document]
) -> None:
    plan = DenseBuild(tmp_path, recipe(model, "flat"), shard_rows=128)
    with pytest.raises(Interrupted):
        build_dense(documents, plan, StopAfter("encode", 200))
    with pytest.raises(RunMismatchError, match=r"000\.npy holds \(128, 64\) values, expected \(64, 64\)"):
        build_dense(documents, dataclasses.replace(plan, shard_rows=64))


def test_a_foreign_folder_is_not_touched(tmp_path: Path, model: Path, documents: list[Document]) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunMismatchError, match="not empty"):
        build_dense(documents, DenseBuild(tmp_path, recipe(model, "flat")))


@pytest.fixture
def flat(tmp_path: Path, model: Path, documents: list[Document]) -> Iterator[tuple[Path, IndexManifest]]:
    yield tmp_path, build_dense(documents, DenseBuild(tmp_path, recipe(model, "flat")))


def test_an_encoder_of_other_dimensions_is_refused(flat: tuple[Path, IndexManifest]) -> None:
    folder, manifest = flat
    vectors = open_vectors(folder, manifest)
    encoder = type("Short", (), {"dimensions": 32})()
    with pytest.raises(RecordError, match="32 dimensions, the index has 64"):
        DenseIndex(encoder, vectors)


def test_the_gpu_profile_without_a_gpu_says_what_it_needs(flat: tuple[Path, IndexManifest]) -> None:
    folder, manifest = flat
    with pytest.raises(RecordError, match="faiss-gpu"):
        open_index(folder, manifest.model_copy(update={"profile": "gpu"}))


@pytest.mark.parametrize("damage", [b"garbage", b"\x93NUMPY\x01\x00v\x00" + b"(" * 40, b""])
def test_a_damaged_range_of_the_finer_copy_is_named(
    tmp_path: Path, model: Path, documents: list[Document], damage: bytes
) -> None:
    """Its size may be what it was: a server that checks sizes only has to say it too."""
    manifest = build_dense(documents, DenseBuild(tmp_path, recipe(model, "compact")))
    path = tmp_path / "fine_range.npy"
    path.write_bytes(damage + path.read_bytes()[len(damage) :] if damage else b"")
    with pytest.raises(RecordError, match=r"fine_range\.npy"):
        open_index(tmp_path, manifest)
    np.save(path, np.ones((2, 7), dtype=np.float32))
    with pytest.raises(RecordError, match=r"expected \(2, 64\)"):
        open_index(tmp_path, manifest)
