"""Run folders of the repository, each rendered once, and a `kubectl` that answers from files."""

import json
import os
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from scope_selfplay.cluster.check import (
    RunCheck,
    applied_objects,
    check_cluster,
    check_folder,
    config_of,
    packs_of,
)
from scope_selfplay.cluster.folder import layout_of, run_folder, vendored_files, write_folder
from scope_selfplay.cluster.kubectl import Body, Kubectl, kustomize
from scope_selfplay.cluster.objects import planned_objects
from scope_selfplay.config.load import load_config

REPOSITORY = Path(__file__).parents[3]
QWEN, TINY, ONE_GPU = (REPOSITORY / "k8s/runs" / name for name in ("qwen3-8b", "tiny", "one-gpu"))
RUNS = sorted(each.parent for each in REPOSITORY.glob("k8s/runs/*/kustomization.yaml"))
PRESETS = sorted(REPOSITORY.glob("k8s/presets/*.yaml"))


@cache
def rendered(folder: Path) -> list[Body]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: manifests cannot be rendered")
    return kustomize(folder)


@cache
def applied(folder: Path) -> list[Body]:
    """A run's folder, and before it what its namespace shares."""
    rendered(folder)
    return applied_objects(folder)


def everything_of(folder: Path) -> list[Body]:
    """What a person applies, all folders of a run, and what its controller will create."""
    given = applied(folder)
    parts = [each for each in (folder / "prepare", folder / "prepare/warm-start") if each.is_dir()]
    config = config_of(given, folder)
    planned = planned_objects(config, packs_of(given, config.name))
    return [*given, *(body for part in parts for body in rendered(part)), *planned]


def text_of(source: Path, **changes: Any) -> str:
    """The settings of a run's folder or a preset with these changed, as YAML; `cluster__judge` is the one within the
    group."""
    run = yaml.safe_load((source / "setup" / "run.yaml" if source.is_dir() else source).read_text())
    for name, value in changes.items():
        *way, last = name.split("__")
        place = run
        for step in way:
            place = place.setdefault(step, {})
        place[last] = value
    return yaml.safe_dump(run)


def with_components(
    top: Path, source: Path, *components: str, text: str | None = None, **changes: Any
) -> Path:
    """A run's folder, rendered anew with these components, and with other settings."""
    top.mkdir(exist_ok=True)
    text = text or text_of(source, **changes)
    (top / "run.yaml").write_text(text)
    config = load_config(top / "run.yaml")
    write_folder(top, vendored_files(config), force=True)
    place = Path("k8s", "runs", config.name)
    files = run_folder(config, text, layout_of(top / place, config, components))
    write_folder(top, {f"{place}/{name}": content for name, content in files.items()}, force=False)
    return top / place


def plain(name: str) -> str:
    """An object's name without the hash of a controller's content."""
    return re.sub(r"(?<=-controller)-[0-9a-f]{8}$", "", name)


def problems_of(top: Path, source: Path, *components: str, **changes: Any) -> dict[str, str]:
    """What `scope k8s check` finds wrong with it: where, and what."""
    found = check_folder(with_components(top, source, *components, **changes)).problems
    assert len({problem.where for problem in found}) == len(found)
    return {problem.where: problem.what for problem in found}


def cluster_check(folder: Path) -> RunCheck:
    return check_cluster(check_folder(folder), folder, Kubectl())


_KUBECTL = """#!/bin/sh
case "$*" in
kustomize*) exec {kubectl} "$@" ;;
*apply*) exit 0 ;;
*version*) cat {folder}/version.json 2>/dev/null || echo '{{"serverVersion": {{"gitVersion": "v1.30.0"}}}}' ;;
*can-i*) echo yes ;;
*all-namespaces*) cat {folder}/everywhere.json 2>/dev/null && exit 0
    echo 'Error from server (Forbidden): pods is forbidden at the cluster scope' >&2
    exit 1 ;;
*ignore-not-found*)
    name=$(echo "$*" | sed 's/.*get \\([a-z]*\\)[a-z0-9.-]* \\([a-z0-9-]*\\).*/\\1.\\2/')
    cat {folder}/$name.json 2>/dev/null
    exit 0 ;;
*get*)
    kind=$(echo "$*" | sed 's/.*get \\([a-z]*\\).*/\\1/')
    cat {folder}/$kind.json 2>/dev/null && exit 0
    echo "Error from server (Forbidden): $kind is forbidden: User \\"me\\" cannot list resource" >&2
    exit 1 ;;
esac
"""


def take_as_kubectl(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "bin" / "kubectl"
    file.parent.mkdir()
    file.write_text(program)
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{file.parent}:{os.environ['PATH']}")


class Answers:
    """What the cluster has; a kind that was never given is one that this user may not list."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def give(self, kind: str, *items: dict[str, Any]) -> None:
        (self._folder / f"{kind}.json").write_text(json.dumps({"items": items}))

    def give_one(self, kind: str, name: str, item: dict[str, Any]) -> None:
        (self._folder / f"{kind}.{name}.json").write_text(json.dumps(item))

    def run_version(self, version: str) -> None:
        (self._folder / "version.json").write_text(json.dumps({"serverVersion": {"gitVersion": version}}))


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed: manifests cannot be rendered")
    take_as_kubectl(_KUBECTL.format(kubectl=kubectl, folder=tmp_path), tmp_path, monkeypatch)
    found = Answers(tmp_path)
    # The key that the paper-scale runs name.
    found.give_one("secrets", "servers", {"data": {"token": "eA=="}})
    return found
