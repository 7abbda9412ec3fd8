"""An index out of vectors that somebody else encoded: taken where they are the encoder's, refused where not."""

import asyncio
from pathlib import Path

import faiss
import numpy as np
import pytest

from retrieval import build_dense as gpu_passages
from retrieval.client import open_searcher
from retrieval.commands import build
from retrieval.encoder import FAMILIES, Backend, open_encoder, prepare_encoder
from retrieval.folder import read_manifest
from retrieval.passages import join_contents
from scope_selfplay.base.errors import ConfigError, CorpusError, RunMismatchError
from scope_selfplay.corpus.read import read_passages

ROWS = 300


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "psgs.tsv"
    lines = [f"{row}\ta text about stone {row * row} and river {row % 7}\tPlace {row}" for row in range(ROWS)]
    file.write_text("\n".join(["id\ttext\ttitle", *lines]) + "\n")
    return file


def vectors_of(source: Path, model: Path, folder: Path) -> np.ndarray:
    prepare_encoder(str(model), FAMILIES["e5"], Backend.ONNX, folder)
    texts = [join_contents(each.title, each.text) for _, each in read_passages(source)]
    return open_encoder(folder).passages(texts)


def published(vectors: np.ndarray, file: Path, kind: str = "Flat") -> Path:
    index = faiss.index_factory(vectors.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(file))
    return file


def built(source: Path, folder: Path, model: Path, *more: str) -> None:
    arguments = [str(source), str(folder), "--profile", "flat", "--encoder", str(model), *more]
    build.main(arguments, standalone_mode=False)


def test_an_index_of_published_vectors_answers_as_one_that_was_encoded_here(
    source: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = vectors_of(source, model, tmp_path / "encoder")
    file = published(vectors.astype(np.float16).astype(np.float32), tmp_path / "e5_Flat.index")
    built(source, tmp_path / "encoded", model)

    def fail(*_: object) -> None:
        raise AssertionError("encoded the corpus")

    monkeypatch.setattr("retrieval.build_dense._encode", fail)
    built(source, tmp_path / "taken", model, "--vectors", str(file))
    taken, encoded = open_searcher(tmp_path / "taken"), open_searcher(tmp_path / "encoded")
    for query in ("stone 144", "river 3", "Place 77"):
        answers = [[hit.id for hit in asyncio.run(each.search(query, 3))] for each in (taken, encoded)]
        assert answers[0] == answers[1]
    assert read_manifest(tmp_path / "taken").rows == ROWS
    # The same command again finds it finished; without the vectors it is another one.
    built(source, tmp_path / "taken", model, "--vectors", str(file))
    with pytest.raises(RunMismatchError, match="with other --vectors"):
        built(source, tmp_path / "taken", model)


def test_vectors_of_another_order_corpus_or_kind_are_refused_in_one_line(
    source: Path, model: Path, tmp_path: Path
) -> None:
    vectors = vectors_of(source, model, tmp_path / "encoder")
    draw = np.random.default_rng(3)
    noise = draw.normal(size=vectors.shape).astype(np.float32)
    cases = {
        "rows are not what the encoder makes of the passages": published(
            noise / np.linalg.norm(noise, axis=1, keepdims=True), tmp_path / "others.index"
        ),
        "299 vectors of 64 dimensions, expected 300 of 64": published(vectors[:-1], tmp_path / "short.index"),
        "a IndexIVFFlat, which has no exact vectors": published(vectors, tmp_path / "ivf.index", "IVF2,Flat"),
    }
    (tmp_path / "no.index").write_bytes(b"not an index")
    cases["not an index of FAISS, or cut off"] = tmp_path / "no.index"
    for number, (message, file) in enumerate(cases.items()):
        with pytest.raises(CorpusError, match=message) as caught:
            built(source, tmp_path / f"index-{number}", model, "--vectors", str(file))
        assert "\n" not in str(caught.value)


def test_what_contradicts_published_vectors_is_said(source: Path, model: Path, tmp_path: Path) -> None:
    file = published(np.eye(4, dtype=np.float32), tmp_path / "a.index")
    with pytest.raises(ConfigError, match="--device says how to encode, and --vectors are there"):
        built(source, tmp_path / "index", model, "--vectors", str(file), "--device", "cpu")
    with pytest.raises(ConfigError, match="--vectors belongs to the profiles that search vectors"):
        build.main([str(source), str(tmp_path / "words"), "--vectors", str(file)], standalone_mode=False)


def test_without_a_gpu_its_option_says_so(source: Path, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match="torch sees no GPU here; leave it out to encode on the CPU"):
        built(source, tmp_path / "index", model, "--device", "cuda")


@pytest.mark.integration
def test_torch_makes_the_same_vectors_as_the_servers_graph(source: Path, tmp_path: Path) -> None:
    """In full precision: what a GPU's half precision adds is below what the check of published vectors allows."""
    pytest.importorskip("torch")
    minilm = "minilm"
    prepare_encoder(minilm, FAMILIES["minilm"], Backend.ONNX, tmp_path / "encoder")
    texts = [join_contents(each.title, each.text) for _, each in read_passages(source)][:70]
    ours = open_encoder(tmp_path / "encoder").passages(texts)
    theirs = gpu_passages.GpuPassages(minilm, FAMILIES["minilm"], device="cpu").passages(texts)
    assert np.abs(ours - theirs).max() < 1e-5
