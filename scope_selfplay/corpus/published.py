"""A published corpus as the file that runs and `scope index build` read, with a receipt beside it where it is made.

It is brought by its URLs and checked by its SHA-256: it has its name when it is whole, and goes on where it was cut.
Large files are published in parts, which are joined in their order. A part that was brought is never asked for again.
"""

import asyncio
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import aiohttp
from pydantic import BaseModel

from scope_selfplay.base.errors import ConfigError, CorpusError, OutsideError, RecordError, StorageError
from scope_selfplay.base.machine import folder_lock
from scope_selfplay.corpus.read import is_passage_file, read_passages
from scope_selfplay.net.json import read_lines
from scope_selfplay.store.files import disk_faults, read_value, sync_folder, write_atomic
from scope_selfplay.store.folder import checksum

HUB = "hf://"
_TRIES = 6
LONGEST_PAUSE = 60.0
_CHUNK = 1 << 20
_TOLD_EVERY_BYTES = 1 << 30
_NOT_NOW = (408, 425, 429)
_WHOLE = 416
"""The status of a request for what comes after the end."""
_KINDS = (".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz")
_TOLD_EVERY_PASSAGES = 1_000_000
_LOCK_TIMEOUT = 60.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class PublishedFile:
    urls: tuple[str, ...]
    """Of its parts, in their order: https://..., or hf://datasets/OWNER/NAME@REVISION/PATH."""
    sha256: str
    """Of the joined parts, as they are published."""

    @property
    def name(self) -> str:
        """Of its first part: what is in a single file is known by it."""
        return self.urls[0].partition("?")[0].rpartition("/")[2]


def checked_sha256(text: str) -> str:
    """Raises ConfigError for what is no SHA-256."""
    if not re.fullmatch("[0-9a-f]{64}", text.lower()):
        raise ConfigError(f"{text!r}: expected a SHA-256, 64 hexadecimal digits, as `sha256sum` prints it")
    return text.lower()


def fetch_file(published: PublishedFile, file: Path, *, say: Say) -> None:
    """Bring `published` to `file`: as it is, or as JSON lines where `file` is a .jsonl and the published one is not.

    A file that is there and whole is left alone. Raises ConfigError for what the place does not have or does not give,
    and for another checksum; OutsideError where it does not answer, StorageError for a full disk, CorpusError for a
    corpus that cannot be read. What has come is kept for the next start.
    """
    is_converted = len(published.urls) == 1 and _kind(file.name) != _kind(published.name)
    # Names that only this fetch has: the lock keeps others out, and what a kill left is written anew.
    source = file.with_name(f".{file.name}.from.{published.name}")
    with disk_faults(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.with_name(f".{file.name}.lock")
        with folder_lock(file, lock, work="fetching", say=say, timeout=_LOCK_TIMEOUT):
            rows = ""
            if not is_converted:
                _download(published, file, say)
            elif _is_whole(file, published):
                # A kill may have left it after the corpus had its name.
                source.unlink(missing_ok=True)
                say(f"{file}: is there already")
                return
            else:
                rows = f", {_make(published, source, file, say):,} passages"
            say(f"{file}: {file.stat().st_size / 1e9:.1f} GB{rows}")


def _make(published: PublishedFile, source: Path, file: Path, say: Say) -> int:
    """`file` out of the published one, brought to `source`; gives its passages. Raises ConfigError where no corpus can
    be made under this name.
    """
    if file.suffix != ".jsonl" or not _kind(published.name):
        raise ConfigError(
            f"{file}: cannot be made from {published.name}; expected a name with .jsonl, made from one of "
            f"{', '.join(_KINDS)}, or the published file's own ending"
        )
    if file.exists():
        raise ConfigError(
            f"{file}: is there already and was not fetched here; give another name, or remove it"
        )
    if source.exists() and checksum(source) != published.sha256:
        say(f"{file}: begins anew; what had come has another checksum")
        source.unlink()
    if not source.exists():
        _download(published, source, say)
    say(f"{file}: made from {published.name}")
    lines, passages = file.with_name(f".{file.name}.lines"), 0
    with lines.open("wb", buffering=1 << 20) as opened:
        for passages, line in enumerate(_lines(source), start=1):
            opened.write(line)
            if passages % _TOLD_EVERY_PASSAGES == 0:
                say(f"{passages:,} passages")
        opened.flush()
        os.fsync(opened.fileno())
    if not passages:
        raise CorpusError(f"{source}: holds no passage")
    told = {"urls": published.urls, "sha256": published.sha256, "passages": passages, "file": checksum(lines)}
    # Before the corpus has its name: without a receipt it would look like somebody's own.
    write_atomic(_receipt(file), json.dumps(told, indent=1) + "\n")
    lines.replace(file)
    sync_folder(file.parent)
    source.unlink()
    return passages


def _receipt(file: Path) -> Path:
    return file.with_name(f"{file.name}.fetched.json")


class _FetchedFile(BaseModel):
    """A receipt: the checksum of what was published, and that of the file that was made of it."""

    sha256: str
    file: str


def _is_whole(file: Path, published: PublishedFile) -> bool:
    """Whether this very file was made here. Raises ConfigError for another one under its name."""
    receipt = _receipt(file)
    fetched = read_value(receipt, _FetchedFile, f"remove it and {file.name}, and run this again")
    if fetched is None or not file.is_file():
        return False
    if fetched.sha256 != published.sha256:
        raise ConfigError(
            f"{file}: was made from a file with SHA-256 {fetched.sha256}, asked was {published.sha256}; give another "
            "name, or remove it"
        )
    if checksum(file) != fetched.file:
        raise ConfigError(f"{file}: changed since it was fetched; remove it and run this again")
    return True


def _kind(name: str) -> str:
    return next((kind for kind in _KINDS if name.endswith(kind)), "")


def _lines(source: Path) -> Iterator[bytes]:
    if is_passage_file(source):
        for _, document in read_passages(source):
            record = {"id": document.id, "title": document.title, "text": document.text}
            yield json.dumps(record, ensure_ascii=False).encode() + b"\n"
        return
    yield from (line.encode() for line in read_lines(source))


def _download(published: PublishedFile, file: Path, say: Say) -> None:
    """Bring `published` to `file` as it is, unless it is there."""
    if file.exists():
        _check(file, published, f"{file}: is there already with", "give another name, or remove it", say)
        return
    part, parts = file.with_name(f".{file.name}.part"), file.with_name(f".{file.name}.parts")
    sizes = _sizes_of_whole_parts(published, part, parts, say)
    for url in published.urls[len(sizes) :]:
        asyncio.run(_bring(url, part, sum(sizes), say))
        sizes.append(part.stat().st_size - sum(sizes))
        write_atomic(parts, json.dumps({"urls": published.urls, "sizes": sizes}))
    advice = f"correct the URL or the checksum, or remove {part} to download it again"
    _check(part, published, f"{published.urls[0]}: has", advice, say)
    part.replace(file)
    parts.unlink(missing_ok=True)
    sync_folder(file.parent)


def _sizes_of_whole_parts(published: PublishedFile, part: Path, parts: Path, say: Say) -> list[int]:
    """Of what an earlier start brought from the same URLs; what came from others, or is not all there, is dropped."""
    told = _Parts()
    # Nothing where an earlier version wrote it: that told sizes alone.
    with suppress(RecordError):
        told = read_value(parts, _Parts, "") or told
    there = part.stat().st_size if part.exists() else 0
    if told.urls == published.urls and there >= sum(told.sizes):
        return told.sizes
    if there:
        say(f"{published.urls[0]}: begins anew; what had come is not known to be from there")
    part.unlink(missing_ok=True)
    write_atomic(parts, json.dumps({"urls": published.urls, "sizes": []}))
    return []


class _Parts(BaseModel):
    urls: tuple[str, ...] = ()
    sizes: list[int] = []


def _check(found: Path, published: PublishedFile, whose: str, advice: str, say: Say) -> None:
    """Raises ConfigError, which begins with `whose`, for another checksum."""
    say(f"{found}: reading {found.stat().st_size / 1e9:.1f} GB for the checksum")
    digest = checksum(found)
    if digest != published.sha256:
        raise ConfigError(f"{whose} SHA-256 {digest}, expected {published.sha256}; {advice}")


def web_address(url: str) -> str:
    """Where a file of the hub, or any other, is asked for. Raises ConfigError for a URL of another form."""
    if url.startswith(("https://", "http://")):
        return url
    kind, _, rest = url.removeprefix(HUB).partition("/")
    owner, _, rest = rest.partition("/")
    named, _, path = rest.partition("/")
    name, _, revision = named.partition("@")
    if not url.startswith(HUB) or kind not in ("datasets", "models") or not (owner and name and path):
        raise ConfigError(
            f"{url!r}: expected https://..., or hf://datasets/OWNER/NAME@REVISION/PATH of the hub (or hf://models/...)"
        )
    from huggingface_hub import hf_hub_url

    return hf_hub_url(f"{owner}/{name}", path, repo_type=kind.removesuffix("s"), revision=revision or "main")


async def _bring(url: str, part: Path, start: int, say: Say) -> None:
    """Append what is missing of the part that begins at byte `start`; several tries, each from where the last ended."""
    address, fault = web_address(url), ""
    # A proxy is whatever the environment names; the checksum decides what is believed.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=True, auto_decompress=False) as session:
        for number in range(_TRIES):
            if number:
                await asyncio.sleep(min(LONGEST_PAUSE, 2.0**number))
            try:
                await _try(session, address, part, start, say)
            except (aiohttp.ClientError, TimeoutError) as error:
                fault = " ".join(str(error).split())[:160] or type(error).__name__
                say(f"{url}: {fault}; going on")
            else:
                return
    raise OutsideError(f"{url}: did not answer well ({fault}); run this again, it goes on where it was")


async def _try(session: aiohttp.ClientSession, address: str, part: Path, start: int, say: Say) -> None:
    with part.open("ab") as file:
        at = os.fstat(file.fileno()).st_size
        # As it is published: bytes that are compressed on their way have neither its checksum nor its ranges.
        asked = {"Range": f"bytes={at - start}-", "Accept-Encoding": "identity"}
        async with session.get(address, headers=asked) as response:
            if response.status == _WHOLE and at > start:
                return
            if response.status >= 500 or response.status in _NOT_NOW:
                raise aiohttp.ClientResponseError(
                    response.request_info, (), status=response.status, message=response.reason or ""
                )
            if response.status not in (200, 206):
                raise ConfigError(
                    f"{address}: answered {response.status} {response.reason}; correct the URL of a file that is public"
                )
            if response.status == 200:
                # It does not know ranges: all of it comes again.
                file.truncate(start)
                at = start
            # Kept as it comes: servers say this of a .gz, too, whose bytes are the published ones.
            if (encoding := response.headers.get("Content-Encoding", "identity")).lower() != "identity":
                say(
                    f"{address}: comes with Content-Encoding {encoding}, to which another checksum may be due"
                )
            _check_room(part, response.content_length, at)
            await _store(response, file, at, say)
            file.flush()
            os.fsync(file.fileno())


async def _store(response: aiohttp.ClientResponse, file: BinaryIO, at: int, say: Say) -> None:
    told = at // _TOLD_EVERY_BYTES
    async for chunk in response.content.iter_chunked(_CHUNK):
        file.write(chunk)
        at += len(chunk)
        if at // _TOLD_EVERY_BYTES > told:
            told = at // _TOLD_EVERY_BYTES
            say(f"{response.url.name}: {at / 1e9:.1f} GB")


def _check_room(part: Path, coming: int | None, at: int) -> None:
    """Raises StorageError where what is coming does not fit: better now than after hours."""
    free = shutil.disk_usage(part.parent).free
    if coming is not None and coming > free:
        raise StorageError(
            f"{part.parent}: {free / 1e9:.1f} GB free, {coming / 1e9:.1f} GB more are coming after {at / 1e9:.1f} GB; "
            "make room, then run this again"
        )
