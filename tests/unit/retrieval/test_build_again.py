"""The same command again goes on or finds what is finished; another one is refused, and says why."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from retrieval.build import build_bm25
from retrieval.commands import index
from retrieval.corpus import source_bytes, source_hash
from retrieval.folder import read_manifest
from scope_selfplay.base.errors import CorpusError, RunMismatchError
from scope_selfplay.base.values import Document


@pytest.fixture
def build(tmp_path: Path, corpus: Path) -> Callable[..., Result]:
    def run(*options: object, folder: str = "index") -> Result:
        arguments = ["build", corpus, tmp_path / folder, *options]
        return CliRunner().invoke(index, [str(part) for part in arguments])

    return run


def refused(result: Result, message: str) -> None:
    assert isinstance(result.exception, RunMismatchError), result.output
    assert message in str(result.exception)


def test_chunks_of_another_size_are_another_index(build: Callable[..., Result]) -> None:
    assert build("--chunk-words", 50).exit_code == 0
    refused(build("--chunk-words", 40), "was begun with chunk_tokens 50, now it is 40")


def test_an_edit_that_keeps_the_size_is_another_source(build: Callable[..., Result], corpus: Path) -> None:
    assert build().exit_code == 0
    corpus.write_text(corpus.read_text().replace("word3", "ward3"))
    refused(build(), "was begun with another content of the source")


def test_a_source_that_was_mended_is_built_where_it_failed(
    build: Callable[..., Result], corpus: Path
) -> None:
    intact = corpus.read_text()
    corpus.write_text(intact[:-20])
    assert isinstance(build().exception, CorpusError)
    corpus.write_text(intact)
    assert "10 passages" in build().stdout


@pytest.mark.integration
def test_other_questions_and_another_model_are_another_index(
    build: Callable[..., Result], model: Path
) -> None:
    dense = ("--profile", "balanced", "--encoder", model)
    questions = model.parent / "questions.jsonl"
    questions.write_text('{"question": "word3"}\n')
    assert build(*dense, "--questions", questions).exit_code == 0
    refused(build(*dense), "was begun with other --questions")
    config = model / "config.json"
    config.write_text(config.read_text() + "\n")
    refused(build(*dense, "--questions", questions), "was begun with other files in the encoder's folder")


def test_a_second_build_waits_and_finds_the_index_of_the_first(
    tmp_path: Path, coast: list[Document], capsys: pytest.CaptureFixture[str]
) -> None:
    """The loser crashed: its passages had been renamed under it."""
    reading, go_on = threading.Event(), threading.Event()
    second: list[str] = []

    def slowly() -> object:
        reading.set()
        assert go_on.wait(20)
        yield from coast

    def build_too() -> None:
        second.append(build_bm25([], tmp_path).identity)

    first = threading.Thread(target=build_bm25, args=(slowly(), tmp_path))
    first.start()
    assert reading.wait(20)
    other = threading.Thread(target=build_too)
    other.start()
    other.join(0.2)
    assert other.is_alive()
    go_on.set()
    first.join(20)
    other.join(20)
    assert second == [read_manifest(tmp_path).identity]
    assert f"waiting up to 60 s for process {os.getpid()} on" in capsys.readouterr().err


def test_a_finished_index_that_cannot_be_written_is_found(
    tmp_path: Path, coast: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build_bm25(coast, tmp_path)

    def refuse(folder: Path) -> None:
        raise AssertionError("the lock of a finished index was asked for")

    monkeypatch.setattr("retrieval.build.lock_folder", refuse)
    assert build_bm25(coast, tmp_path) == built


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.md").write_text("# Heading\nBody")
    (folder / "sub" / "b.txt").write_text("Plain")
    return folder


def test_only_what_is_read_of_a_folder_counts(notes: Path) -> None:
    before = source_bytes(notes)
    (notes / "picture.bin").write_bytes(b"x" * 99)
    assert source_bytes(notes) == before == 19


def test_an_index_inside_its_source_is_built_once_and_found_again(notes: Path) -> None:
    """The index was counted as a part of its own source: the same command never found it again."""
    arguments = ["build", str(notes), str(notes / "index")]
    first, second = (CliRunner().invoke(index, arguments, catch_exceptions=False) for _ in range(2))
    assert first.exit_code == second.exit_code == 0
    assert first.stdout == second.stdout


def test_a_source_is_what_its_files_hold_whatever_their_times_and_place(notes: Path, tmp_path: Path) -> None:
    before = source_hash(notes)
    copy = tmp_path / "copy"
    shutil.copytree(notes, copy, copy_function=shutil.copyfile)
    assert source_hash(copy) == before
    (notes / "a.md").write_text("# Heading\nbody")
    assert source_hash(notes) != before
    (copy / "a.md").rename(copy / "c.md")
    assert source_hash(copy) != before


def test_a_source_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"gone\.jsonl: cannot be read"):
        source_hash(tmp_path / "gone.jsonl")
