"""The measures of the house: how large the code may be, and what it must not contain."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import click
import pytest

from scope_selfplay.cli import cli

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("scope_selfplay", "retrieval", "jobs")
BUDGETS = {
    "library lines": 55_113,
    "library files": 222,
    "test lines": 38_711,
    "benchmark lines": 5_768,
    "words by hand": 30_698,
    "settings": 192,
    "commands": 44,
    "training lines": 2_448,
    "training files": 9,
    "training/loop.py lines": 291,
}
"""What is agreed for the house; these numbers only fall."""
WRITTEN_BY_PROGRAMS = re.compile(r"<!-- (\S+) -->.*?<!-- /\1 -->", re.DOTALL)
"""Result tables of benchmarks between two marks (benchmarks.markdown): of README.md, docs/operate/reliability.md and
docs/how/evidence/*.md."""
TRAINING = Path("scope_selfplay", "training")
LONGEST_FILE, LONGEST_FUNCTION = 500, 60
NAMEDTUPLE_API = {"_replace", "_asdict", "_fields", "_make"}
OF_OTHERS = {"os._exit"}
"""Python's own."""


@cache
def texts() -> Mapping[Path, str]:
    files = (path for package in PACKAGES for path in sorted((REPOSITORY / package).rglob("*.py")))
    return {path.relative_to(REPOSITORY): path.read_text(encoding="utf-8") for path in files}


@cache
def trees() -> Mapping[Path, ast.Module]:
    return {path: ast.parse(text) for path, text in texts().items()}


def functions() -> Iterator[tuple[int, str]]:
    """The length of every function, with its place."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                yield node.end_lineno - node.lineno + 1, f"{path}:{node.lineno} {node.name}"


@pytest.mark.parametrize("measure", BUDGETS)
def test_the_house_is_no_larger_than_agreed(measure: str) -> None:
    assert sizes()[measure] <= BUDGETS[measure]


@cache
def sizes() -> Mapping[str, int]:
    """`words by hand` are those of README.md and docs/**/*.md, without what programs write: tables of results, and of
    docs/look-up/settings.md all rows (tests.configuration_page); `settings` are these rows. `commands` have no commands
    below them.
    """
    lines = {path: len(text.splitlines()) for path, text in texts().items()}
    training = {
        path.name: count
        for path, count in lines.items()
        if path.parent == TRAINING and path.name != "lint.py"
    }
    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    by_hand = {page: WRITTEN_BY_PROGRAMS.sub("", page.read_text(encoding="utf-8")) for page in pages}
    rows = re.findall(r"^\|.*$", by_hand[REPOSITORY / "docs" / "look-up" / "settings.md"], re.MULTILINE)
    return {
        "library lines": sum(lines.values()),
        "library files": len(lines),
        "test lines": _lines_below("tests"),
        "benchmark lines": _lines_below("benchmarks"),
        "words by hand": sum(map(_words, by_hand.values())) - sum(map(_words, rows)),
        "settings": sum(row.startswith("| `") for row in rows),
        "commands": _commands(cli, click.Context(cli)),
        "training lines": sum(training.values()),
        "training files": len(training) - 1,
        "training/loop.py lines": training["loop.py"],
    }


def _lines_below(folder: str) -> int:
    files = (REPOSITORY / folder).rglob("*.py")
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def _words(text: str) -> int:
    return len(text.split())


def _commands(command: click.Command, context: click.Context) -> int:
    if not isinstance(command, click.Group):
        return 1
    below = (command.get_command(context, name) for name in command.list_commands(context))
    return sum(_commands(each, context) for each in below if each is not None)


def test_no_file_is_longer_than_500_lines() -> None:
    assert [str(path) for path, text in texts().items() if len(text.splitlines()) > LONGEST_FILE] == []


def test_no_function_is_longer_than_60_lines() -> None:
    assert [place for length, place in functions() if length > LONGEST_FUNCTION] == []


IMPORTED = {
    "model.py": {
        *("StateDictOptions", "set_model_state_dict", "init_device_mesh"),
        *("CPUOffloadPolicy", "MixedPrecisionPolicy", "fully_shard"),
    },
    "checkpoint.py": {"CheckpointException", "load", "save"},
}
"""All that files of training but ranks.py take from torch.distributed: for weights, and for parts of checkpoints."""


def test_beside_ranks_only_weights_and_parts_of_checkpoints_make_ranks_wait_for_each_other() -> None:
    gathering = {path for path, text in texts().items() if re.search(r"\.(full_tensor|redistribute)\(", text)}
    assert gathering == {TRAINING / "model.py"}
    for name, names in IMPORTED.items():
        froms = [each for each in ast.walk(trees()[TRAINING / name]) if isinstance(each, ast.ImportFrom)]
        taken = [each for each in froms if (each.module or "").startswith("torch.distributed")]
        assert {alias.name for each in taken for alias in each.names} == names
        assert "torch.distributed." not in re.sub("from torch.distributed.*", "", texts()[TRAINING / name])


def test_no_class_name_is_defined_twice() -> None:
    names = Counter(
        node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    TopologicalSorter(imports()).prepare()


def imports() -> dict[str, set[str]]:
    """Module -> the modules of our packages that it imports, also within functions; types alone do not count."""
    modules = {_module_name(path): tree for path, tree in trees().items()}
    return {
        name: {found for node in _runtime_nodes(tree) for found in _imported(node, modules) if found != name}
        for name, tree in modules.items()
    }


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those below `if TYPE_CHECKING`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if (
            isinstance(child, ast.If)
            and isinstance(child.test, ast.Name)
            and child.test.id == "TYPE_CHECKING"
        ):
            continue
        yield from _runtime_nodes(child)


def _imported(node: ast.AST, modules: Mapping[str, object]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        assert node.level == 0, "imports are absolute"
        for alias in node.names:
            submodule = f"{node.module}.{alias.name}"
            if submodule in modules:
                yield submodule
            elif node.module in modules:
                yield node.module


PRIVATE = [
    ("from scope_selfplay.run.run import _open", ["_open"]),
    ("engine._cache.clear()", ["engine._cache"]),
    ("monkeypatch.setattr(generation, '_WAIT', 1)", ["_WAIT"]),
    ("from __future__ import annotations\nself._own, row._replace(a=1), thing.__class__", []),
]


@pytest.mark.parametrize(("code", "found"), PRIVATE)
def test_a_private_name_is_found(code: str, found: list[str]) -> None:
    assert [name for _, name in private_names(ast.parse(code))] == found


def test_no_test_uses_a_private_name_of_the_code() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{line} {name}"
        for path in sorted((REPOSITORY / "tests").rglob("*.py"))
        for line, name in private_names(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def private_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Private names that a file imports, patches, or takes from what is not its own `self` or `cls`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, alias.name) for alias in node.names if _is_private(alias.name))
        elif isinstance(node, ast.Attribute) and _is_private(node.attr):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if owner not in ("self", "cls") and ast.unparse(node) not in OF_OTHERS:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            yield from ((node.lineno, str(name)) for name in names if _is_private(str(name)))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMEDTUPLE_API
