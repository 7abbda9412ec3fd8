"""Files and folders in an object store: `scope upload` and `scope download`, `s3://` or `gs://`, by pyarrow.

Below a URL lie `parts/SHA256`, each written once and never changed, and `index.json`, written last, which says what
files they make up. So a reader finds one upload or another, never a mixture, and what was stopped goes on with the
parts that are missing. Parts that no index names any more stay until somebody deletes them.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import click
from pydantic import Field, NonNegativeInt, TypeAdapter, ValidationError

from scope_selfplay.base.errors import ConfigError, OutsideError, RecordError
from scope_selfplay.base.terminal import Progress, shown_progress
from scope_selfplay.net.client import proxy_for
from scope_selfplay.store.files import disk_faults, place_of

PART, WORKERS = 8 << 20, 8
"""Bytes of a part, which pyarrow sends in one request below 10 MiB; parts on their way at once, each in memory."""
TRIES, PAUSE, READINGS = 6, 1.0, 3
"""Of one object; seconds of the first pause between two, which doubles; readings of a file that changes."""
_INDEX, _AWS = "index.json", "https://s3.amazonaws.com"
_REFUSED = "NO_SUCH_BUCKET|DENIED|ACCESS_KEY|SIGNATURE|TOKEN|UNAUTHENTI|access token|status (301|40[013])"
_NOISE = r"^When .*?: | \(Request ID.*?\)"
_ADVICE = "correct the URL, AWS_DEFAULT_REGION or AWS_ACCESS_KEY_ID and such, or give a role that may do this"
Answer = TypeVar("Answer")
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class FilePart(NamedTuple):
    """So many bytes from `at` on, in the object `parts/SHA256`."""

    at: NonNegativeInt
    size: NonNegativeInt
    sha256: Sha256


class StoredFile(NamedTuple):
    sha256: Sha256
    parts: tuple[FilePart, ...]


_FILES = TypeAdapter(dict[str, StoredFile])
"""What `index.json` holds: every file by its path."""


class ObjectFolder:
    """The objects below one URL. Raises ConfigError for what the user can correct, OutsideError for the rest."""

    def __init__(self, url: str, progress: Progress) -> None:
        from pyarrow import fs

        scheme, _, root = url.rstrip("/").partition("://")
        if scheme not in ("s3", "gs") or not root:
            raise ConfigError(f"{url}: expected s3://BUCKET/FOLDER or gs://BUCKET/FOLDER")
        # The client reads neither variable by itself.
        endpoint = os.environ.get("AWS_ENDPOINT_URL")
        way = {"endpoint_override": endpoint, "proxy_options": proxy_for(endpoint or _AWS)}
        # A delayed opening sends a part in one request: it is there whole or not at all.
        if scheme == "s3":
            self._files = fs.S3FileSystem(**way, allow_delayed_open=True)
        else:
            self._files = fs.GcsFileSystem(retry_time_limit=timedelta(seconds=30))
        self._listed = fs.FileSelector(f"{root}/parts", allow_not_found=True)
        self.url, self._root, self._progress, self._done = url, root, progress, 0

    def count(self, size: int, name: str) -> None:
        self._done += size
        self._progress.advance(self._done // 10**6, name)

    def parts(self) -> dict[str, int]:
        """Bytes of each part that is there, by its SHA-256."""
        found = self._ask(lambda: self._files.get_file_info(self._listed))
        return {each.base_name: each.size for each in found or []}

    def read(self, name: str) -> bytes | None:
        return self._ask(lambda: bytes(self._files.open_input_file(f"{self._root}/{name}").readall()))

    def write(self, name: str, data: bytes) -> None:
        def send() -> bool:
            with self._files.open_output_stream(f"{self._root}/{name}") as file:
                return bool(file.write(data))

        if self._ask(send) is None:
            raise ConfigError(f"{self.url}: no such bucket; create it, or correct the URL")

    def _ask(self, call: Callable[[], Answer]) -> Answer | None:
        """None where something is not there."""
        for tried in range(TRIES):
            if tried:
                time.sleep(PAUSE * 2 ** (tried - 1))
            try:
                return call()
            except FileNotFoundError:
                return None
            except OSError as error:
                said = f"{self.url}: {re.sub(_NOISE, '', ' '.join(str(error).split()))[:300]}"
                if re.search(_REFUSED, str(error)):
                    raise ConfigError(f"{said}; {_ADVICE}") from None
        raise OutsideError(f"{said}; run the same command again, it goes on")


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("url")
def upload(source: Path, url: str) -> None:
    """Bring SOURCE, and nothing else, to URL, such as s3://BUCKET/FOLDER. The same command goes on where it stopped."""
    paths = [path for path in (*sorted(source.rglob("*")), source) if path.is_file()]
    base, files = source if source.is_dir() else source.parent, dict[str, StoredFile]()
    with shown_progress() as progress, ThreadPoolExecutor(WORKERS) as workers:
        store = ObjectFolder(url, progress)
        there = store.parts()
        total = sum(path.stat().st_size for path in paths if path.exists())
        progress.begin(f"upload {source}, MB", total // 10**6 + 1)
        for path in paths:
            # One that goes away meanwhile is left out.
            with suppress(FileNotFoundError):
                files[str(path.relative_to(base))] = _upload_file(store, path, there, workers)
        store.write(_INDEX, _FILES.dump_json(files, indent=1))
        progress.end(f"{len(files)} files")


def _upload_file(store: ObjectFolder, path: Path, there: Mapping[str, int], workers: Executor) -> StoredFile:
    """What a file was when it was read twice and both readings agreed: such it was at the moment between them.

    What is appended meanwhile comes with the next upload. Raises OutsideError for one that never stays as it is.
    """
    for _ in range(READINGS):
        file, is_same = _described(path), True
        for size in workers.map(partial(_send, store, path, there), file.parts):
            is_same = is_same and size > 0
            store.count(size, path.name)
        if is_same:
            return file
    raise OutsideError(f"{path}: changes while it is uploaded; go on when nothing writes there")


def _send(store: ObjectFolder, path: Path, there: Mapping[str, int], part: FilePart) -> int:
    """The bytes of a part, which is in the store then; 0 where the file is no longer what it was."""
    with path.open("rb") as file:
        file.seek(part.at)
        data = file.read(part.size)
    if hashlib.sha256(data).hexdigest() != part.sha256:
        return 0
    if there.get(part.sha256) != part.size:
        store.write(f"parts/{part.sha256}", data)
    return part.size


@click.command()
@click.argument("url")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace files of FOLDER that differ.")
def download(url: str, folder: Path, force: bool) -> None:
    """Bring into FOLDER what was uploaded to URL. The same command goes on where it stopped."""
    with shown_progress() as progress, ThreadPoolExecutor(WORKERS) as workers, disk_faults(folder):
        store = ObjectFolder(url, progress)
        if (data := store.read(_INDEX)) is None:
            raise ConfigError(f"{url}: no {_INDEX} is there; correct the URL, or end the upload")
        try:
            files = _FILES.validate_json(data)
        except ValidationError:
            raise RecordError(f"{url}/{_INDEX}: damaged; upload again") from None
        places = {name: place_of(folder, name) for name in files}
        here = {name: _described(place).sha256 for name, place in places.items() if place.is_file()}
        wanted = [name for name, file in files.items() if here.get(name) != file.sha256]
        if not force and (lost := next((places[name] for name in wanted if places[name].exists()), None)):
            raise ConfigError(f"{lost}: differs, and nothing was written; give --force, or another folder")
        sizes = {name: sum(part.size for part in files[name].parts) for name in wanted}
        progress.begin(f"download {url}, MB", sum(sizes.values()) // 10**6 + 1)
        for name in wanted:
            # A file appears whole or not at all; what an earlier download brought of it is told by its sums.
            part_file = places[name].with_name(f".{places[name].name}.{files[name].sha256[:12]}.part")
            part_file.parent.mkdir(parents=True, exist_ok=True)
            before = _described(part_file).parts if part_file.exists() else ()
            with part_file.open("ab") as opened:
                opened.truncate(sizes[name])
            left = sorted({*files[name].parts} - {*before})
            for size in workers.map(partial(_bring, store, part_file), left):
                store.count(size, name)
            if _described(part_file).sha256 != files[name].sha256:
                raise RecordError(f"{url}/{_INDEX}: damaged at {name}; upload again")
            part_file.replace(places[name])
        progress.end(f"{len(places)} files, {len(wanted)} of them brought")
    click.echo(folder)


def _bring(store: ObjectFolder, path: Path, part: FilePart) -> int:
    """The bytes of a part, which is in its place then."""
    name = f"parts/{part.sha256}"
    if (data := store.read(name)) is None or hashlib.sha256(data).hexdigest() != part.sha256:
        found = "is missing" if data is None else "is damaged; delete it"
        raise RecordError(f"{store.url}/{name}: {found}, then upload again")
    with path.open("r+b", buffering=0) as file:
        file.seek(part.at)
        file.write(data)
        os.fsync(file.fileno())
    return part.size


def _described(path: Path) -> StoredFile:
    """What a file is now."""
    whole, parts, at = hashlib.sha256(), [], 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while block := file.read(min(PART, size - at)):
            whole.update(block)
            parts.append(FilePart(at=at, size=len(block), sha256=hashlib.sha256(block).hexdigest()))
            at += len(block)
    return StoredFile(sha256=whole.hexdigest(), parts=tuple(parts))
