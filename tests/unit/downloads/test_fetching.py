"""A published corpus from a server on this machine: whole or not at all, resumed, checked, made JSON lines."""

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scope_selfplay.base.errors import ConfigError, CorpusError, ExitCode, OutsideError, StorageError
from scope_selfplay.cli import cli
from scope_selfplay.corpus import published as corpus
from scope_selfplay.corpus.published import PublishedFile, fetch_file, web_address
from scope_selfplay.corpus.read import read_documents
from tests.loopback import Reply, Seen, loopback

TSV = gzip.compress(
    b"id\ttext\ttitle\n" + b"".join(b'%d\t"a ""quoted"" text %d"\tTitle %d\n' % (n, n, n) for n in range(50))
)


class Place:
    """What a server has, and what it was asked: `cut` bytes of each answer come before the line breaks."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []
        self.cut: int | None = None
        self.ranges = True
        self.status = 0
        self.url = ""

    def has(self, name: str, content: bytes) -> str:
        self.files[f"/{name}"] = content
        return f"{self.url}/{name}"

    def answer(self, seen: Seen) -> Reply:
        wanted = seen.headers.get("Range", "bytes=0-")
        self.asked.append((seen.path, wanted))
        content = self.files.get(seen.path)
        if content is None or self.status:
            return Reply(status=self.status or 404)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if self.ranges else 0
        if start and start >= len(content):
            return Reply(status=416)
        headers = [("Content-Length", str(len(content) - start)), ("Connection", "close")]
        return Reply(content[start:][: self.cut], 206 if self.ranges else 200, tuple(headers))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(corpus, "LONGEST_PAUSE", 0.0)
    found = Place()
    with loopback(found.answer) as (port, _):
        found.url = f"http://127.0.0.1:{port}"
        yield found


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def fetch(file: Path, *urls: str, of: bytes) -> list[str]:
    said: list[str] = []
    fetch_file(PublishedFile(urls, sha256(of)), file, say=said.append)
    return said


def test_dprs_wikipedia_becomes_the_corpus_that_a_run_reads(place: Place, tmp_path: Path) -> None:
    url, file = place.has("psgs_w100.tsv.gz", TSV), tmp_path / "corpus" / "wikipedia-2018.jsonl"

    said = fetch(file, url, of=TSV)
    documents = read_documents(file)
    assert (len(documents), documents[7].title, documents[7].text) == (50, "Title 7", 'a "quoted" text 7')
    assert said[-1].endswith("GB, 50 passages")
    # Nothing but the corpus, its receipt and the lock; nothing is asked for again.
    assert {path.name for path in file.parent.iterdir()} == {
        ".wikipedia-2018.jsonl.lock",
        "wikipedia-2018.jsonl",
        "wikipedia-2018.jsonl.fetched.json",
    }
    asked = len(place.asked)
    assert fetch(file, url, of=TSV) == [f"{file}: is there already"]
    assert len(place.asked) == asked
    with pytest.raises(ConfigError, match="was made from a file with SHA-256"):
        fetch(file, url, of=b"another")
    file.write_bytes(b"{}\n")
    with pytest.raises(ConfigError, match="changed since it was fetched; remove it"):
        fetch(file, url, of=TSV)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_goes_on_in_another_process_after_an_outage(
    place: Place, tmp_path: Path, ranges: bool
) -> None:
    content = b"0123456789" * 1_000
    url, file = place.has("a.jsonl", content), tmp_path / "a.jsonl"
    place.ranges, place.cut = ranges, 100
    with pytest.raises(OutsideError, match="run this again, it goes on where it was"):
        fetch(file, url, of=content)
    assert not file.exists()

    place.cut = None
    asked = len(place.asked)
    fetch(file, url, of=content)
    assert file.read_bytes() == content and len(place.asked) == asked + 1
    starts = [*range(0, 600, 100), 600] if ranges else [0, *[100] * 6]
    assert [wanted for _, wanted in place.asked] == [f"bytes={start}-" for start in starts]


def test_parts_are_joined_in_their_order_and_none_comes_twice(place: Place, tmp_path: Path) -> None:
    first, second = b"a" * 5_000, b"b" * 4_000
    urls = [place.has("part_aa", first), place.has("part_ab", second)]
    file = tmp_path / "e5_Flat.index"
    del place.files["/part_ab"]
    with pytest.raises(ConfigError, match="answered 404"):
        fetch(file, *urls, of=first + second)
    place.has("part_ab", second)

    fetch(file, *urls, of=first + second)
    assert file.read_bytes() == first + second
    assert [path for path, _ in place.asked].count("/part_aa") == 1


def test_a_wrong_checksum_is_one_line_and_costs_no_second_download(place: Place, tmp_path: Path) -> None:
    url, file = place.has("a.jsonl", b"something else"), tmp_path / "a.jsonl"
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"has SHA-256 {sha256(b'something else')}, expected") as caught:
            fetch(file, url, of=b"the corpus")
        assert "\n" not in str(caught.value) and not file.exists()
    assert [path for path, _ in place.asked] == ["/a.jsonl"]
    # The checksum was wrong, the file was not.
    fetch(file, url, of=b"something else")
    assert file.read_bytes() == b"something else"
    assert len(place.asked) == 1


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.tsv.gz"])
def test_a_file_of_ones_own_is_never_written_over(place: Place, tmp_path: Path, name: str) -> None:
    url, file = place.has("psgs.tsv.gz", TSV), tmp_path / name
    file.write_text("mine\n")
    with pytest.raises(ConfigError, match=r"is there already .*give another name, or remove it") as caught:
        fetch(file, url, of=TSV)
    # It is the file that is another one; nobody asked the URL.
    assert str(caught.value).startswith(f"{file}: ") and url not in str(caught.value)
    assert file.read_text() == "mine\n" and place.asked == []


@pytest.mark.parametrize("step", ["write_atomic", "sync_folder"], ids=["receipt", "name"])
def test_a_kill_about_the_receipt_leaves_what_the_same_command_finishes(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    url, file = place.has("psgs.tsv.gz", TSV), tmp_path / "wiki.jsonl"

    class Killed(BaseException): ...

    def killed(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as once, pytest.raises(Killed):
        once.setattr(corpus, step, killed)
        fetch(file, url, of=TSV)
    fetch(file, url, of=TSV)
    assert len(read_documents(file)) == 50 and len(place.asked) == 1
    assert not list(tmp_path.glob(".*.gz"))
    # A published name is never taken for one of the fetch's own.
    fetch(file, f"{place.url}/lock", of=TSV)
    assert (tmp_path / ".wiki.jsonl.lock").exists()


@pytest.mark.parametrize("content", [gzip.compress(b"a\tb\n"), TSV[:-20]], ids=["columns", "cut"])
def test_a_corpus_that_cannot_be_read_leaves_no_file_and_another_of_its_name_is_fetched(
    place: Place, tmp_path: Path, content: bytes
) -> None:
    url, file = place.has("v1/psgs.tsv.gz", content), tmp_path / "wiki.jsonl"
    for _ in range(2):
        with pytest.raises(CorpusError, match=r"psgs\.tsv\.gz"):
            fetch(file, url, of=content)
    assert not file.exists() and len(place.asked) == 1
    fetch(file, place.has("v2/psgs.tsv.gz", TSV), of=TSV)
    assert len(read_documents(file)) == 50


def test_lines_are_unpacked_as_they_are_and_other_endings_refused(place: Place, tmp_path: Path) -> None:
    lines = b'{"id": "0", "contents": "\\"A\\"\\nb"}\n'
    url = place.has("wiki-18.jsonl.gz", gzip.compress(lines, mtime=0))
    fetch(tmp_path / "wiki-18.jsonl", url, of=gzip.compress(lines, mtime=0))
    assert (tmp_path / "wiki-18.jsonl").read_bytes() == lines
    with pytest.raises(ConfigError, match=r"expected a name with \.jsonl"):
        fetch(tmp_path / "wiki-18.parquet", url, of=lines)


def test_what_does_not_fit_is_said_before_it_comes(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("scope_selfplay.corpus.published.shutil.disk_usage", lambda _: usage)
    url = place.has("a.jsonl", b"x" * 100)
    with pytest.raises(StorageError, match="make room, then run this again"):
        fetch(tmp_path / "a.jsonl", url, of=b"x" * 100)


def test_a_place_of_the_hub_is_a_url() -> None:
    wiki = "hf://datasets/PeterJinGo/wiki-18-corpus@abc/wiki-18.jsonl.gz"
    assert web_address(wiki).endswith("/datasets/PeterJinGo/wiki-18-corpus/resolve/abc/wiki-18.jsonl.gz")
    for wrong in ("hf://datasets/owner", "ftp://a/b", "hf://spaces/a/b/c"):
        with pytest.raises(ConfigError, match="expected https://"):
            web_address(wrong)


def test_the_commands_say_where_it_is_and_what_is_wrong(place: Place, tmp_path: Path) -> None:
    url = place.has("psgs.tsv.gz", TSV)

    def fetched(name: str, checksum: str) -> Result:
        asked = ["index", "fetch", str(tmp_path / name), "--url", url, "--sha256", checksum, "--json"]
        return CliRunner().invoke(cli, asked)

    for name, checksum in {"a.jsonl": sha256(TSV), "b.tsv.gz": sha256(TSV).upper()}.items():
        done = fetched(name, checksum)
        assert json.loads(done.stdout)["file"] == str(tmp_path / name), done.output
    assert (tmp_path / "b.tsv.gz").read_bytes() == TSV
    requests = len(place.asked)
    error = fetched("c.jsonl", sha256(TSV)[:-1]).exception
    assert isinstance(error, ConfigError) and "64 hexadecimal digits" in str(error)
    assert len(place.asked) == requests
    place.status = 503
    error = fetched("c.jsonl", sha256(TSV)).exception
    assert isinstance(error, OutsideError) and error.exit_code == ExitCode.OUTSIDE
