"""`scope view` as it is started."""

import pytest
from click.testing import CliRunner

from scope_selfplay.base.errors import ConfigError, OutsideError
from scope_selfplay.cli import cli
from scope_selfplay.store.folder import RunFolder


@pytest.mark.parametrize("base", ["/a?b", "/a b", "//x//y", '/"'])
def test_a_base_path_that_is_none_is_refused(folder: RunFolder, base: str) -> None:
    done = CliRunner().invoke(cli, ["view", str(folder.path), "--base-path", base])
    assert isinstance(done.exception, ConfigError)


def test_a_taken_port_is_one_clear_line(folder: RunFolder) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        done = CliRunner().invoke(cli, ["view", str(folder.path), "--port", str(other.getsockname()[1])])
    assert isinstance(done.exception, OutsideError) and "is taken" in str(done.exception)
