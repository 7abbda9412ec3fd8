"""Builds an index folder: passages, then the index, then the manifest. A folder with a manifest is finished.

`build.json` records what is being built. A second start with the same recipe goes on where the first one ended; with
another one it is refused. One process builds in a folder at a time: two can meet there, as the same command in two
terminals or as a Job's pod that still ends while the one that replaces it has started already.
"""

import contextlib
import errno
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import ConfigDict

from retrieval import folder as index_folder
from retrieval.folder import MANIFEST, OFFSETS, PASSAGES, IndexManifest, Passages, write_passages
from scope_selfplay.base.errors import ConfigError, RecordError, RunMismatchError
from scope_selfplay.base.machine import folder_lock
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Document, Value
from scope_selfplay.store.files import read_value, write_atomic
from scope_selfplay.store.folder import checksum

RECIPE = "build.json"
LOCK = "build.lock"
LOCK_TIMEOUT = 60.0
"""Seconds: longer than a stopped pod takes to end."""
LIBRARIES = ("bm25s", "faiss-cpu", "onnxruntime", "sentence-transformers", "numpy")
CONTENT = {
    "source_hash": "another content of the source",
    "model_hash": "other files in the encoder's folder",
    "vectors_hash": "other --vectors, or none where some are given now",
}
"""What another value of a recipe's field means, where the value itself tells a person nothing."""
SILENT = Progress()


class Recipe(Value):
    """What decides the content of an index; a resumed build must have the same."""

    # Releases before this one wrote more.
    model_config = ConfigDict(extra="ignore")

    profile: str
    source: str = ""
    source_hash: str = ""
    """`corpus.source_hash`; empty for documents that Python code made."""
    chunk_tokens: int = 0
    """Words."""
    encoder: str = ""
    model_hash: str = ""
    """`encoder.model_hash` of the folder that `encoder` names."""
    family: str = ""
    backend: str = ""
    seed: int = 0
    vectors_hash: str = ""
    """sha256 of the published index whose vectors are taken."""
    device: str = "cpu"
    """Where passages are encoded: half precision on a GPU."""


@contextlib.contextmanager
def open_build(folder: Path, recipe: Recipe) -> Iterator[IndexManifest | None]:
    """`folder` locked against other builds for as long as the block lasts; gives the manifest of an equal finished one.

    Raises RunMismatchError, which names the difference, when the folder belongs to another recipe, ConfigError for one
    that cannot be written, and StorageError where another process is building there.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            others = [path for path in folder.iterdir() if path.name != LOCK and path.suffix != ".part"]
            if not (folder / RECIPE).exists() and others:
                raise RunMismatchError(
                    f"{folder} is not empty and not a build of an index: choose another folder"
                )
            # A finished index may lie where nothing can be written any more, and nothing has to be.
            if not (folder / MANIFEST).exists():
                warn = partial(print, file=sys.stderr, flush=True)
                held = folder_lock(folder, folder / LOCK, work="building", say=warn, timeout=LOCK_TIMEOUT)
                stack.enter_context(held)
            if not (folder / OFFSETS).exists():
                # Nothing was made yet: what stopped that build, a damaged source for one, may have been mended since.
                write_atomic(folder / RECIPE, recipe.model_dump_json(indent=1) + "\n")
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ConfigError(
                f"{folder}: no index can be built there: {error.strerror}; choose another folder"
            ) from None
        before = read_value(folder / RECIPE, Recipe, "build in another folder")
        if before is None:
            raise RecordError(f"{folder}: no {RECIPE}: no index was built there")
        for name, value in recipe.model_dump().items():
            if (begun := getattr(before, name)) != value:
                how = CONTENT.get(name, f"{name} {begun!r}, now it is {value!r}")
                raise RunMismatchError(f"{folder} was begun with {how}: use the same, or another folder")
        yield index_folder.read_manifest(folder) if (folder / MANIFEST).exists() else None


def store_passages(documents: Iterable[Document], folder: Path, progress: Progress) -> Passages:
    """The corpus in `folder`, written unless that is done. Raises CorpusError for an empty or invalid one."""
    progress.begin("passages", None)
    # The offsets are the last that is written of it.
    if not (folder / OFFSETS).exists():

        def on_row(written: int) -> None:
            if written % 10_000 == 0:
                progress.advance(written)

        write_passages(documents, folder, on_row)
    passages = Passages.open(folder)
    progress.advance(passages.size)
    progress.end(f"{passages.size:,}")
    return passages


def build_bm25(
    documents: Iterable[Document], folder: Path, recipe: Recipe | None = None, progress: Progress = SILENT
) -> IndexManifest:
    """A BM25 index of `documents` in `folder`. Raises CorpusError, and as `open_build` does."""
    from retrieval.bm25 import Bm25Index

    with open_build(folder, recipe or Recipe(profile="bm25")) as finished:
        if finished:
            return finished
        start = time.monotonic()
        passages = store_passages(documents, folder, progress)
        progress.begin("bm25", passages.size)
        Bm25Index.build(passages).save(folder)
        progress.end()
        manifest = IndexManifest(kind=index_folder.IndexKind.BM25, profile="bm25", rows=passages.size)
        return finish_build(folder, manifest, time.monotonic() - start)


def finish_build(folder: Path, manifest: IndexManifest, seconds: float) -> IndexManifest:
    """Write the manifest over every file of the folder: the build is finished."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    # Not what only the build needs: the recipe, shards of vectors, leftovers of a crash or of an earlier release.
    files = {
        name: index_folder.FileChecksum(size=(folder / name).stat().st_size, sha256=checksum(folder / name))
        for name in sorted(names)
        if name not in (RECIPE, LOCK, "stored.json")
        and not name.startswith(index_folder.SHARDS + "/")
        and not name.endswith(".part")
    }
    if {PASSAGES, OFFSETS} - files.keys():
        raise RecordError(f"{folder}: {PASSAGES} or {OFFSETS} vanished during the build")
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    added = {"files": files, "corpus_hash": files[PASSAGES].sha256}
    finished = manifest.model_copy(update={**added, "seconds": seconds, "versions": versions})
    finished = finished.model_copy(update={"index_hash": index_folder.index_hash(finished)})
    write_atomic(folder / MANIFEST, finished.model_dump_json(indent=1) + "\n")
    return finished
