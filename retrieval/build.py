"""Builds an index folder: passages, then the index, then the manifest. A folder with a manifest is finished.

`build.json` records what is being built. A second start with the same recipe goes on where the first one ended; with
another one it is refused. One process builds in a folder at a time: two can meet there, as the same command in two
terminals or as a Job's pod that still ends while the one that replaces it has started already.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path

from retrieval import index_folder
from retrieval.index_folder import MANIFEST, OFFSETS, PASSAGES, IndexManifest, SourceRows, write_json
from retrieval.passages import Passages, write_passages
from retrieval.profiles import ProfileName, vector_bytes
from scope_selfplay.errors import ConfigError, CorpusError, RecordError, RunMismatchError
from scope_selfplay.folder_lock import folder_lock
from scope_selfplay.schemas import Document, Value

RECIPE = "build.json"
STORED = "stored.json"
LOCK = "build.lock"
LOCK_TIMEOUT = 60.0
"""Seconds: longer than a stopped pod takes to end."""
LIBRARIES = ("bm25s", "faiss-cpu", "onnxruntime", "sentence-transformers", "numpy")
CONTENT = {
    "source_bytes": "another content of the source",
    "source_hash": "another content of the source",
    "tokenizer_hash": "another --tokenizer, or with none where one is given now",
    "model_hash": "other files in the encoder's folder",
    "questions_hash": "other --questions",
    "vectors_hash": "other --vectors, or none where some are given now",
}
"""What another value of a recipe's field means, where the value itself tells a person nothing."""
Progress = Callable[[str, int, int], None]
"""Called with a step's name, the rows done and the rows in all (0 while unknown)."""


def silent(step: str, done: int, total: int) -> None:
    return


class Recipe(Value):
    """What decides the content of an index; a resumed build must have the same."""

    profile: str
    source: str
    source_bytes: int
    source_hash: str = ""
    """`corpus.source_hash`; empty for documents that Python code made."""
    chunk_tokens: int = 0
    chunk_overlap: int = 0
    tokenizer_hash: str = ""
    """sha256 of the tokenizer that the chunks were counted with; empty for words."""
    rows: str = ""
    """FIRST:END for a shard of a larger corpus."""
    encoder: str = ""
    model_hash: str = ""
    """`encoder.model_hash` of the folder that `encoder` names."""
    family: str = ""
    backend: str = ""
    query_precision: str = "float32"
    questions_hash: str = ""
    """sha256 of the gate's questions, which decide the search effort."""
    seed: int = 0
    vectors_hash: str = ""
    """sha256 of the published index whose vectors are taken."""
    device: str = "cpu"
    """Where passages are encoded: half precision on a GPU."""


class StoredCorpus(Value):
    """The corpus of the folder, once it is complete."""

    rows: int
    corpus_hash: str
    is_end: bool
    """Whether the source ends with these rows."""


@contextlib.contextmanager
def open_build(folder: Path, recipe: Recipe) -> Iterator[IndexManifest | None]:
    """`folder` locked against other builds for as long as the block lasts; gives the manifest of an equal finished one.

    Raises RunMismatchError, which names the difference, when the folder belongs to another recipe, ConfigError for one
    that cannot be written, and StorageError where another process is building there.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            ours = {RECIPE, RECIPE + ".part", LOCK}
            if not (folder / RECIPE).exists() and any(path.name not in ours for path in folder.iterdir()):
                raise RunMismatchError(
                    f"{folder} is not empty and not a build of an index: choose another folder"
                )
            # A finished index may lie where nothing can be written any more, and nothing has to be.
            if not (folder / MANIFEST).exists():
                stack.enter_context(lock_folder(folder))
            if not (folder / STORED).exists() and not (folder / MANIFEST).exists():
                # Nothing was made yet: what stopped that build, a damaged source for one, may have been mended since.
                write_json(folder / RECIPE, recipe)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ConfigError(
                f"{folder}: no index can be built there: {error.strerror}; choose another folder"
            ) from None
        if found := difference(read_recipe(folder), recipe):
            raise RunMismatchError(f"{folder} was begun {found}: use the same, or another folder")
        yield index_folder.read_manifest(folder) if (folder / MANIFEST).exists() else None


@contextlib.contextmanager
def lock_folder(folder: Path, timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
    """Hold the lock of `folder`, as `folder_lock` does; OSError where no file can be written."""
    warn = partial(print, file=sys.stderr, flush=True)
    with folder_lock(folder, folder / LOCK, work="building", say=warn, timeout=timeout):
        yield


def read_recipe(folder: Path) -> Recipe:
    """What was built in `folder`. Raises RecordError when that is not recorded."""
    path = folder / RECIPE
    try:
        return Recipe.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise RecordError(f"{folder}: no {RECIPE}: no index was built there") from None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from None


def difference(before: Recipe, now: Recipe) -> str:
    """How a build differs from the one that is asked for now, for a person; empty where both are the same."""
    for name, value in now.model_dump().items():
        if getattr(before, name) != value:
            plain = f"with {name} {getattr(before, name)!r}, now it is {value!r}"
            return f"with {CONTENT[name]}" if name in CONTENT else plain
    return ""


def store_passages(
    documents: Iterable[Document], folder: Path, progress: Progress, rows: str = ""
) -> Passages:
    """The corpus in `folder`, `rows` of the documents, written unless that is done.

    Raises CorpusError for an empty or invalid one, ConfigError for rows that are not a range.
    """
    done = folder / STORED
    if not done.exists():
        first, end = row_range(rows)
        stream = iter(documents)

        def on_row(written: int) -> None:
            if written % 10_000 == 0:
                progress("passages", written, 0)

        size, corpus_hash = write_passages(islice(stream, first, end), folder, on_row)
        if not size:
            raise CorpusError("the corpus holds no document" + (f" in rows {rows}" if rows else ""))
        is_end = next(stream, None) is None
        write_json(done, StoredCorpus(rows=size, corpus_hash=corpus_hash, is_end=is_end))
    stored = read_stored(folder)
    progress("passages", stored.rows, stored.rows)
    return Passages.open(folder, stored.corpus_hash)


def read_stored(folder: Path) -> StoredCorpus:
    """Raises RecordError."""
    try:
        return StoredCorpus.model_validate_json((folder / STORED).read_bytes())
    except (OSError, ValueError) as error:
        raise RecordError(f"{folder / STORED}: cannot be read: {error}") from None


def row_range(text: str) -> tuple[int, int | None]:
    """`FIRST:END` of passages, both optional. Raises ConfigError."""
    first, colon, end = text.partition(":")
    if text and (not colon or not (first + end).isdecimal() or (end and int(end) <= int(first or 0))):
        raise ConfigError(f"--rows {text!r}: expected FIRST:END with FIRST below END, as in 0:1000000")
    return int(first or 0), int(end) if end else None


def source_rows(folder: Path, recipe: Recipe) -> SourceRows | None:
    """Which rows of its source the stored corpus of `folder` holds; None for a recipe without a source."""
    if not recipe.source_hash:
        return None
    stored = read_stored(folder)
    first, _ = row_range(recipe.rows)
    end = first + stored.rows
    # The same file cut into other passages has other rows.
    cut = [recipe.source_hash, recipe.chunk_tokens, recipe.chunk_overlap, recipe.tokenizer_hash]
    source = hashlib.sha256(json.dumps(cut).encode()).hexdigest()
    return SourceRows(source=source, first=first, end=end, total=end if stored.is_end else None)


def build_bm25(
    documents: Iterable[Document], folder: Path, recipe: Recipe | None = None, progress: Progress = silent
) -> IndexManifest:
    """A BM25 index of `documents` in `folder`. Raises CorpusError, and as `open_build` does."""
    from retrieval.bm25 import Bm25Index

    recipe = recipe or Recipe(profile="bm25", source="", source_bytes=0)
    with open_build(folder, recipe) as finished:
        if finished:
            return finished
        start = time.monotonic()
        passages = store_passages(documents, folder, progress, recipe.rows)
        progress("bm25", 0, passages.size)
        Bm25Index.build(passages).save(folder)
        progress("bm25", passages.size, passages.size)
        manifest = IndexManifest(
            kind=index_folder.IndexKind.BM25,
            profile="bm25",
            rows=passages.size,
            corpus_hash=passages.corpus_hash,
        )
        return finish_build(folder, recipe, manifest, time.monotonic() - start)


def finish_build(folder: Path, recipe: Recipe, manifest: IndexManifest, seconds: float) -> IndexManifest:
    """Write the manifest over every file of the folder: the build is finished."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    # Not what only the build needs: the recipe, kept shards of vectors, leftovers of a crash.
    files = {
        name: index_folder.FileChecksum(
            size=(folder / name).stat().st_size, sha256=index_folder.file_sha256(folder / name)
        )
        for name in sorted(names)
        if name not in (RECIPE, STORED, LOCK)
        and not name.startswith(index_folder.SHARDS + "/")
        and not name.endswith(".part")
    }
    if {PASSAGES, OFFSETS} - files.keys():
        raise RecordError(f"{folder}: {PASSAGES} or {OFFSETS} vanished during the build")
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    corpus_hash = files[PASSAGES].sha256
    added = {"files": files, "corpus_hash": corpus_hash, "source_rows": source_rows(folder, recipe)}
    finished = manifest.model_copy(update={**added, "seconds": seconds, "versions": versions})
    finished = finished.model_copy(update={"index_hash": index_folder.index_hash(finished)})
    write_json(folder / MANIFEST, finished)
    return finished


def link_encoded(encoded: Path, folder: Path, recipe: Recipe) -> None:
    """Link the passages, encoder and shards of `encoded` into `folder`.

    Raises RunMismatchError when they come from another corpus or encoder, or are too coarse for the profile.
    """
    before = read_recipe(encoded)
    indexing = {"profile": recipe.profile, "questions_hash": recipe.questions_hash}
    if found := difference(before.model_copy(update=indexing), recipe):
        raise RunMismatchError(f"--encoded {encoded} was begun {found}: not the same corpus and encoder")
    if not (encoded / index_folder.SHARDS).is_dir():
        raise RunMismatchError(f"--encoded {encoded} was built without --keep-vectors")
    if vector_bytes(ProfileName(before.profile)) < vector_bytes(ProfileName(recipe.profile)):
        raise RunMismatchError(f"{encoded} keeps half precision, profile {recipe.profile} needs full")
    for name in (PASSAGES, OFFSETS, STORED, index_folder.ENCODER, index_folder.SHARDS):
        if not (folder / name).exists():
            # Whole or not at all: a part of the encoder would be taken for the encoder.
            part = folder / (name + ".part")
            shutil.rmtree(part, ignore_errors=True)
            if (encoded / name).is_dir():
                shutil.copytree(encoded / name, part, copy_function=_link)
            else:
                part.unlink(missing_ok=True)
                _link(encoded / name, part)
            part.replace(folder / name)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Another volume, or one without links.
        shutil.copyfile(source, target)
