"""Every index profile on made-up data: build time, size, recall, queries per CPU second.

    python -m benchmarks.profiles [--rows 1000000] [--dimensions 768]

The vectors have the structure of text embeddings (`clustered`), the passages of `bm25` words that are as unevenly
frequent as those of a language. A profile that its recall gate would refuse still gets its row, with the best that
it reached.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.options import read_options
from retrieval.bm25 import Bm25Index
from retrieval.build import Recipe, build_bm25
from retrieval.dense import (
    ExhaustiveSearch,
    FineCopy,
    IvfIndex,
    SearchEffort,
    exact,
    fine_codes,
    fine_span,
    measure,
    recall,
    tune,
)
from retrieval.passages import Passages
from retrieval.profiles import PROFILES, TRAINING_POINTS_PER_CELL, ProfileName, cells, factory
from scope_selfplay.base.values import Document

QUERIES = 256
BLOCK = 65_536
SPECTRUM = 0.5
"""Exponent of the standard deviations along the principal directions: 1 / rank ** 0.5, so that variances fall as
1 / rank, as they do in text embeddings; about 30 directions of 768 count.
"""
VOCABULARY = 50_000
PASSAGE_WORDS = 60
QUERY_WORDS = 6
Vectors = NDArray[np.float32]


class Row(NamedTuple):
    profile: str
    build_seconds: float
    gigabytes: float
    recall: float | None
    """None where nothing is approximated."""
    rate: float
    looking: str

    def line(self) -> str:
        recall = "exact" if self.recall is None else f"{self.recall:.4f}"
        cost = f"{self.build_seconds:9.0f}{self.gigabytes:8.2f}{recall:>10}{self.rate:10.1f}"
        return f"{self.profile:10}{cost}  {self.looking}"


class Trained(NamedTuple):
    """Cells that both IVF profiles share: finding them is most of a build."""

    centroids: Vectors
    seconds: float


def main() -> None:
    options = read_options(__doc__, rows=1_000_000, dimensions=768)
    with tempfile.TemporaryDirectory() as folder:
        compare_profiles(Path(folder), options.rows, options.dimensions)


def compare_profiles(folder: Path, rows: int, dimensions: int) -> None:
    faiss.omp_set_num_threads(1)
    print(f"{rows:,} rows, vectors of {dimensions} dimensions, {QUERIES} queries, one thread")
    print(f"{'profile':10}{'build s':>9}{'GB':>8}{'recall@3':>10}{'q/CPU-s':>10}  looks into")
    print(try_bm25(folder / "bm25", rows).line(), flush=True)
    vectors = clustered(folder / "vectors.npy", rows + QUERIES, dimensions)
    queries, corpus = np.ascontiguousarray(vectors[rows:]), vectors[:rows]
    flat = ExhaustiveSearch(corpus)
    print(Row("flat", 0.0, corpus.nbytes / 1e9, None, rate_of(flat, queries), "every row").line(), flush=True)
    expected = exact(queries, [corpus]).rows
    print(try_half(corpus, queries, expected).line(), flush=True)
    trained = train_cells(corpus)
    for name in (ProfileName.BALANCED, ProfileName.COMPACT):
        print(try_cells(name, corpus, queries, expected, trained).line(), flush=True)


def clustered(path: Path, rows: int, dimensions: int) -> Vectors:
    """Unit vectors around centres of centres, on the disk (rows, dimensions).

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
    vectors = np.lib.format.open_memmap(path, "w+", np.float32, (rows, dimensions))
    for start in range(0, rows, BLOCK):
        count = min(BLOCK, rows - start)
        chosen = draw.integers(0, len(article_topics), count)
        block = topics[article_topics[chosen]] + 0.7 * _noise_of(seed, chosen, dimensions)
        block += 0.5 * draw.standard_normal(block.shape, dtype=np.float32)
        block = block @ turn
        vectors[start : start + count] = block / np.linalg.norm(block, axis=1, keepdims=True)
    return vectors


def _noise_of(seed: int, articles: NDArray[np.int64], dimensions: int) -> Vectors:
    """What is an article's own, the same for all of its passages, wherever they stand: drawn anew from its number
    instead of kept, which would take as much memory as a sixth of the vectors.
    """
    unique, places = np.unique(articles, return_inverse=True)
    own = np.stack(
        [np.random.default_rng([seed, each]).standard_normal(dimensions, np.float32) for each in unique]
    )
    return np.asarray(own[places], dtype=np.float32)


def try_bm25(folder: Path, rows: int) -> Row:
    start = time.process_time()
    manifest = build_bm25(made_up_passages(rows), folder, Recipe(profile="bm25", source="", source_bytes=0))
    built = time.process_time() - start
    passages, index = Passages.open(folder, manifest.corpus_hash), Bm25Index.open(folder)
    size = manifest.size - sum(manifest.files[name].size for name in ("passages.jsonl", "offsets.npy"))
    draw = np.random.default_rng(4)
    queries = [
        " ".join(draw.choice(passages.document(int(row)).text.split(), QUERY_WORDS))
        for row in draw.integers(0, rows, QUERIES)
    ]
    start = time.process_time()
    index.search(queries, 3)
    rate = len(queries) / (time.process_time() - start)
    return Row("bm25", built, size / 1e9, None, rate, "every row with one of the words")


def made_up_passages(rows: int) -> Iterator[Document]:
    """Passages whose words follow Zipf's law, as those of a language do."""
    draw = np.random.default_rng(3)
    share = 1.0 / np.arange(1, VOCABULARY + 1)
    limits = np.cumsum(share / share.sum())
    for start in range(0, rows, BLOCK):
        count = min(BLOCK, rows - start)
        words = np.searchsorted(limits, draw.random((count, PASSAGE_WORDS)))
        for place, line in enumerate(words.tolist(), start):
            yield Document(id=str(place), title="", text=" ".join(f"w{word}" for word in line))


def try_half(corpus: Vectors, queries: Vectors, expected: NDArray[np.int64]) -> Row:
    """What `gpu` holds and finds, searched here without one: the rounding is the same, the speed says nothing."""
    start = time.process_time()
    index: Any = faiss.IndexScalarQuantizer(
        corpus.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
    )
    for first in range(0, len(corpus), BLOCK):
        index.add(np.ascontiguousarray(corpus[first : first + BLOCK]))
    built = time.process_time() - start
    start = time.process_time()
    _, rows = index.search(queries, 3)
    rate = len(queries) / (time.process_time() - start)
    looking = "every row, in half precision; the rate is that of a CPU"
    return Row("gpu", built, corpus.nbytes / 2e9, recall(rows, expected), rate, looking)


def train_cells(corpus: Vectors) -> Trained:
    start = time.process_time()
    index: Any = faiss.index_factory(
        corpus.shape[1], f"IVF{cells(len(corpus))},Flat", faiss.METRIC_INNER_PRODUCT
    )
    index.train(training_sample(corpus))
    centroids = index.quantizer.reconstruct_n(0, index.nlist)
    return Trained(centroids, time.process_time() - start)


def training_sample(corpus: Vectors) -> Vectors:
    wanted = min(len(corpus), cells(len(corpus)) * TRAINING_POINTS_PER_CELL)
    chosen = np.random.default_rng(2).choice(len(corpus), wanted, replace=False)
    return np.ascontiguousarray(corpus[np.sort(chosen)])


def try_cells(
    name: ProfileName, corpus: Vectors, queries: Vectors, expected: NDArray[np.int64], trained: Trained
) -> Row:
    start = time.process_time()
    search, size = in_cells(name, corpus, trained)
    way, report = tune(search, queries, expected, PROFILES[name].recall)
    refused = "" if report.recall >= report.target else f"; its gate asks for {report.target:g} and refuses"
    built = time.process_time() - start + trained.seconds
    found = measure(search.nearest, queries, expected)
    looking = f"{way.nprobe} of {cells(len(corpus)):,} cells"
    if way.refine:
        looking += f", scores {way.refine:g} candidates a row again"
    return Row(name, built, size / 1e9, found, rate_of(search, queries), looking + refused)


def in_cells(name: ProfileName, corpus: Vectors, trained: Trained) -> tuple[IvfIndex, int]:
    """The index, and its bytes on a disk."""
    rows, dimensions = corpus.shape
    sample = training_sample(corpus)
    index: Any = faiss.index_factory(dimensions, factory(name, rows), faiss.METRIC_INNER_PRODUCT)
    # A quantizer that holds its cells already is left as it is by `train`.
    faiss.extract_index_ivf(index).quantizer.add(trained.centroids)
    index.train(sample)
    for start in range(0, rows, BLOCK):
        index.add(np.ascontiguousarray(corpus[start : start + BLOCK]))
    size = len(faiss.serialize_index(index))
    if name is not ProfileName.COMPACT:
        return IvfIndex(index, SearchEffort(1)), size
    span = fine_span(sample)
    codes = np.empty(corpus.shape, dtype=np.uint8)
    for start in range(0, rows, BLOCK):
        codes[start : start + BLOCK] = fine_codes(corpus[start : start + BLOCK], span)
    return IvfIndex(index, SearchEffort(1, 4.0), FineCopy(codes, span)), size + codes.nbytes


def rate_of(search: ExhaustiveSearch | IvfIndex, queries: Vectors) -> float:
    """Queries per CPU second, in batches of 32."""
    start = time.process_time()
    for first in range(0, len(queries), 32):
        search.nearest(queries[first : first + 32], 3)
    return len(queries) / (time.process_time() - start)


if __name__ == "__main__":
    main()
