"""Writes what a production run puts into its namespace, as files for a policy scanner.

    python -m tests.policy.manifests FOLDER

Every run folder, those of the presets, the prepare Jobs, and all that the controller creates; in a namespace and with
images by digest, as docs/operate/kubernetes.md has it for production.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from scope_selfplay.cluster.objects import pods_of
from tests.unit.k8s.conftest import PRESETS, RUNS, everything_of, with_components

DIGEST = "registry.example/scope-selfplay@sha256:" + "0" * 64


def production(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for body in objects:
        body["metadata"]["namespace"] = "scope"
        for subject in body.get("subjects") or []:
            subject["namespace"] = "scope"
    for pods in pods_of(objects):
        for container in pods.containers:
            container["image"] = DIGEST  # type: ignore[index]
    return objects


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    whole, scratch = {}, target.with_name("rendered")
    scratch.mkdir(exist_ok=True)
    for folder in (*RUNS, *(with_components(scratch / each.stem, each) for each in PRESETS)):
        whole[folder.name] = everything_of(folder)
    for name, objects in whole.items():
        (target / f"{name}.yaml").write_text(yaml.safe_dump_all(production(objects), sort_keys=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
