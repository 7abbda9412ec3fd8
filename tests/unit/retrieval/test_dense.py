"""Vectors, the recall gate and dense builds, on a random encoder of a few thousand weights."""

import dataclasses
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from retrieval.build import Recipe
from retrieval.build_dense import BATCH, BLOCK_ROWS, SHARD_ROWS, DenseBuild, TorchEncoder, build_dense
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
from retrieval.encoder import FAMILIES, open_encoder
from retrieval.folder import ENCODER, IndexManifest, join_contents, read_manifest
from retrieval.profiles import ProfileName, factory
from scope_selfplay.base.errors import ConfigError, CorpusError, RecordError, RunMismatchError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Document
from scope_selfplay.testing.random_encoder import write_random_encoder

pytestmark = pytest.mark.integration

DENSE = ["flat", "balanced", "compact"]
Whole = Callable[[str], tuple[Path, IndexManifest]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_random_encoder(folder, layers=1, hidden=64, heads=4)


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
    return Recipe(profile=profile, encoder=str(model), family="e5", backend="onnx")


def unit(draw: np.random.Generator, rows: int, dimensions: int = 64) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Clustered unit vectors: like text, unlike pure noise, they have neighbours."""
    centres = draw.standard_normal((40, dimensions))
    vectors = centres[draw.integers(0, 40, rows)] + 0.6 * draw.standard_normal((rows, dimensions))
    return np.ascontiguousarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


@pytest.mark.parametrize("profile", [ProfileName.BALANCED, ProfileName.COMPACT])
def test_the_gate_finds_a_setting_and_refuses_an_index_of_garbage(profile: ProfileName) -> None:
    """FAISS stores garbage without a word when `add_core` is called on some indexes: recall 0."""
    draw = np.random.default_rng(2)
    vectors = unit(draw, 2000)
    expected = ExhaustiveSearch(vectors).nearest(vectors[:100], 3).rows
    # Over blocks it is the same.
    assert (exact(vectors[:100], [vectors[:7], vectors[7:8], vectors[8:]]).rows == expected).all()

    def index_of(stored: np.ndarray[Any, np.dtype[np.float32]]) -> IvfIndex:
        index = faiss.index_factory(64, factory(profile, 2000), faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add(stored)
        span = fine_span(stored)
        fine = FineCopy(fine_codes(stored, span), span) if profile is ProfileName.COMPACT else None
        return IvfIndex(index, SearchEffort(1, 1.0), fine)

    good = index_of(vectors)
    looking, recall = tune(good, vectors[:100], expected, 0.9)
    assert measure(good.nearest, vectors[:100], expected) == recall >= 0.9
    assert looking.nprobe >= 1
    garbage = index_of(unit(draw, 2000))
    _, refused = tune(garbage, vectors[:100], expected, 0.9)
    assert measure(garbage.nearest, vectors[:100], expected) == refused < 0.9


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, model: Path, documents: list[Document]) -> Whole:
    """An index of every profile that is asked for, built once."""

    @cache
    def built(profile: str) -> tuple[Path, IndexManifest]:
        folder = tmp_path_factory.mktemp("whole")
        return folder, build_dense(documents, DenseBuild(folder, recipe(model, profile), shard_rows=64))

    return built


@pytest.mark.parametrize("profile", DENSE)
async def test_an_index_of_every_profile_passes_its_gate_and_searches_however_its_build_was_cut(
    tmp_path: Path, model: Path, documents: list[Document], whole: Whole, profile: str
) -> None:
    folder, manifest = whole(profile)
    assert manifest.gate is not None
    assert manifest.gate.recall >= manifest.gate.target - 0.005
    assert read_manifest(folder) == manifest
    searcher = open_searcher(folder)
    passages = await searcher.search(documents[5].text, 1000)
    assert len({passage.id for passage in passages}) == len(passages) > 3
    assert searcher.identity == manifest.identity
    scores = [passage.score for passage in passages]
    assert scores == sorted(scores, reverse=True)
    assert not list(folder.rglob("*.part"))
    for rows in (128, BLOCK_ROWS):
        plan = DenseBuild(tmp_path / str(rows), recipe(model, profile), shard_rows=rows)
        assert build_dense(documents, plan).identity == manifest.identity
    assert SHARD_ROWS % BATCH == BLOCK_ROWS % SHARD_ROWS == 0


class Interrupted(Exception):
    pass


class StopAfter(Progress):
    """Interrupts a build at a row of a step, and keeps how many passages were encoded."""

    def __init__(self, step: str = "", rows: int = 0) -> None:
        self.step, self.rows, self.now, self.encoded = step, rows, "", 0

    def begin(self, title: str, total: int | None, before: int = 0) -> None:
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
    tmp_path: Path, model: Path, documents: list[Document], whole: Whole, step: str, rows: int
) -> None:
    plan = DenseBuild(tmp_path, recipe(model, "compact"), shard_rows=64)
    with pytest.raises(Interrupted):
        build_dense(documents, plan, StopAfter(step, rows))
    with pytest.raises(RecordError, match="not finished"):
        read_manifest(tmp_path)
    assert build_dense(documents, plan).identity == whole("compact")[1].identity


def test_the_encoding_of_a_small_corpus_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    tiny = write_random_encoder(tmp_path / "e5", layers=1, hidden=32, heads=2)
    words = ["abc", "bcd", "cde", "xyz", "uvw"]
    small = [Document(id=str(n), title="", text=f"{words[n % 5]} {n}") for n in range(9000)]
    plan = DenseBuild(tmp_path / "index", recipe(tiny, "flat"))
    with pytest.raises(Interrupted):
        build_dense(small, plan, StopAfter("encode", 8500))
    rest = StopAfter()
    build_dense(small, plan, rest)
    assert rest.encoded == 9000 - 8192


def test_shards_of_another_size_are_not_taken_for_these_nor_a_foreign_folder_for_an_index(
    tmp_path: Path, model: Path, documents: list[Document]
) -> None:
    plan = DenseBuild(tmp_path / "index", recipe(model, "flat"), shard_rows=128)
    with pytest.raises(Interrupted):
        build_dense(documents, plan, StopAfter("encode", 200))
    with pytest.raises(RunMismatchError, match=r"000\.npy holds \(128, 64\) values, expected \(64, 64\)"):
        build_dense(documents, dataclasses.replace(plan, shard_rows=64))
    with pytest.raises(RunMismatchError, match="not empty"):
        build_dense(documents, dataclasses.replace(plan, folder=tmp_path))


def test_what_cannot_search_these_vectors_is_refused(whole: Whole) -> None:
    folder, manifest = whole("flat")
    encoder = type("Short", (), {"dimensions": 32})()
    with pytest.raises(RecordError, match="32 dimensions, the index has 64"):
        DenseIndex(encoder, open_vectors(folder, manifest))
    with pytest.raises(RecordError, match="faiss-gpu"):
        open_index(folder, manifest.model_copy(update={"profile": "gpu"}))


@pytest.mark.parametrize("damage", [b"garbage", b"\x93NUMPY\x01\x00v\x00" + b"(" * 40, b""])
def test_a_damaged_range_of_the_finer_copy_is_named(tmp_path: Path, whole: Whole, damage: bytes) -> None:
    """Its size may be what it was: a server that checks sizes only has to say it too."""
    built, manifest = whole("compact")
    folder = shutil.copytree(built, tmp_path / "index")
    path = folder / "fine_range.npy"
    path.write_bytes(damage + path.read_bytes()[len(damage) :] if damage else b"")
    with pytest.raises(RecordError, match=r"fine_range\.npy"):
        open_index(folder, manifest)
    np.save(path, np.ones((2, 7), dtype=np.float32))
    with pytest.raises(RecordError, match=r"expected \(2, 64\)"):
        open_index(folder, manifest)


def published(vectors: np.ndarray[Any, np.dtype[np.float32]], file: Path, kind: str = "Flat") -> Path:
    index = faiss.index_factory(vectors.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(file))
    return file


async def test_vectors_that_somebody_else_encoded_are_taken_where_they_are_the_encoders_and_refused_where_not(
    tmp_path: Path, model: Path, documents: list[Document], whole: Whole
) -> None:
    folder, manifest = whole("flat")
    texts = [join_contents(each.title, each.text) for each in documents]
    vectors = open_encoder(folder / ENCODER).passages(texts)
    file = published(vectors.astype(np.float16).astype(np.float32), tmp_path / "e5_Flat.index")
    plan = DenseBuild(tmp_path / "taken", recipe(model, "flat"), vectors=file)
    assert build_dense(documents, plan, StopAfter("encode")).rows == manifest.rows
    taken, encoded = open_searcher(tmp_path / "taken"), open_searcher(folder)
    for document in documents[::60]:
        answers = [await each.search(document.text, 3) for each in (taken, encoded)]
        assert [hit.id for hit in answers[0]] == [hit.id for hit in answers[1]]

    (tmp_path / "no.index").write_bytes(b"not an index")
    cases = {
        "rows are not what the encoder makes of the passages": published(
            unit(np.random.default_rng(3), 300), tmp_path / "others.index"
        ),
        "299 vectors of 64 dimensions, expected 300 of 64": published(vectors[:-1], tmp_path / "short.index"),
        "a IndexIVFFlat, which has no exact vectors": published(vectors, tmp_path / "ivf.index", "IVF2,Flat"),
        "not an index of FAISS, or cut off": tmp_path / "no.index",
    }
    for number, (message, file) in enumerate(cases.items()):
        with pytest.raises(CorpusError, match=message) as caught:
            build_dense(documents, DenseBuild(tmp_path / str(number), recipe(model, "flat"), vectors=file))
        assert "\n" not in str(caught.value)


def test_torch_makes_the_same_vectors_as_the_servers_graph_and_without_a_gpu_its_option_says_so(
    model: Path, documents: list[Document], whole: Whole
) -> None:
    """In full precision: what a GPU's half precision adds is below what the check of published vectors allows."""
    pytest.importorskip("torch")
    texts = [each.text for each in documents[:70]]
    ours = open_encoder(whole("flat")[0] / ENCODER).passages(texts)
    theirs = TorchEncoder(str(model), FAMILIES["e5"], device="cpu").passages(texts)
    assert np.abs(ours - theirs).max() < 1e-5
    with pytest.raises(ConfigError, match="torch sees no GPU here; leave it out to encode on the CPU"):
        TorchEncoder(str(model), FAMILIES["e5"])
