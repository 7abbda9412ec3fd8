"""`scope view` as it is started."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from scope_selfplay.cli import cli
from scope_selfplay.errors import ConfigError, OutsideError, RecordError
from scope_selfplay.store import RunFolder
from scope_selfplay.terminal import run_command


def test_an_unknown_run_ends_with_64_and_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["scope", "view", "no-such-run"])
    with pytest.raises(SystemExit) as stop:
        run_command(cli, "scope")
    assert stop.value.code == 64
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["view", str(tmp_path), "--port", "0"])
    assert isinstance(done.exception, RecordError) and "not a run folder" in str(done.exception)


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
