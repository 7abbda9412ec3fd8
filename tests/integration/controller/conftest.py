import pytest

from scope_selfplay.base.errors import ExitCode
from tests.unit.controller.worlds import World


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("undisturbed"))
    assert world.drive().code is ExitCode.DONE
    return world
