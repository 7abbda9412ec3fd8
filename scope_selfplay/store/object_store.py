"""Files and folders in an object store, `s3://` or `gs://`, by pyarrow: `scope upload` and `scope download`, and runs
whose pods have a disk each (`cluster.store`).

Below a URL lie `parts/SHA256`, each written once and never changed, and `index.json`, written last, which says what
files they make up. So a reader finds one upload or another, never a mixture, and what was stopped goes on with the
parts that are missing. Parts that no index names any more stay until somebody deletes them.

A stage of a run has several indexes over the same parts:

work-aK.json     what attempt K has so far (work-aK-sNN.json: worker NN of several)
index-aK.json    what attempt K ended well with
index.json       that of the attempt which the run's controller has published, and nobody else: none writes over another
"""

import hashlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import click
from pydantic import Field, NonNegativeInt, TypeAdapter, ValidationError

from scope_selfplay.base.errors import ConfigError, ExitCode, OutsideError, RecordError, ScopeError
from scope_selfplay.base.terminal import Progress, shown_progress
from scope_selfplay.net.client import proxy_for
from scope_selfplay.store.files import disk_faults, place_of
from scope_selfplay.store.folder import MANIFEST

PART, WORKERS = 8 << 20, 8
"""Bytes of a part, which pyarrow sends in one request below 10 MiB; parts on their way at once, each in memory."""
EVERY = 300.0
"""Seconds between two times that the work of a stage is stored."""
TRIES, PAUSE, READINGS = 6, 1.0, 3
"""Of one object; seconds of the first pause between two, which doubles; readings of a file that changes."""
INDEX, _AWS = "index.json", "https://s3.amazonaws.com"
_WORK = re.compile(r"work-a(\d+)(-s\d+)?\.json")
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

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


_Files = Mapping[str, StoredFile]
_FILES = TypeAdapter(dict[str, StoredFile])
"""What an index holds: every file by its path."""


class ObjectFolder:
    """The objects below one URL, and further `below` it. Raises ConfigError for what the user can correct, OutsideError
    for the rest."""

    def __init__(self, url: str, progress: Progress, below: str = "") -> None:
        from pyarrow import fs

        place, _, query = url.partition("?")
        scheme, _, root = place.rstrip("/").partition("://")
        has_query = re.fullmatch(r"endpoint=https?://[^/]+/?", query) if query else True
        if scheme not in ("s3", "gs", "file") or not root or not has_query:
            expected = "s3://BUCKET/FOLDER, perhaps with ?endpoint=https://HOST:PORT, gs:// or file:///FOLDER"
            raise ConfigError(f"{url}: expected {expected}")
        # The client reads neither variable by itself.
        endpoint = query.removeprefix("endpoint=") or os.environ.get("AWS_ENDPOINT_URL")
        way = {"endpoint_override": endpoint, "proxy_options": proxy_for(endpoint or _AWS)}
        # A delayed opening sends a part in one request: it is there whole or not at all.
        if scheme == "s3":
            self._files = fs.S3FileSystem(**way, allow_delayed_open=True)
        elif scheme == "gs":
            self._files = fs.GcsFileSystem(retry_time_limit=timedelta(seconds=30))
        else:
            self._files = fs.LocalFileSystem()
        self._is_local = scheme == "file"
        self._root = f"{root}/{below}".rstrip("/")
        self.url, self._progress, self._done = f"{scheme}://{self._root}", progress, 0

    def count(self, size: int, name: str) -> None:
        self._done += size
        self._progress.advance(self._done // 10**6, name)

    @cached_property
    def parts(self) -> dict[str, int]:
        """Bytes of each part that is there, by its SHA-256."""
        return {each.base_name: each.size for each in self._listed("parts")}

    def names(self) -> list[str]:
        """What is there beside the parts: indexes, and folders further below."""
        return sorted(each.base_name for each in self._listed("") if each.base_name != "parts")

    def _listed(self, below: str) -> list[Any]:
        from pyarrow import fs

        selected = fs.FileSelector(f"{self._root}/{below}".rstrip("/"), allow_not_found=True)
        return self._ask(lambda: self._files.get_file_info(selected)) or []

    def index(self, name: str = INDEX) -> _Files | None:
        """The files of an index, or None. Raises RecordError for damage."""
        data = self.read(name)
        try:
            return None if data is None else _FILES.validate_json(data)
        except ValidationError:
            raise RecordError(f"{self.url}/{name}: damaged; upload again") from None

    def write_index(self, name: str, files: _Files) -> None:
        self.write(name, _FILES.dump_json(dict(files), indent=1))

    def _works(self) -> list[re.Match[str]]:
        found = [match for name in self.names() if (match := _WORK.fullmatch(name))]
        return sorted(found, key=lambda match: int(match[1]))

    def attempts(self) -> int:
        """The highest attempt that has stored something."""
        return max((int(match[1]) for match in self._works()), default=0)

    def newest_work(self) -> _Files | None:
        """What the highest attempt at a stage has so far; of workers that share one, what all attempts have.

        By its number, and not by time: a pod that was given up may live, and store what it has after the next one.
        """
        found = self._works()
        whole, shared = ([match[0] for match in found if bool(match[2]) is kind] for kind in (False, True))
        # Every start of a worker has a folder of its own: one that ends late takes nothing from the next.
        indexes = [self.index(name) or {} for name in (*whole[-1:], *shared)]
        return {name: file for index in indexes for name, file in index.items()} if indexes else None

    def read(self, name: str) -> bytes | None:
        return self._ask(lambda: bytes(self._files.open_input_file(f"{self._root}/{name}").readall()))

    def write(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"

        def send() -> bool:
            with self._files.open_output_stream(path) as file:
                return bool(file.write(data))

        def send_here() -> bool:
            # Whole or not at all, here too.
            part = f"{path}.{secrets.token_hex(4)}.part"
            self._files.create_dir(os.path.dirname(path))  # noqa: PTH120 - a path of pyarrow's
            with self._files.open_output_stream(part) as file:
                file.write(data)
            self._files.move(part, path)
            return True

        if self._ask(send_here if self._is_local else send) is None:
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
    with shown_progress() as progress:
        total = sum(path.stat().st_size for path in paths if path.exists())
        progress.begin(f"upload {source}, MB", total // 10**6 + 1)
        base = source if source.is_dir() else source.parent
        count = send(ObjectFolder(url, progress), base, paths, [INDEX])
        progress.end(f"{count} files")


_Known = dict[tuple[int, int, int], StoredFile]
"""Of files that are stored: by inode, size and time of the last change."""


def send(
    store: ObjectFolder,
    base: Path,
    paths: Iterable[Path],
    indexes: Sequence[str],
    known: _Known | None = None,
) -> int:
    """Store files, and then what they are in each of the indexes; their number. One that goes away is left out."""
    known, files = {} if known is None else known, dict[str, StoredFile]()
    with ThreadPoolExecutor(WORKERS) as workers:
        for path in paths:
            with suppress(FileNotFoundError):
                found = path.stat()
                identity = (found.st_ino, found.st_size, found.st_mtime_ns)
                if identity not in known:
                    known[identity] = _send_file(store, path, workers)
                files[str(path.relative_to(base))] = known[identity]
    for name in indexes:
        store.write_index(name, files)
    return len(files)


def _send_file(store: ObjectFolder, path: Path, workers: Executor) -> StoredFile:
    """What a file was when it was read twice and both readings agreed: such it was at the moment between them.

    What is appended meanwhile comes with the next upload. Raises OutsideError for one that never stays as it is.
    """
    for _ in range(READINGS):
        file, is_same = _described(path), True
        for size in workers.map(partial(_send_part, store, store.parts, path), file.parts):
            is_same = is_same and size > 0
            store.count(size, path.name)
        if is_same:
            return file
    raise OutsideError(f"{path}: changes while it is uploaded; go on when nothing writes there")


def _send_part(store: ObjectFolder, there: dict[str, int], path: Path, part: FilePart) -> int:
    """The bytes of a part, which is in the store then; 0 where the file is no longer what it was."""
    with path.open("rb") as file:
        file.seek(part.at)
        data = file.read(part.size)
    if hashlib.sha256(data).hexdigest() != part.sha256:
        return 0
    if there.get(part.sha256) != part.size:
        store.write(f"parts/{part.sha256}", data)
        there[part.sha256] = part.size
    return part.size


@click.command()
@click.argument("url")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace files of FOLDER that differ.")
def download(url: str, folder: Path, force: bool) -> None:
    """Bring into FOLDER what was uploaded to URL. The same command goes on where it stopped."""
    with shown_progress() as progress:
        store = ObjectFolder(url, progress)
        if (files := store.index()) is None:
            raise ConfigError(f"{url}: no {INDEX} is there; correct the URL, or end the upload")
        brought = receive(store, files, folder, progress, force=force)
        progress.end(f"{len(files)} files, {len(brought)} of them brought")
    click.echo(folder)


def receive(
    store: ObjectFolder, files: _Files, folder: Path, progress: Progress, *, force: bool = True
) -> list[str]:
    """Bring files that differ or are not here; which these were.

    Raises ConfigError, before it writes anything, where a file would be replaced and `force` does not say so;
    RecordError for a part that is damaged or missing.
    """
    with disk_faults(folder), ThreadPoolExecutor(WORKERS) as workers:
        places = {name: place_of(folder, name) for name in files}
        here = {name: _described(place).sha256 for name, place in places.items() if place.is_file()}
        wanted = [name for name, file in files.items() if here.get(name) != file.sha256]
        if not force and (lost := next((places[name] for name in wanted if places[name].exists()), None)):
            raise ConfigError(f"{lost}: differs, and nothing was written; give --force, or another folder")
        total = sum(files[name].size for name in wanted)
        progress.begin(f"download {store.url}, MB", total // 10**6 + 1)
        # A manifest says that all is there: it comes after the rest.
        for name in sorted(wanted, key=lambda name: name.endswith(MANIFEST)):
            # A file appears whole or not at all; what an earlier download brought of it is told by its sums.
            part_file = places[name].with_name(f".{places[name].name}.{files[name].sha256[:12]}.part")
            part_file.parent.mkdir(parents=True, exist_ok=True)
            before = _described(part_file).parts if part_file.exists() else ()
            with part_file.open("ab") as opened:
                opened.truncate(files[name].size)
            left = sorted({*files[name].parts} - {*before})
            for size in workers.map(partial(_bring, store, part_file), left):
                store.count(size, name)
            if _described(part_file).sha256 != files[name].sha256:
                raise RecordError(f"{store.url}: damaged at {name}; upload again")
            part_file.replace(places[name])
    return wanted


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


_BEGUN = ("run.yaml", "prompts", "corpus.jsonl")
_SHARED = ("exam", "canaries", "index.json", "tools.json", "summary.json", "README.md")
"""What stages leave in the run's own folder: each takes along what it knows, and the newest counts."""


class Unit(NamedTuple):
    """What is stored as one: `models/X`, `index/X`, `corpus/FILE` ..., and of a run `runs/R/begin`, `runs/R/log` and
    `runs/R/iteration-NN/STAGE`, whose files are named from the run's folder on."""

    name: str
    below: str = ""
    """The folder in it that was asked for."""

    @classmethod
    def of(cls, path: str) -> "Unit":
        """That of a path on the volume."""
        kind, *rest = path.split("/")
        if kind != "runs" or len(rest) <= 3:
            return cls(path)
        return cls("/".join((kind, *rest[:3])), "/".join(rest[1:]) + "/")

    def folder(self, volume: Path) -> Path:
        """From which its files are named."""
        kind, *rest = self.name.split("/")
        place = volume / kind / rest[0] if kind == "runs" else volume / self.name
        return place.parent if place.is_file() else place

    def paths(self, volume: Path, worker: int | None = None) -> list[Path]:
        """Its files that are here; of a stage that several workers share, what one of them made."""
        (kind, *rest), folder, place = self.name.split("/"), self.folder(volume), volume / self.name
        if kind != "runs":
            return [place] if place.is_file() else _files_below(place)
        part = "/".join(rest[1:])
        own = f"{part}/" if worker is None else f"{part}/.work/shares/{worker:02d}-"
        top = {"begin": (*_BEGUN, *_SHARED), "log": ()}.get(part, _SHARED)
        files = {path: path.relative_to(folder) for path in _files_below(folder)}
        return [path for path, name in files.items() if name.parts[0] in top or f"{name}".startswith(own)]


def _files_below(folder: Path) -> list[Path]:
    """In the order of their names; also while some of them go away."""
    return sorted(Path(here, name) for here, _, names in os.walk(folder) for name in names)


def pull(
    store: str,
    unit: Unit,
    volume: Path,
    progress: Progress,
    *,
    of_work: bool = False,
    wanted: Callable[[str], bool] = lambda name: True,
) -> bool:
    """Bring to the volume what is stored of a unit: what was published, or (`of_work`) what its newest attempts have so
    far. Whether there is any."""
    remote, folder = ObjectFolder(store, progress, unit.name), unit.folder(volume)
    files = (remote.newest_work() if of_work else remote.index()) or {}
    chosen = {name: file for name, file in files.items() if name.startswith(unit.below) and wanted(name)}
    place = volume / unit.name
    if len(files) == 1 and place.suffix:
        # A file alone, whatever it was called where it was uploaded.
        chosen, folder = {place.name: next(iter(files.values()))}, place.parent
    receive(remote, chosen, folder, progress)
    return bool(chosen)


def store_unit(
    remote: ObjectFolder,
    unit: Unit,
    volume: Path,
    indexes: Sequence[str],
    known: _Known | None = None,
    worker: int | None = None,
) -> None:
    """Store what is here of a unit, while others write it. Raises OutsideError, ConfigError."""
    kept, folder = volume / ".kept" / unit.name, unit.folder(volume)
    with disk_faults(kept):
        shutil.rmtree(kept, ignore_errors=True)
        for path in unit.paths(volume, worker):
            place = kept / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            # A link holds what a program replaces or removes meanwhile, such as the checkpoint before.
            with suppress(FileNotFoundError):
                os.link(path, place)
        # By name, which is the order in which it is safe: candidates are read before the rollouts that they name.
        send(remote, kept, _files_below(kept), indexes, known)
        shutil.rmtree(kept, ignore_errors=True)


def keep(
    store: str,
    unit: Unit,
    volume: Path,
    command: Sequence[str],
    say: Callable[[str], None],
    *,
    attempt: int | None = None,
    worker: int | None = None,
    every: float = EVERY,
) -> int:
    """Run a program and store what it makes; its exit code. SIGTERM is handed on to it, and what it leaves is stored.

    Of an attempt K at a stage: every so many seconds what is there, and at the end, as `work-aK.json`; where it ended
    well, as `index-aK.json`. Else `index.json` at the end; what has that is not made again.

    Raises ScopeError where a program ended well and its work cannot be stored.
    """
    remote, known = ObjectFolder(store, Progress(), unit.name), _Known()
    number = f"a{attempt}" + ("" if worker is None else f"-s{worker:02d}")
    own = "" if worker is None else f"/.work/shares/{worker:02d}-"
    if attempt is None and remote.index() is not None:
        say(f"{remote.url}: is there already")
        return ExitCode.DONE
    # The store's key is for what copies.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    process, code = subprocess.Popen(command, env=environment), None
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda received, frame: process.send_signal(received))
    so_far = [] if attempt is None else [f"work-{number}.json"]

    def is_others(name: str) -> bool:
        return "/.work/shares/" in name and own not in name

    while code is None:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(every)
        try:
            if code is None and so_far:
                store_unit(remote, unit, volume, so_far, known, worker)
                if worker is not None:
                    # What the others have settled is not made for nothing.
                    pull(store, unit, volume, Progress(), of_work=True, wanted=is_others)
        except ScopeError as error:
            say(f"{error}; tried again in {every:.0f} s")
    code = code if code >= 0 else 128 - code
    whole = INDEX if attempt is None else f"index-{number}.json"
    ended = [whole] if code == ExitCode.DONE and worker is None else []
    try:
        if indexes := [*so_far, *ended]:
            store_unit(remote, unit, volume, indexes, known, worker)
    except ScopeError as error:
        if code == ExitCode.DONE:
            raise
        say(str(error))
    return code
