"""Builds a dense index: encode in shards, train, add, pass the recall gate, write the manifest.

Encoding is nearly all of the time, so every finished shard is kept and a restart goes on with the next one. Only one
block of vectors is in memory at a time; the IVF part of `balanced` has to fit into memory while it is built, that of
`compact` needs an eighth of it. Passages are encoded by the servers' own encoder, by torch on a GPU, or somebody else
published their vectors.
"""

import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from retrieval import dense
from retrieval import folder as index_folder
from retrieval.bert_onnx import Pooling, read_pooling
from retrieval.build import SILENT, Recipe, finish_build, open_build, store_passages
from retrieval.dense import TOPK, SearchEffort, exact, measure, tune
from retrieval.encoder import (
    FAMILIES,
    Backend,
    Encoder,
    Family,
    Vectors,
    encoder_hash,
    model_folder,
    open_encoder,
    prepare_encoder,
)
from retrieval.folder import IndexManifest, Passages, RecallReport, map_array, split_contents
from retrieval.profiles import PROFILES, TRAINING_POINTS_PER_CELL, ProfileName, cells, factory
from scope_selfplay.base.errors import (
    CheckpointError,
    ConfigError,
    CorpusError,
    RunMismatchError,
    imports_for,
)
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Document, numpy_rng_from

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
FORWARD_ROWS = 512
"""Passages of one forward pass on a GPU: sorted by length, so that little of it is padding."""
COMPARED = 32
LEAST_COSINE = 0.98
"""Half precision and another library keep more than .999; another prefix of the same encoder loses a few hundredths."""
MOST_UNLIKE = 2
"""Rows that may differ: a text that was cut at another length."""


@dataclass(frozen=True)
class DenseBuild:
    """Everything a dense build needs to know."""

    folder: Path
    recipe: Recipe
    threads: int = 1
    shard_rows: int = SHARD_ROWS
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
        """In which vectors are kept: exact for flat, half precision for others."""
        return np.dtype(np.float32 if self.profile is ProfileName.FLAT else np.float16)


def build_dense(
    documents: Iterable[Document], plan: DenseBuild, progress: Progress = SILENT
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
        shards: VectorShards | PublishedVectors
        if plan.vectors is None:
            shards = _encode(passages, encoder, plan, progress)
        else:
            shards = PublishedVectors(plan.vectors, passages, encoder)
            progress.say(f"{plan.vectors}: {passages.size:,} vectors are taken")
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

    def rows(self, chosen: NDArray[np.int64]) -> Vectors:
        """The vectors of rows in row order (n, d)."""
        parts = []
        for start in self.starts:
            inside = chosen[(chosen >= start) & (chosen < self.end(start))] - start
            parts.append(np.asarray(map_array(self.path(start), axes=2)[inside], dtype=np.float32))
        return np.concatenate(parts)


def _encode(passages: Passages, encoder: Encoder, plan: DenseBuild, progress: Progress) -> VectorShards:
    folder = plan.folder / index_folder.SHARDS
    folder.mkdir(exist_ok=True)
    shards = VectorShards(folder, plan.shard_rows, passages.size)
    work = TorchEncoder(plan.recipe.encoder, FAMILIES[plan.recipe.family]) if plan.on_gpu else encoder
    batch_rows = GPU_BATCH if plan.on_gpu else BATCH
    missing = [start for start in shards.starts if not shards.has(start, encoder.dimensions)]
    left, done = sum(shards.end(start) - start for start in missing), 0
    if left < passages.size:
        progress.say(f"{folder}: {passages.size - left:,} of {passages.size:,} passages are encoded already")
    progress.begin("encode", left)
    for start in missing:
        rows = range(start, shards.end(start))
        vectors = np.empty((len(rows), encoder.dimensions), dtype=plan.vector_type)
        for first in range(0, len(rows), batch_rows):
            batch = rows[first : first + batch_rows]
            texts = [passages.contents(row) for row in batch]
            vectors[first : first + len(batch)] = work.passages(texts)
            done += len(batch)
            progress.advance(done)
        index_folder.save_array(shards.path(start), vectors)
    progress.end()
    return shards


def _index(
    passages: Passages,
    encoder: Encoder,
    shards: "VectorShards | PublishedVectors",
    plan: DenseBuild,
    progress: Progress,
) -> tuple[SearchEffort, RecallReport]:
    """Write the index over the vectors of `shards`, and compare it with an exhaustive search of them."""
    shape = (passages.size, encoder.dimensions)
    target = PROFILES[plan.profile].recall
    index: dense.ExhaustiveSearch | dense.IvfIndex
    if PROFILES[plan.profile].is_ivf:
        index = _build_ivf(shape, shards, plan, progress)
    else:
        index_folder.write_stacked(plan.folder / dense.FLAT, shape, plan.vector_type, shards)
        index = dense.ExhaustiveSearch(map_array(plan.folder / dense.FLAT, axes=2))
    texts = gate_texts(passages, plan)
    progress.begin("recall gate", None)
    batches = (texts[first : first + BATCH] for first in range(0, len(texts), BATCH))
    queries = np.concatenate([encoder.queries(batch) for batch in batches])
    expected = exact(queries, shards, min(TOPK, passages.size)).rows
    progress.end()
    if isinstance(index, dense.IvfIndex):
        effort, recall = tune(index, queries, expected, target)
        is_usable = recall >= target
    else:
        effort, recall = SearchEffort(0), measure(index.nearest, queries, expected)
        # Two rows that score the same to the last bit may change places between two ways of summing.
        is_usable = recall >= target - 0.005
    if not is_usable:
        raise CorpusError(
            f"recall gate: at best {recall:.3f} of what an exhaustive search finds, {target} is needed; the index is "
            "not usable. Build it again; with another profile if this repeats"
        )
    return effort, RecallReport(recall=recall, topk=expected.shape[1], queries=len(queries), target=target)


def _build_ivf(
    shape: tuple[int, int], shards: "VectorShards | PublishedVectors", plan: DenseBuild, progress: Progress
) -> dense.IvfIndex:
    count = min(max(cells(shape[0]) * TRAINING_POINTS_PER_CELL, 1024), shape[0])
    draw = numpy_rng_from(plan.recipe.seed, "train")
    sample = shards.rows(np.sort(draw.choice(shape[0], size=count, replace=False)))
    index = _trained(factory(plan.profile, shape[0]), sample, plan.folder / TRAINED, progress)
    progress.begin("index", shape[0])
    for block in shards:
        # `add` and never `add_core`: on fast-scan indexes the latter stores garbage without a word.
        index.add(np.ascontiguousarray(block, dtype=np.float32))
        progress.advance(index.ntotal)
    progress.end()
    _write_index(index, plan.folder / dense.IVF)
    is_fine = plan.profile is ProfileName.COMPACT
    if is_fine:
        span = dense.fine_span(sample)
        index_folder.save_array(plan.folder / dense.FINE_RANGE, span)
        codes = (dense.fine_codes(np.asarray(block, dtype=np.float32), span) for block in shards)
        index_folder.write_stacked(plan.folder / dense.FINE, shape, np.uint8, codes)
    return dense.IvfIndex.open(plan.folder, SearchEffort(1), is_fine=is_fine)


def _trained(description: str, sample: Vectors, path: Path, progress: Progress) -> Any:
    """A trained, empty index; training 65,536 cells takes an hour, so it is kept for a restart."""
    if path.exists():
        return faiss.read_index(str(path))
    progress.begin("train", None)
    index = faiss.index_factory(sample.shape[1], description, faiss.METRIC_INNER_PRODUCT)
    # Small corpora cannot offer what FAISS would like; our own gate judges the result.
    faiss.extract_index_ivf(index).cp.min_points_per_centroid = 1
    index.train(sample)
    progress.end()
    _write_index(index, path)
    return index


def _write_index(index: Any, path: Path) -> None:
    with index_folder.durable_file(path) as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))  # type: ignore[attr-defined]


def gate_texts(passages: Passages, plan: DenseBuild) -> list[str]:
    """Queries: spans of words out of sampled passages."""
    draw, texts = numpy_rng_from(plan.recipe.seed, "gate"), list[str]()
    rows = draw.choice(passages.size, size=min(GATE_QUERIES, passages.size), replace=False)
    for row in sorted(rows.tolist()):
        contents = split_contents(passages.contents(row))
        words = contents.text.split() or contents.title.split() or ["empty"]
        first = int(draw.integers(0, max(1, len(words) - QUERY_WORDS)))
        texts.append(" ".join(words[first : first + QUERY_WORDS]))
    return texts


class TorchEncoder(Encoder):
    """On a device of torch, for passages; `cpu` is for tests."""

    def __init__(self, source: str, family: Family, device: str = "cuda") -> None:
        """Raises ConfigError without torch or a GPU, CheckpointError for a model that cannot be loaded."""
        with imports_for("--device cuda", "train"):
            import torch
            from transformers import AutoModel, AutoTokenizer
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("--device cuda: torch sees no GPU here; leave it out to encode on the CPU")
        folder = model_folder(source)
        super().__init__(family)
        self._torch, self._device = torch, device
        self._is_cls = read_pooling(folder) is Pooling.CLS
        number = torch.float16 if device == "cuda" else torch.float32
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            model: Any = AutoModel.from_pretrained(
                folder, trust_remote_code=False, use_safetensors=True, dtype=number
            )
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(f"{folder}: the encoder cannot be loaded: {reason}") from None
        self._model = model.to(device).eval()
        self.dimensions = int(model.config.hidden_size)

    def encode(self, texts: list[str]) -> Vectors:
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]), reverse=True)
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        for first in range(0, len(order), FORWARD_ROWS):
            places = order[first : first + FORWARD_ROWS]
            vectors[places] = self._forward([texts[place] for place in places])
        return vectors

    def _forward(self, texts: list[str]) -> Vectors:
        torch = self._torch
        tokens = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._family.max_tokens, return_tensors="pt"
        ).to(self._device)
        with torch.inference_mode():
            states = self._model(**tokens).last_hidden_state.float()
            mask = tokens["attention_mask"].unsqueeze(-1).float()
            pooled = states[:, 0] if self._is_cls else (states * mask).sum(1) / mask.sum(1)
            return np.asarray(torch.nn.functional.normalize(pooled, dim=-1).cpu(), dtype=np.float32)


class PublishedVectors:
    """As `VectorShards`: blocks of consecutive rows, and chosen ones; the file is mapped, never held."""

    def __init__(self, file: Path, passages: Passages, encoder: Encoder) -> None:
        """Raises CorpusError for what is no flat FAISS index of the encoder's vectors of the passages, row for row."""
        try:
            # Kept: what downcasting gives does not own the vectors.
            self._whole: Any = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[-200:]
            raise CorpusError(f"{file}: not an index of FAISS, or cut off: {reason}") from None
        index = faiss.downcast_index(self._whole)
        if not isinstance(index, faiss.IndexFlat):
            raise CorpusError(
                f"{file}: a {type(index).__name__}, which has no exact vectors; expected a flat index (IndexFlatIP)"
            )
        self._index: Any = index
        self.shape = (int(index.ntotal), int(index.d))
        self._check(file, passages, encoder)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        rows = self.shape[0]
        for first in range(0, rows, BLOCK_ROWS):
            yield self._index.reconstruct_n(first, min(BLOCK_ROWS, rows - first))

    def rows(self, chosen: NDArray[np.int64]) -> Vectors:
        """The vectors of rows in row order (n, d)."""
        return np.asarray(self._index.reconstruct_batch(chosen), dtype=np.float32)

    def _check(self, file: Path, passages: Passages, encoder: Encoder) -> None:
        expected = (passages.size, encoder.dimensions)
        if self.shape != expected:
            raise CorpusError(
                f"{file}: {self.shape[0]:,} vectors of {self.shape[1]} dimensions, expected {expected[0]:,} of "
                f"{expected[1]}: another corpus or encoder"
            )
        rows = np.unique(np.linspace(0, passages.size - 1, COMPARED).astype(np.int64))
        made = encoder.passages([passages.contents(int(row)) for row in rows])
        cosines = (self.rows(rows) * made).sum(axis=1)
        unlike = np.flatnonzero(~(cosines >= LEAST_COSINE))
        if len(unlike) > min(MOST_UNLIKE, len(rows) // 4):
            row = int(rows[unlike[0]])
            raise CorpusError(
                f"{file}: {len(unlike)} of {len(rows)} rows are not what the encoder makes of the passages (row "
                f"{row}: cosine {cosines[unlike[0]]:.3f}): another corpus, order or encoder; encode instead"
            )
