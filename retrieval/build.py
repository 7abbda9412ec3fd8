"""Builds an index folder: passages, then the index, then the manifest. A folder with a manifest is finished.

`build.json` says what is being built. A second start with the same recipe goes on where the first one ended;
with another one it is refused.
"""

import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from retrieval.manifest import (
    Kind,
    Manifest,
    checksums,
    index_hash,
    read_manifest,
    write_json,
    write_manifest,
)
from retrieval.passages import OFFSETS, PASSAGES, Passages, PassageWriter, unique
from scope_selfplay.errors import CorpusError, RecordError, RunMismatchError
from scope_selfplay.schemas import Document, Value

RECIPE = "build.json"
STORED = "stored.json"
LIBRARIES = ("bm25s", "faiss-cpu", "onnxruntime", "sentence-transformers", "numpy")
Progress = Callable[[str, int, int], None]
"""Called with a step's name, the rows done and the rows in all (0 while unknown)."""


def silent(step: str, done: int, total: int) -> None:
    return


class Recipe(Value):
    """What decides the content of an index; a resumed build must have the same."""

    profile: str
    source: str
    source_bytes: int
    chunk_tokens: int = 0
    chunk_overlap: int = 0
    rows: str = ""
    """FIRST:END for a shard of a larger corpus."""
    encoder: str = ""
    family: str = ""
    backend: str = ""
    query_precision: str = "float32"
    seed: int = 0


class Stored(Value):
    """The corpus of the folder, once it is complete."""

    rows: int
    corpus_hash: str


def begin(folder: Path, recipe: Recipe) -> Manifest | None:
    """Open `folder` for a build; gives the manifest when an equal build has finished there.

    Raises RunMismatchError, with the field's name, when the folder belongs to another recipe.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RECIPE
    if not path.exists():
        if any(folder.iterdir()):
            raise RunMismatchError(
                f"{folder} is not empty and not a build of an index: choose another folder"
            )
        write_json(path, recipe)
        return None
    try:
        before = Recipe.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise RecordError(f"{path}: cannot be read: {error}") from None
    for name, value in recipe.model_dump().items():
        if getattr(before, name) != value:
            raise RunMismatchError(
                f"{folder} was begun with {name} {getattr(before, name)!r}, now it is {value!r}: "
                "use the same, or another folder"
            )
    try:
        return read_manifest(folder)
    except RecordError as error:
        if "has not finished" in str(error):
            return None
        raise


def store_passages(documents: Iterable[Document], folder: Path, progress: Progress) -> Passages:
    """The corpus in `folder`, written unless that is done. Raises CorpusError for an empty or invalid one."""
    done = folder / STORED
    if not done.exists():
        with PassageWriter(folder) as writer:
            for document in unique(documents):
                writer.add(document)
                if writer.size % 10_000 == 0:
                    progress("passages", writer.size, 0)
        if not writer.size:
            raise CorpusError("the corpus holds no document")
        write_json(done, Stored(rows=writer.size, corpus_hash=writer.corpus_hash))
    stored = Stored.model_validate_json(done.read_bytes())
    progress("passages", stored.rows, stored.rows)
    return Passages.open(folder, stored.corpus_hash)


def build_bm25(
    documents: Iterable[Document],
    folder: Path,
    recipe: Recipe | None = None,
    progress: Progress = silent,
) -> Manifest:
    """A BM25 index of `documents` in `folder`. Raises CorpusError, RunMismatchError."""
    from retrieval.bm25 import Bm25Index

    start = time.monotonic()
    recipe = recipe or Recipe(profile="bm25", source="", source_bytes=0)
    if (finished := begin(folder, recipe)) is not None:
        return finished
    passages = store_passages(documents, folder, progress)
    progress("bm25", 0, passages.size)
    Bm25Index.build(passages).save(folder)
    progress("bm25", passages.size, passages.size)
    manifest = Manifest(kind=Kind.BM25, profile="bm25", rows=passages.size, corpus_hash=passages.corpus_hash)
    return seal(folder, manifest, time.monotonic() - start)


def seal(folder: Path, manifest: Manifest, seconds: float) -> Manifest:
    """Write the manifest over every file of the folder: the build is finished."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in paths]
    files = checksums(folder, (name for name in names if _is_sealed(name)))
    if {PASSAGES, OFFSETS} - files.keys():
        raise RecordError(f"{folder}: {PASSAGES} or {OFFSETS} vanished during the build")
    sealed = manifest.model_copy(
        update={
            "files": files,
            "corpus_hash": files[PASSAGES].sha256,
            "seconds": seconds,
            "versions": _versions(),
        }
    )
    sealed = sealed.model_copy(update={"index_hash": index_hash(sealed)})
    write_manifest(folder, sealed)
    return sealed


def _is_sealed(name: str) -> bool:
    """Not what only the build needs: the recipe, kept shards of vectors, leftovers of a crash."""
    return name not in (RECIPE, STORED) and not name.startswith("shards/") and not name.endswith(".part")


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
