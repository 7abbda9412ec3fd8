"""`docs/architecture.md` stays true: rooms and their order, stations of the main path, every path that it names."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
LIBRARY = ROOT / "scope_selfplay"
ROOMS = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
STATIONS = re.findall(r"^\d+\. `([\w.]+)`", PAGE, re.MULTILINE)
PATHS = sorted(set(re.findall(r"`((?:[\w-]+/)+(?:[\w-]+\.\w+)?)`", PAGE)))
TWO_PAGES = 1_200


def test_every_room_is_described_and_stands_below_what_may_import_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each.get("containers") == ["scope_selfplay"])
    height = {name: row for row, names in enumerate(reversed(layers)) for name in names.split(" | ")}
    order = [height.pop(room) for room in ROOMS]
    assert order == sorted(order)
    assert set(height) == {"testing", "cli", "__main__"}


@pytest.mark.parametrize("station", STATIONS)
def test_every_station_of_the_main_path_is_there(station: str) -> None:
    room, module, *names = station.split(".")
    node: ast.AST = ast.parse((LIBRARY / room / f"{module}.py").read_text())
    for name in names:
        node = next(each for each in ast.walk(node) if getattr(each, "name", None) == name)


@pytest.mark.parametrize("path", PATHS)
def test_every_path_exists(path: str) -> None:
    assert (ROOT / path).exists() or (LIBRARY / path).exists(), path


def test_the_page_fits_on_two() -> None:
    assert len(STATIONS) == 7 and len(PAGE.split()) <= TWO_PAGES
