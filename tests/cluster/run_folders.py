"""Folders of runs that fit the node of the tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from scope_selfplay.cluster.folder import (
    RunFolderLayout,
    copy_shared_parts,
    packs_needed,
    run_folder,
    write_folder,
)
from scope_selfplay.config.load import load_config
from tests.cluster.conftest import fit_to_server


def write_run(
    top: Path, settings: dict[str, Any], *, small: Sequence[str], components: Sequence[str] = ()
) -> Path:
    """The folder to apply of the run `tiny` with these settings, which lie in `top` as run.yaml; containers of its
    controller's pod that are named in `small` ask for little.
    """
    text = yaml.safe_dump(settings)
    (top / "run.yaml").write_text(text)
    config = load_config(top / "run.yaml")
    packs = packs_needed(config)
    copy_shared_parts(top, packs)
    folder = top / "k8s" / "runs" / "tiny"
    layout = RunFolderLayout(components=tuple(components), packs=packs)
    write_folder(folder, run_folder(config, text, layout), force=True)
    fit_to_server(folder)
    overlay = folder.with_name("small")
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(_small_controller(small)))
    return overlay


def _small_controller(kinds: Sequence[str]) -> dict[str, Any]:
    """An overlay of the run's folder: a node of two cores has no room for what the base asks for."""
    patch = [
        {"op": "replace", "path": f"/spec/template/spec/{each}/0/resources/requests/cpu", "value": "100m"}
        for each in kinds
    ]
    patched = {"target": {"kind": "Job", "name": "tiny-controller"}, "patch": yaml.safe_dump(patch)}
    return {"resources": ["../tiny"], "patches": [patched]}
