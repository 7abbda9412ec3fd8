"""What a user gets wrong about a build is one line and exit 64, before anything is written where that can be."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from retrieval.commands import index
from retrieval.folder import map_array
from scope_selfplay.base.errors import ExitCode, RecordError, UserError


def said(*arguments: object) -> str:
    """The one line of a user's mistake."""
    error = CliRunner().invoke(index, [str(part) for part in arguments]).exception
    assert isinstance(error, UserError), repr(error)
    assert error.exit_code == ExitCode.USER
    assert "\n" not in str(error)
    return str(error)


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
