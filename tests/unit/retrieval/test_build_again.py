"""The same command again goes on or finds what is finished; another one is refused, and says why."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from retrieval.commands import index
from scope_selfplay.base.errors import CorpusError, RunMismatchError


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
