"""What a user gets wrong about a build is one line and exit 64, before anything is written where that can be."""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from retrieval.cli import index
from retrieval.index_folder import map_array
from scope_selfplay.errors import ExitCode, RecordError, UserError


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": f"word{n}"}) + "\n" for n in range(10)))
    return path


def said(*arguments: object) -> str:
    """The one line of a user's mistake."""
    error = CliRunner().invoke(index, [str(part) for part in arguments]).exception
    assert isinstance(error, UserError), repr(error)
    assert error.exit_code == ExitCode.USER
    assert "\n" not in str(error)
    return str(error)


def test_a_gz_source_that_is_damaged_inside_is_named_with_its_line(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(b'{"text": "word"}\n'))
    # The first block is of a kind that does not exist.
    data[10] |= 0b110
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(data)
    assert "cannot be read: Error" in said("build", path, tmp_path / "index")


def test_a_source_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").symlink_to("/proc/self/mem")
    assert "a.jsonl:1: cannot be read" in said("build", tmp_path / "a.jsonl", tmp_path / "index")


@pytest.mark.parametrize("profile", ["bm25", "flat"])
def test_an_empty_source_is_not_a_corpus(tmp_path: Path, model: Path, profile: str) -> None:
    (tmp_path / "a.jsonl").touch()
    options = ["--profile", profile, "--encoder", model]
    assert "holds no document" in said("build", tmp_path / "a.jsonl", tmp_path / "index", *options)
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": "a"}\n{"text": "b"}\n', "q.jsonl:2: expected a `question` with some text"),
        ('{"question": 7}\n', "q.jsonl:1: expected a `question`"),
        ('{"question": " "}\n', "q.jsonl:1: expected a `question`"),
        ('\n{"question": ', "q.jsonl:2: not JSON"),
        ("\n \n", "q.jsonl: no question in it"),
    ],
)
def test_questions_that_are_none_are_named_before_the_estimate(
    tmp_path: Path, corpus: Path, text: str, message: str
) -> None:
    (tmp_path / "q.jsonl").write_text(text)
    options = ["--profile", "flat", "--encoder", "no/e5", "--questions", tmp_path / "q.jsonl"]
    assert message in said("build", corpus, tmp_path / "index", *options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--chunk-tokens", 10, "--chunk-overlap", 10], "--chunk-overlap 10 has to be less than"),
        (["--chunk-overlap", 3], "--chunk-overlap says how --chunk-tokens cuts"),
        (["--tokenizer", __file__], "--tokenizer says how --chunk-tokens cuts"),
    ],
)
def test_senseless_options_are_refused(
    tmp_path: Path, corpus: Path, options: list[object], message: str
) -> None:
    assert message in said("build", corpus, tmp_path / "index", *options)
    assert not (tmp_path / "index").exists()


def test_a_folder_that_cannot_be_made_is_named(corpus: Path) -> None:
    for folder in (corpus / "index", Path("/proc/index")):
        assert f"{folder}: no index can be built there" in said("build", corpus, folder)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda model: (model / "tokenizer.json").unlink(), "no tokenizer.json in"),
        (lambda model: (model / "config.json").write_text("[]"), "config.json holds a list"),
        (lambda model: (model / "modules.json").write_text("[1]"), "modules.json lists a int"),
        (lambda model: change(model, num_hidden_layers=None), "has num_hidden_layers None"),
        (lambda model: change(model, hidden_size="64"), "has hidden_size '64'"),
    ],
)
def test_a_model_that_is_none_is_named(
    tmp_path: Path, corpus: Path, model: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(model)
    assert message in said("build", corpus, tmp_path / "index", "--profile", "flat", "--encoder", model)


def change(model: Path, **fields: object) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_every_changed_byte_of_an_arrays_header_is_a_record_error_or_none(tmp_path: Path) -> None:
    """NumPy reads the header as Python and raises what that raises."""
    np.save(tmp_path / "whole.npy", np.ones((2, 16), dtype=np.float32))
    data = (tmp_path / "whole.npy").read_bytes()
    draw = random.Random(2)
    refused = 0
    for _ in range(400):
        damaged = bytearray(data)
        damaged[draw.randrange(128)] = draw.choice(b"'({,\n<0\x00")
        (tmp_path / "a.npy").write_bytes(damaged)
        try:
            map_array(tmp_path / "a.npy")
        except RecordError:
            refused += 1
    assert refused > 200


def test_what_only_vectors_have_is_refused_for_bm25(corpus: Path, tmp_path: Path) -> None:
    assert (
        said("build", corpus, tmp_path / "index", "--device", "cpu")
        == "--device belongs to the profiles that search vectors, and bm25 has none; leave it out"
    )
    assert not (tmp_path / "index").exists()
