"""`scope view` as it is started."""

import pytest
from click.testing import CliRunner

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.cli import cli
from scope_selfplay.store.folder import RunFolder


@pytest.mark.parametrize("base", ["/a?b", "/a b", "//x//y", '/"'])
def test_a_base_path_that_is_none_is_refused(folder: RunFolder, base: str) -> None:
    done = CliRunner().invoke(cli, ["view", str(folder.path), "--base-path", base])
    assert isinstance(done.exception, ConfigError)
