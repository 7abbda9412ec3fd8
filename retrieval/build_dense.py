"""Builds a dense index: encode in shards, train, add, pass the recall gate, write the manifest.

Encoding is nearly all of the time, so every finished shard is kept and a restart goes on with the next one. Only one
block of vectors is in memory at a time; the IVF part of `balanced` has to fit into memory while it is built, that of
`compact` needs an eighth of it.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from retrieval import dense, index_folder
from retrieval.build import Progress, Recipe, finish_build, open_build, silent, store_passages
from retrieval.encoder import (
    FAMILIES,
    Backend,
    Encoder,
    Vectors,
    encoder_hash,
    open_encoder,
    prepare_encoder,
)
from retrieval.gpu_passages import GpuPassages
from retrieval.index_folder import IndexManifest, RecallReport, map_array
from retrieval.passages import Passages, split_contents
from retrieval.profiles import PROFILES, TRAINING_POINTS_PER_CELL, ProfileName, cells, factory, vector_bytes
from retrieval.published_vectors import PublishedVectors
from retrieval.recall_gate import TOPK, SearchEffort, exact, measure, tune
from scope_selfplay.errors import CorpusError, RunMismatchError
from scope_selfplay.keys import numpy_rng_from
from scope_selfplay.schemas import Document

TRAINED = "trained.faiss"
BATCH = 64
GPU_BATCH = 64 * BATCH
SHARD_ROWS = 128 * BATCH
"""Rows that are encoded between two points where a build can be stopped: 25 minutes of one core on E5-base. Whole
batches, so that vectors do not depend on it.
"""
BLOCK_ROWS = 65_536
"""Rows that an index is given at once. Cells are found by blocks too: another size may change an assignment's last bit.
"""
GATE_QUERIES = 512
QUERY_WORDS = 12


@dataclass(frozen=True)
class DenseBuild:
    """Everything a dense build needs to know."""

    folder: Path
    recipe: Recipe
    threads: int = 1
    shard_rows: int = SHARD_ROWS
    questions: Sequence[str] = ()
    """For the gate; without any, spans of sampled passages serve as queries."""
    vectors: Path | None = None
    """A flat FAISS index of the same passages, whose vectors are taken instead of encoding."""

    @property
    def profile(self) -> ProfileName:
        return ProfileName(self.recipe.profile)

    @property
    def on_gpu(self) -> bool:
        """Whether torch encodes the passages."""
        return self.recipe.device != "cpu"

    @property
    def vector_type(self) -> Any:
        """In which vectors are kept."""
        return np.dtype(np.float32 if vector_bytes(self.profile) == 4 else np.float16)


def build_dense(
    documents: Iterable[Document], plan: DenseBuild, progress: Progress = silent
) -> IndexManifest:
    """A dense index in `plan.folder`.

    Raises CorpusError (the recall gate too), CheckpointError, and as `open_build` does.
    """
    with open_build(plan.folder, plan.recipe) as finished:
        if finished:
            return finished
        start = time.monotonic()
        faiss.omp_set_num_threads(plan.threads)
        passages = store_passages(documents, plan.folder, progress)
        encoder_folder = plan.folder / index_folder.ENCODER
        if not (encoder_folder / "ready").exists():
            family, backend = FAMILIES[plan.recipe.family], Backend(plan.recipe.backend)
            prepare_encoder(plan.recipe.encoder, family, backend, encoder_folder)
            (encoder_folder / "ready").touch()
        encoder = open_encoder(encoder_folder, threads=plan.threads)
        shards = _vectors(passages, encoder, plan, progress)
        effort, report = _index(passages, encoder, shards, plan, progress)
        shutil.rmtree(plan.folder / index_folder.SHARDS, ignore_errors=True)
        (plan.folder / TRAINED).unlink(missing_ok=True)
        manifest = IndexManifest(
            kind=index_folder.IndexKind.DENSE,
            profile=plan.profile,
            rows=passages.size,
            factory=factory(plan.profile, passages.size),
            dimensions=encoder.dimensions,
            encoder=plan.recipe.encoder,
            encoder_hash=encoder_hash(encoder_folder),
            nprobe=effort.nprobe,
            refine=effort.refine,
            gate=report,
            corpus_hash=passages.corpus_hash,
        )
        return finish_build(plan.folder, manifest, time.monotonic() - start)


class VectorShards:
    """Vectors of consecutive rows, one .npy file per `rows` of them."""

    def __init__(self, folder: Path, rows: int, size: int) -> None:
        self._folder = folder
        self.starts = range(0, size, rows)
        self._rows = rows
        self._size = size

    def path(self, start: int) -> Path:
        return self._folder / f"{start:012d}.npy"

    def end(self, start: int) -> int:
        return min(start + self._rows, self._size)

    def has(self, start: int, dimensions: int) -> bool:
        """Whether the shard is encoded. Raises RunMismatchError for one of another size."""
        path = self.path(start)
        if not path.exists():
            return False
        found, expected = map_array(path, axes=2).shape, (self.end(start) - start, dimensions)
        if found != expected:
            raise RunMismatchError(
                f"{path} holds {found} values, expected {expected}: encode anew, in another folder"
            )
        return True

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """Blocks of consecutive rows, of many shards where those are small."""
        at_once = max(1, BLOCK_ROWS // self._rows)
        for first in range(0, len(self.starts), at_once):
            parts = [map_array(self.path(start), axes=2) for start in self.starts[first : first + at_once]]
            yield np.concatenate(parts) if len(parts) > 1 else parts[0]

    def sample(self, count: int, draw: np.random.Generator) -> Vectors:
        """`count` different rows in row order (count, d)."""
        chosen = np.sort(draw.choice(self._size, size=min(count, self._size), replace=False))
        parts = []
        for start in self.starts:
            inside = chosen[(chosen >= start) & (chosen < self.end(start))] - start
            parts.append(np.asarray(map_array(self.path(start), axes=2)[inside], dtype=np.float32))
        return np.concatenate(parts)


def _vectors(
    passages: Passages, encoder: Encoder, plan: DenseBuild, progress: Progress
) -> VectorShards | PublishedVectors:
    """Published ones, or encoded here. Raises CorpusError for vectors of something else."""
    if plan.vectors is None:
        return _encode(passages, encoder, plan, progress)
    published = PublishedVectors(plan.vectors)
    published.check(passages, encoder)
    progress("take vectors", passages.size, passages.size)
    return published


def _encode(passages: Passages, encoder: Encoder, plan: DenseBuild, progress: Progress) -> VectorShards:
    folder = plan.folder / index_folder.SHARDS
    folder.mkdir(exist_ok=True)
    shards = VectorShards(folder, plan.shard_rows, passages.size)
    work = GpuPassages(plan.recipe.encoder, FAMILIES[plan.recipe.family]) if plan.on_gpu else encoder
    batch_rows = GPU_BATCH if plan.on_gpu else BATCH
    for start in shards.starts:
        rows = range(start, shards.end(start))
        if not shards.has(start, encoder.dimensions):
            vectors = np.empty((len(rows), encoder.dimensions), dtype=plan.vector_type)
            for first in range(0, len(rows), batch_rows):
                batch = rows[first : first + batch_rows]
                texts = [passages.contents(row) for row in batch]
                vectors[first : first + len(batch)] = work.passages(texts)
                progress("encode", batch[-1] + 1, passages.size)
            index_folder.save_array(shards.path(start), vectors)
        progress("encode", shards.end(start), passages.size)
    return shards


def _index(
    passages: Passages,
    encoder: Encoder,
    shards: VectorShards | PublishedVectors,
    plan: DenseBuild,
    progress: Progress,
) -> tuple[SearchEffort, RecallReport]:
    """Write the index over the vectors of `shards`, and compare it with an exhaustive search of them."""
    shape = (passages.size, encoder.dimensions)
    target = PROFILES[plan.profile].recall
    index: dense.ExhaustiveSearch | dense.IvfIndex | dense.RefinedIvf
    if PROFILES[plan.profile].is_ivf:
        index = _build_ivf(shape, shards, plan, progress)
    else:
        index_folder.write_stacked(plan.folder / dense.FLAT, shape, plan.vector_type, shards)
        index = dense.ExhaustiveSearch(map_array(plan.folder / dense.FLAT, axes=2))
    texts = gate_texts(passages, plan)
    progress("recall gate", 0, len(texts))
    queries = in_batches(encoder.queries, texts)
    expected = exact(queries, shards, min(TOPK, passages.size)).rows
    if isinstance(index, dense.IvfIndex | dense.RefinedIvf):
        return tune(index, queries, expected, target)
    reached = measure(index.nearest, queries, expected)
    # Two rows that score the same to the last bit may change places between two ways of summing.
    if reached < target - 0.005:
        raise CorpusError(
            f"recall gate: {reached:.3f} on an exhaustive index: its vectors are not what was encoded"
        )
    report = RecallReport(recall=reached, topk=expected.shape[1], queries=len(queries), target=target)
    return SearchEffort(0, 0.0), report


def _build_ivf(
    shape: tuple[int, int], shards: VectorShards | PublishedVectors, plan: DenseBuild, progress: Progress
) -> dense.IvfIndex | dense.RefinedIvf:
    draw = numpy_rng_from(plan.recipe.seed, "train")
    sample = shards.sample(max(cells(shape[0]) * TRAINING_POINTS_PER_CELL, 1024), draw)
    index = _trained(factory(plan.profile, shape[0]), sample, plan.folder / TRAINED, progress)
    for block in shards:
        # `add` and never `add_core`: on fast-scan indexes the latter stores garbage without a word.
        index.add(np.ascontiguousarray(block, dtype=np.float32))
        progress("index", index.ntotal, shape[0])
    _write_index(index, plan.folder / dense.IVF)
    coarse = dense.IvfIndex(dense.read_index(plan.folder / dense.IVF), 1)
    if plan.profile is not ProfileName.COMPACT:
        return coarse
    span = dense.fine_span(sample)
    index_folder.save_array(plan.folder / dense.FINE_RANGE, span)
    codes = (dense.fine_codes(np.asarray(block, dtype=np.float32), span) for block in shards)
    index_folder.write_stacked(plan.folder / dense.FINE, shape, np.uint8, codes)
    return dense.RefinedIvf(coarse, map_array(plan.folder / dense.FINE, axes=2), span, 4.0)


def _trained(description: str, sample: Vectors, path: Path, progress: Progress) -> Any:
    """A trained, empty index; training 65,536 cells takes an hour, so it is kept for a restart."""
    if path.exists():
        return faiss.read_index(str(path))
    progress("train", 0, len(sample))
    index = faiss.index_factory(sample.shape[1], description, faiss.METRIC_INNER_PRODUCT)
    # Small corpora cannot offer what FAISS would like; our own gate judges the result.
    faiss.extract_index_ivf(index).cp.min_points_per_centroid = 1
    index.train(sample)
    _write_index(index, path)
    return index


def _write_index(index: Any, path: Path) -> None:
    part = path.with_name(path.name + ".part")
    faiss.write_index(index, str(part))
    part.replace(path)


def gate_texts(passages: Passages, plan: DenseBuild) -> list[str]:
    """Queries: the given questions, or spans of words out of sampled passages."""
    texts = list(plan.questions)[:GATE_QUERIES]
    draw = numpy_rng_from(plan.recipe.seed, "gate")
    if not texts:
        rows = draw.choice(passages.size, size=min(GATE_QUERIES, passages.size), replace=False)
        for row in sorted(rows.tolist()):
            contents = split_contents(passages.contents(row))
            words = contents.text.split() or contents.title.split() or ["empty"]
            first = int(draw.integers(0, max(1, len(words) - QUERY_WORDS)))
            texts.append(" ".join(words[first : first + QUERY_WORDS]))
    return texts


def in_batches(encode: Callable[[Sequence[str]], Vectors], texts: Sequence[str]) -> Vectors:
    return np.concatenate([encode(texts[first : first + BATCH]) for first in range(0, len(texts), BATCH)])
