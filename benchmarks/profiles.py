"""Every index profile on synthetic vectors: build time, size, recall, queries per CPU second."""

import time
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from retrieval.gate import exact, measure, tune
from retrieval.profiles import PROFILES, TRAINING_POINTS_PER_CELL, ProfileName, cells, factory
from retrieval.vectors import Cells, Exhaustive, Refined, VectorSearch, fine_codes, fine_span

QUERIES = 256
BLOCK = 65_536


class Row(NamedTuple):
    profile: str
    build_seconds: float
    gigabytes: float
    recall: float
    rate: float
    looking: str


def compare_profiles(folder: Path, rows: int, dimensions: int) -> None:
    faiss.omp_set_num_threads(1)
    vectors = clustered(folder / "vectors.npy", rows + QUERIES, dimensions)
    queries, corpus = np.ascontiguousarray(vectors[rows:]), vectors[:rows]
    expected = exact(queries, [corpus]).rows
    print(f"{rows:,} vectors of {dimensions} dimensions, {QUERIES} queries, one thread")
    print(f"{'profile':10}{'build s':>9}{'GB':>8}{'recall@3':>10}{'q/CPU-s':>10}  looking")
    for name in (ProfileName.FLAT, ProfileName.BALANCED, ProfileName.COMPACT):
        row = try_profile(name, corpus, queries, expected)
        cost = f"{row.build_seconds:9.0f}{row.gigabytes:8.2f}{row.recall:10.4f}{row.rate:10.0f}"
        print(f"{row.profile:10}{cost}  {row.looking}", flush=True)


def clustered(path: Path, rows: int, dimensions: int) -> NDArray[np.float32]:
    """Unit vectors around centres of centres, on the disk: like text they have near and far neighbours."""
    draw = np.random.default_rng(1)
    topics = draw.standard_normal((max(8, rows // 20_000), dimensions), dtype=np.float32)
    articles = topics[draw.integers(0, len(topics), max(8, rows // 20))]
    articles += 0.7 * draw.standard_normal(articles.shape, dtype=np.float32)
    vectors = np.lib.format.open_memmap(path, "w+", np.float32, (rows, dimensions))
    for start in range(0, rows, BLOCK):
        count = min(BLOCK, rows - start)
        block = articles[draw.integers(0, len(articles), count)]
        block += 0.5 * draw.standard_normal(block.shape, dtype=np.float32)
        vectors[start : start + count] = block / np.linalg.norm(block, axis=1, keepdims=True)
    return vectors


def try_profile(
    name: ProfileName, corpus: NDArray[np.float32], queries: NDArray[np.float32], expected: NDArray[np.int64]
) -> Row:
    start = time.process_time()
    search: VectorSearch
    if name is ProfileName.FLAT:
        search, size, looking = Exhaustive(corpus), corpus.nbytes, "every row"
    else:
        search, size = in_cells(name, corpus)
        way, _ = tune(search, queries, expected, PROFILES[name].recall)
        looking = f"nprobe {way.nprobe} of {cells(len(corpus))}, refine {way.refine:g}"
    built = time.process_time() - start
    recall = measure(search.nearest, queries, expected)
    start = time.process_time()
    for first in range(0, len(queries), 32):
        search.nearest(queries[first : first + 32], 3)
    rate = len(queries) / (time.process_time() - start)
    return Row(name, built, size / 1e9, recall, rate, looking)


def in_cells(name: ProfileName, corpus: NDArray[np.float32]) -> tuple[Cells | Refined, int]:
    rows, dimensions = corpus.shape
    draw = np.random.default_rng(2)
    wanted = min(rows, cells(rows) * TRAINING_POINTS_PER_CELL)
    sample = np.ascontiguousarray(corpus[np.sort(draw.choice(rows, wanted, replace=False))])
    index: Any = faiss.index_factory(dimensions, factory(name, rows), faiss.METRIC_INNER_PRODUCT)
    index.train(sample)
    for start in range(0, rows, BLOCK):
        index.add(np.ascontiguousarray(corpus[start : start + BLOCK]))
    size = len(faiss.serialize_index(index))
    coarse = Cells(index, 1)
    if name is not ProfileName.COMPACT:
        return coarse, size
    span = fine_span(sample)
    codes = np.concatenate(
        [fine_codes(corpus[start : start + BLOCK], span) for start in range(0, rows, BLOCK)]
    )
    return Refined(coarse, codes, span, 4.0), size + codes.nbytes
