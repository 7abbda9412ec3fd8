"""`scope index build`: the same command again goes on or finds what is finished; another one says why it is refused."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from retrieval.commands import index, serve_retriever
from retrieval.corpus import read_documents, source_hash
from scope_selfplay.base.errors import ConfigError, CorpusError, RunMismatchError


@pytest.fixture
def build(tmp_path: Path, corpus: Path) -> Callable[..., Result]:
    def run(*options: object) -> Result:
        arguments = ["build", corpus, tmp_path / "index", *options]
        return CliRunner().invoke(index, [str(part) for part in arguments])

    return run


def refused(result: Result, message: str) -> None:
    assert isinstance(result.exception, RunMismatchError), result.output
    assert message in str(result.exception)


def test_an_index_of_words_is_built_and_checked(build: Callable[..., Result], tmp_path: Path) -> None:
    assert "30 passages" in build("--chunk-words", 10).stdout
    check = ["check", str(tmp_path / "index")]
    assert "files intact" in CliRunner().invoke(index, check).stdout
    record = json.loads(CliRunner().invoke(index, [*check, "--json"]).stdout)
    assert (record["kind"], record["rows"]) == ("bm25", 30)


@pytest.mark.integration
def test_another_model_is_another_index(build: Callable[..., Result], model: Path) -> None:
    dense = ("--profile", "balanced", "--encoder", model)
    assert build(*dense).exit_code == 0
    config = model / "config.json"
    config.write_text(config.read_text() + "\n")
    refused(build(*dense), "was begun with other files in the encoder's folder")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.md").write_text("# Heading\nBody")
    (folder / "sub" / "b.txt").write_text("Plain")
    return folder


def test_an_index_inside_its_source_is_built_once_and_found_again(notes: Path) -> None:
    arguments = ["build", str(notes), str(notes / "index")]
    first, second = (CliRunner().invoke(index, arguments, catch_exceptions=False) for _ in range(2))
    assert first.exit_code == second.exit_code == 0 and first.stdout == second.stdout


def test_a_source_is_what_its_files_hold_whatever_their_times_and_place(notes: Path, tmp_path: Path) -> None:
    before = source_hash(notes)
    (notes / "picture.bin").write_bytes(b"x" * 99)
    copy = tmp_path / "copy"
    shutil.copytree(notes, copy, copy_function=shutil.copyfile)
    assert source_hash(copy) == source_hash(notes) == before
    (notes / "a.md").write_text("# Heading\nbody")
    assert source_hash(notes) != before
    (copy / "a.md").rename(copy / "c.md")
    assert source_hash(copy) != before
    with pytest.raises(CorpusError, match=r"gone\.jsonl: cannot be read"):
        source_hash(tmp_path / "gone.jsonl")


def test_options_that_would_be_ignored_or_cannot_be_sent_are_refused(
    build: Callable[..., Result], corpus: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = ("--profile", "flat", "--encoder", model, "--device", "cpu")
    for options, message in {
        ("--vectors", corpus, *dense): "--device says how to encode, and --vectors are there",
        ("--vectors", corpus): "--vectors belongs to the profiles that search vectors",
    }.items():
        error = build(*options).exception
        assert isinstance(error, ConfigError) and message in str(error)
    for token in ("two\nlines", "a\x07b", "\udcff"):
        monkeypatch.setenv("TOKEN", token)
        error = CliRunner().invoke(serve_retriever, ["folder", "--token-env", "TOKEN"]).exception
        assert isinstance(error, ConfigError) and "TOKEN holds a line break" in str(error)


def read(path: Path) -> list[tuple[str, str, str]]:
    return [(document.id, document.title, document.text) for document in read_documents(path)]


def test_wiki18_and_plain_lines_give_the_same_documents(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    lines = [
        {"id": "0", "contents": '"Aldmoor"\nA town.'},
        {"id": 1, "title": "Aldmoor", "text": "A town.", "url": "ignored"},
        {"text": "no title"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert read(path) == [("0", "Aldmoor", "A town."), ("1", "Aldmoor", "A town."), ("2", "", "no title")]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"id": true, "text": "x"}\n', '"id" must be text, found true or false'),
        ("a.parquet", b"PAR1 and nothing more", r"a\.parquet: not parquet"),
        ("a.tsv.gz", gzip.compress(b"1\tx\tT\n" * 9999, mtime=0)[:-20], "cannot be read"),
        # The first block is of a kind that does not exist.
        ("a.jsonl.gz", gzip.compress(b"", mtime=0)[:10] + b"\x07" * 9, "cannot be read: Error"),
        ("a.jsonl.gz", gzip.compress(b" " * (1 << 25), mtime=0), "line of more than"),
    ],
)
def test_a_damaged_source_is_named_with_its_line(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CorpusError, match=message):
        read(tmp_path / name)
