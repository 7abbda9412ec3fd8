import ast
from pathlib import Path

import scope_selfplay.ranking

ALLOWED = {"scope_selfplay.schemas", "scope_selfplay.errors", "scope_selfplay.ranking", "numpy"}
STANDARD = {"asyncio", "collections", "dataclasses", "functools", "itertools", "math", "random", "typing"}


def test_ranking_knows_numbers_and_no_judge() -> None:
    modules = sorted(Path(scope_selfplay.ranking.__file__).parent.glob("*.py"))
    assert len(modules) > 5
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                known = name.split(".")[0] in STANDARD or any(
                    f"{name}.".startswith(f"{own}.") for own in ALLOWED
                )
                assert known, f"{module.name} imports {name}"
