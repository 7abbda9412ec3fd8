"""A `site-packages` of exactly what an extra installs: links to what is installed here, and nothing else beside it."""

import importlib.metadata
import os
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "scope-selfplay"
REPOSITORY = Path(__file__).parents[1]


def requirements_of(*extras: str) -> set[str]:
    """Canonical names of all that `pip install scope-selfplay[extras]` brings, the project itself left out."""
    open_, seen = [(PROJECT, frozenset(extras))], set[tuple[str, frozenset[str]]]()
    while open_:
        asked = open_.pop()
        if asked in seen:
            continue
        seen.add(asked)
        for line in _requires(asked[0]):
            requirement = Requirement(line)
            if _holds(requirement, asked[1]):
                open_.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in seen} - {PROJECT}


def _requires(name: str) -> list[str]:
    """From pyproject.toml for the project: what is installed of it may be older than the file."""
    if name != PROJECT:
        return importlib.metadata.requires(name) or []
    import tomllib

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    optional: dict[str, list[str]] = project["optional-dependencies"]
    own = [f"{_with_marker(line, extra)}" for extra, lines in optional.items() for line in lines]
    return [*project["dependencies"], *own]


def _with_marker(line: str, extra: str) -> str:
    requirement, _, marker = line.partition(";")
    return f"{requirement.strip()} ; extra == '{extra}'" + (f" and ({marker.strip()})" if marker else "")


def _holds(requirement: Requirement, extras: Iterable[str]) -> bool:
    return requirement.marker is None or any(
        requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras}
    )


def site_of(names: Iterable[str], target: Path) -> Path:
    """Links to the packages of these distributions, metadata included, so that nothing else can be imported."""
    target.mkdir(parents=True)
    for name in names:
        distribution = importlib.metadata.distribution(name)
        tops = {
            file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")
        }
        for top in tops:
            link = target / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))
    return target


def environment_of(site: Path) -> dict[str, str]:
    """For an interpreter that is started with `-S`: this checkout, `site`, and no other package."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "OMP_NUM_THREADS") if name in os.environ}
    return kept | {"PYTHONPATH": f"{REPOSITORY}:{site}", "HF_HUB_OFFLINE": "1"}
