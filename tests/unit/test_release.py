"""A release has one version, wherever it stands."""

import re
import tomllib
from pathlib import Path

import yaml

from scope_selfplay import __version__

REPOSITORY = Path(__file__).parents[2]


def test_project_citation_and_changelog_name_the_version() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    headings = re.findall(r"^## (\S+)", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert project["version"] == citation["version"] == __version__
    assert headings[:2] == ["Unreleased", __version__]
    assert citation["repository-code"] == project["urls"]["Repository"]


def test_the_kept_run_of_the_newest_release_is_this_one() -> None:
    kept = sorted(
        path.name.removesuffix(".tar.xz") for path in (REPOSITORY / "tests/fixtures/runs").iterdir()
    )
    assert kept[-1] == __version__
