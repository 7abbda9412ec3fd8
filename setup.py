"""The wheel carries what lives at the top of the checkout: prompt packs as `scope_selfplay/prompt_packs`, the shared
parts of `k8s/` as `scope_selfplay/kustomize`."""

from pathlib import Path

from setuptools import find_packages, setup

PACKS = sorted(path.parent.name for path in Path("prompts").glob("*/domain.yaml"))
HOME = "scope_selfplay.prompt_packs"
KUSTOMIZE = "scope_selfplay.kustomize"

setup(
    packages=[
        *find_packages(include=["scope_selfplay*", "retrieval*", "jobs*"]),
        HOME,
        KUSTOMIZE,
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
            "images/*",
        ],
        "scope_selfplay.report": ["templates/*", "static/*"],
        "scope_selfplay": ["embedded/run.yaml", "embedded/policy/*", "rewards/*.yaml"],
        **{f"{HOME}.{pack}": ["*.md", "*.yaml"] for pack in PACKS},
    },
)
