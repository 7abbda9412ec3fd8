"""`docs/architecture.md` stays true: its packages and their order, its journeys' calls, the files of its recipes."""

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
LIBRARY = ROOT / "scope_selfplay"


def section(title: str) -> str:
    """The text below a heading of the page, up to the next heading."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/architecture.md has no section {title!r}"
    return found[1]


def described() -> list[str]:
    return re.findall(r"^\| `([\w/]+)` \|", section("The packages, in reading order"), re.MULTILINE)


def journeys() -> list[tuple[str, str, str]]:
    """(journey, caller, callee) for every pair of neighbouring stops."""
    pairs = []
    titles = re.findall(r"^## (From .*)$", PAGE, re.MULTILINE)
    assert len(titles) == 4
    for title in titles:
        stops = re.findall(r"^(\d+)\. `([\w.]+)`", section(title), re.MULTILINE)
        assert len(stops) > 1, title
        # A list that begins at 1 again is another chain.
        pairs += [
            (title, caller, callee) for (_, caller), (number, callee) in pairwise(stops) if number != "1"
        ]
    return pairs


def definition_of(stop: str) -> tuple[Path, ast.AST]:
    """The file and the definition of `package.module.function` or `package.module.Class.method`."""
    parts = stop.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        base = LIBRARY.joinpath(*parts[:cut])
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                node: ast.AST = ast.parse(file.read_text())
                for name in parts[cut:]:
                    node = next(
                        child
                        for child in ast.walk(node)
                        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                        and child.name == name
                    )
                return file, node
    raise AssertionError(f"{stop}: no such module")


def names_in(node: ast.AST) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.Attribute):
            yield child.attr


@pytest.mark.parametrize(("journey", "caller", "callee"), journeys(), ids=lambda value: str(value))
def test_every_stop_of_a_journey_calls_the_next(journey: str, caller: str, callee: str) -> None:
    _, body = definition_of(caller)
    definition_of(callee)
    assert callee.rsplit(".", 1)[1] in set(names_in(body)), f"{journey}: {caller} does not name {callee}"


def test_every_package_and_module_is_described_once_in_reading_order() -> None:
    there = {
        path.stem if path.suffix else path.name
        for path in LIBRARY.iterdir()
        if (path.suffix == ".py" and path.name != "__init__.py") or (path / "__init__.py").is_file()
    }
    assert len(described()) == len(set(described()))
    assert set(described()) - {"retrieval", "jobs"} == there


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:[\w-]+/)+[\w.-]*)`", section("Recipes")))))
def test_every_file_of_a_recipe_exists(path: str) -> None:
    assert (ROOT / path).exists(), path


def test_the_reading_order_follows_the_enforced_layers() -> None:
    """A package stands below everything that it may import."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each.get("containers") == ["scope_selfplay"])
    height = {name: row for row, names in enumerate(reversed(layers)) for name in names.split(" | ")}
    order = [height[name] for name in described() if name in height]
    assert order == sorted(order)
