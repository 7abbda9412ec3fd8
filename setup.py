"""The wheel carries what lives at the top of the checkout: prompt packs as `scope_selfplay/prompt_packs`, the shared
parts of `k8s/` as `scope_selfplay/kustomize`, and the README with links into the repository."""

import re
import tomllib
from pathlib import Path

from setuptools import find_namespace_packages, setup

PACKS = sorted(path.parent.name for path in Path("prompts").glob("*/domain.yaml"))
HOME = "scope_selfplay.prompt_packs"
KUSTOMIZE = "scope_selfplay.kustomize"
FOLDERS = [Path("k8s", name) for name in ("clusters", "components", "images", "presets", "shared")]
PLACES = [*FOLDERS, *FOLDERS[0].iterdir()]
DATA = [".".join((KUSTOMIZE, *path.parts[1:])) for path in PLACES if path.name.isidentifier()]
"""Folders that setuptools takes for packages, since their names could be."""
REPOSITORY = tomllib.loads(Path("pyproject.toml").read_text())["project"]["urls"]["Repository"]
PICTURES = re.sub(
    r"(!\[[^\]]*\]\()(?!https?:)", rf"\1{REPOSITORY}/raw/main/", Path("README.md").read_text("utf-8")
)
README = re.sub(r"(\]\()(?!https?:|#)", rf"\1{REPOSITORY}/blob/main/", PICTURES)

setup(
    long_description=README,
    long_description_content_type="text/markdown",
    packages=[
        *find_namespace_packages(
            include=["scope_selfplay*", "retrieval*", "jobs*"], exclude=["*.__pycache__"]
        ),
        HOME,
        KUSTOMIZE,
        *DATA,
        *(f"{HOME}.{pack}" for pack in PACKS),
    ],
    package_dir={
        HOME: "prompts",
        KUSTOMIZE: "k8s",
        **{f"{HOME}.{pack}": f"prompts/{pack}" for pack in PACKS},
    },
    package_data={
        KUSTOMIZE: [
            "components/**/*.yaml",
            "components/*/*.json",
            "shared/*.yaml",
            "presets/*.yaml",
            "clusters/*.yaml",
            "images/*",
        ],
        "scope_selfplay.report": ["templates/*", "static/*"],
        "scope_selfplay": ["py.typed", "embedded/run.yaml", "embedded/policy/*", "schemas/*.json"],
        "retrieval": ["py.typed"],
        "jobs": ["py.typed"],
        **{f"{HOME}.{pack}": ["*.md", "*.yaml"] for pack in PACKS},
    },
)
