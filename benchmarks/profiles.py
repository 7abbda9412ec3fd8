"""Every index profile on made-up data: recall, and queries per CPU second.

    python -m benchmarks.profiles [--rows 1000000] [--dimensions 768]

The vectors have the structure of text embeddings, the passages of `bm25` words that are as unevenly frequent as those
of a language. A profile that its recall gate would refuse still gets its row, with the best that it reached.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.markdown import markdown
from benchmarks.options import read_options
from retrieval.bm25 import Bm25Index
from retrieval.build import SILENT, Recipe, build_bm25
from retrieval.build_dense import DenseBuild, VectorShards, _build_ivf
from retrieval.dense import ExhaustiveSearch, IvfIndex, Nearest, exact, measure, tune
from retrieval.folder import Passages
from retrieval.profiles import PROFILES, ProfileName
from scope_selfplay.base.values import Document

QUERIES = 256
BLOCK = 65_536
SPECTRUM = 0.5
"""Exponent of the standard deviations along the principal directions: 1 / rank ** 0.5, so that variances fall as
1 / rank, as they do in text embeddings; about 30 directions of 768 count.
"""
VOCABULARY, PASSAGE_WORDS, QUERY_WORDS = 50_000, 60, 6
Vectors = NDArray[np.float32]


def main() -> None:
    options = read_options(__doc__, rows=1_000_000, dimensions=768)
    faiss.omp_set_num_threads(1)
    print(f"{options.rows:,} rows of {options.dimensions} dimensions, {QUERIES} queries, one thread\n")
    rows = [["profile", "recall@3", "queries per CPU second"]]
    with tempfile.TemporaryDirectory() as folder:
        rows += tried(Path(folder), options.rows, options.dimensions)
    print(markdown(rows))


def tried(folder: Path, rows: int, dimensions: int) -> Iterator[list[str]]:
    yield try_bm25(folder / "bm25", rows)
    shards = VectorShards(folder, BLOCK, rows)
    *blocks, queries = clustered(rows, dimensions)
    for start, block in zip(shards.starts, blocks, strict=True):
        np.save(shards.path(start), block)
    # The largest of all is read from the disk by whoever needs it.
    corpus = np.lib.format.open_memmap(folder / "vectors.npy", "w+", np.float32, (rows, dimensions))
    for start in shards.starts:
        corpus[start : shards.end(start)] = np.load(shards.path(start))
    flat = ExhaustiveSearch(corpus)
    yield row("flat", None, rate_of(flat, queries))
    expected = exact(queries, [corpus]).rows
    half = _Half(corpus)
    yield row("gpu", measure(half.nearest, queries, expected), rate_of(half, queries))
    for name in (ProfileName.BALANCED, ProfileName.COMPACT):
        plan = DenseBuild(folder / name, Recipe(profile=name))
        plan.folder.mkdir()
        index = _build_ivf(corpus.shape, shards, plan, SILENT)
        _, recall = tune(index, queries, expected, PROFILES[name].recall)
        yield row(name, recall, rate_of(index, queries))


def row(name: str, recall: float | None, rate: float) -> list[str]:
    """`recall` is None where nothing is approximated."""
    return [f"`{name}`", "exact" if recall is None else f"{recall:.4f}", f"{rate:.1f}"]


def clustered(rows: int, dimensions: int) -> Iterator[Vectors]:
    """Unit vectors around centres of centres, block by block, and last the queries.

    Text embeddings vary along few directions, and neighbours differ in distance. Noise that is equally strong in
    all dimensions would put all neighbours equally far away, where the third rank is a lottery.
    """
    draw = np.random.default_rng(1)
    spread = (np.arange(1, dimensions + 1) ** -SPECTRUM).astype(np.float32)
    turn, _ = np.linalg.qr(draw.standard_normal((dimensions, dimensions), dtype=np.float32))
    turn = spread[:, None] * turn
    topics = draw.standard_normal((max(8, rows // 20_000), dimensions), dtype=np.float32)
    # Six passages an article, as in Wikipedia cut into a hundred words.
    article_topics = draw.integers(0, len(topics), max(8, rows // 6))
    seed = int(draw.integers(1 << 62))
    for start in (*range(0, rows, BLOCK), rows):
        chosen = draw.integers(0, len(article_topics), min(BLOCK, rows - start) or QUERIES)
        block = topics[article_topics[chosen]] + 0.7 * _noise_of(seed, chosen, dimensions)
        block = (block + 0.5 * draw.standard_normal(block.shape, dtype=np.float32)) @ turn
        yield np.ascontiguousarray(block / np.linalg.norm(block, axis=1, keepdims=True))


def _noise_of(seed: int, articles: NDArray[np.int64], dimensions: int) -> Vectors:
    """What is an article's own, the same for all of its passages: drawn anew from its number instead of kept, which
    would take as much memory as a sixth of the vectors.
    """
    unique, places = np.unique(articles, return_inverse=True)
    own = [np.random.default_rng([seed, each]).standard_normal(dimensions, np.float32) for each in unique]
    return np.asarray(np.stack(own)[places], dtype=np.float32)


def try_bm25(folder: Path, rows: int) -> list[str]:
    build_bm25(made_up_passages(rows), folder)
    passages, index = Passages.open(folder), Bm25Index.open(folder)
    draw = np.random.default_rng(4)
    texts = [passages.document(int(place)).text.split() for place in draw.integers(0, rows, QUERIES)]
    queries = [" ".join(draw.choice(words, QUERY_WORDS)) for words in texts]
    begun = time.process_time()
    index.search(queries, 3)
    return row("bm25", None, len(queries) / (time.process_time() - begun))


def made_up_passages(rows: int) -> Iterator[Document]:
    """Passages whose words follow Zipf's law, as those of a language do."""
    draw = np.random.default_rng(3)
    share = 1.0 / np.arange(1, VOCABULARY + 1)
    limits = np.cumsum(share / share.sum())
    for start in range(0, rows, BLOCK):
        words = np.searchsorted(limits, draw.random((min(BLOCK, rows - start), PASSAGE_WORDS)))
        for place, line in enumerate(words.tolist(), start):
            yield Document(id=str(place), title="", text=" ".join(f"w{word}" for word in line))


class _Half:
    """What `gpu` holds and finds, searched here without one: the rounding is the same, the speed says nothing."""

    def __init__(self, corpus: Vectors) -> None:
        self._index: Any = faiss.IndexScalarQuantizer(
            corpus.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        )
        for first in range(0, len(corpus), BLOCK):
            self._index.add(np.ascontiguousarray(corpus[first : first + BLOCK]))

    def nearest(self, queries: Vectors, topk: int) -> Nearest:
        return Nearest(*self._index.search(queries, topk))


def rate_of(search: ExhaustiveSearch | IvfIndex | _Half, queries: Vectors) -> float:
    """Queries per CPU second, in batches of 32."""
    begun = time.process_time()
    for first in range(0, len(queries), 32):
        search.nearest(queries[first : first + 32], 3)
    return len(queries) / (time.process_time() - begun)


if __name__ == "__main__":
    main()
