"""A run's folder under `k8s/runs/`: its files, always through a YAML dumper, and writing them without losing what a
person changed.

shared/kustomization.yaml                   the claim, accounts and policies of the namespace: see `shared`
setup/run.yaml, setup/kustomization.yaml    config, prompt packs, images: what every Job of the run needs
kustomization.yaml                          the whole run
iteration-NN/kustomization.yaml             the controller for this iteration alone
viewer/kustomization.yaml                   its web page
evaluate/kustomization.yaml                 checkpoints on benchmarks, where cluster.evaluate names some
prepare/.../kustomization.yaml              what the run needs on the volume before it starts: see `prepare`
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.manifests import CONFIG_FOLDER, PROMPTS_FOLDER, pack_map
from scope_selfplay.errors import ConfigError
from scope_selfplay.k8s.evaluate import evaluate_files
from scope_selfplay.k8s.patches import (
    API,
    CONTAINER,
    IMAGE,
    POD,
    TOP,
    Body,
    RunFolderLayout,
    add,
    image_parts,
    merge_patches,
    patch,
    pod_changes,
    replace,
    yaml_text,
)
from scope_selfplay.k8s.prepare import prepare_files
from scope_selfplay.k8s.shared import SHARED, all_components, namespace_of, own_components, shared_files
from scope_selfplay.k8s.viewer import viewer_files
from scope_selfplay.prompts import load_pack
from scope_selfplay.prompts.folder import pack_chain, pack_path, shipped_prompts
from scope_selfplay.run_directory import with_judge_prompts

_SETUP_NOTE = (
    "# What every Job of the run needs: config, prompt packs, images. The run and its iterations share it.\n"
)
_POD_LABELS = f"{POD.removesuffix('/spec')}/metadata/labels"


def run_folder(config: RunConfig, run_yaml: str, layout: RunFolderLayout) -> dict[str, str]:
    """Every file of the run's folder by its path there; `run_yaml` is the config as its author wrote it. Pure."""
    renamed = replace("/metadata/name", f"{config.name}-controller")
    files = {
        "setup/run.yaml": run_yaml,
        "setup/kustomization.yaml": _SETUP_NOTE + yaml_text(_setup(config, layout)),
        "kustomization.yaml": yaml_text(_controller(f"{TOP}/k8s/base", "setup", [renamed])),
    }
    for iteration in range(1, config.iterations + 1):
        number = f"{iteration:02d}"
        changes = [
            replace("/metadata/name", f"{config.name}-i{number}-controller"),
            add("/metadata/labels/scope~1iteration", number),
            add(f"{_POD_LABELS}/scope~1iteration", number),
            add(f"{CONTAINER}/args/-", "--only-iteration"),
            add(f"{CONTAINER}/args/-", number),
        ]
        body = _controller(f"../{TOP}/k8s/base", "../setup", changes)
        files[f"iteration-{number}/kustomization.yaml"] = yaml_text(body)
    optional = evaluate_files(config, layout) | viewer_files(config, layout)
    return files | shared_files(config, layout) | prepare_files(config, layout) | optional


def _controller(base: str, component: str, changes: Sequence[Body]) -> Body:
    """The kustomization of a controller: the base's, with the run's setup and these changes."""
    return {
        "apiVersion": f"{API}/v1beta1",
        "kind": "Kustomization",
        "resources": [base],
        "components": [component],
        "patches": [patch("Job", "controller", changes) | {"options": {"allowNameChange": True}}],
    }


def _setup(config: RunConfig, layout: RunFolderLayout) -> Body:
    """The component that makes the base's controller this run's."""
    labels = {"app.kubernetes.io/name": IMAGE, "scope/run": config.name}
    body: Body = {
        "apiVersion": f"{API}/v1alpha1",
        "kind": "Component",
        "namespace": namespace_of(layout),
        "resources": [f"../{TOP}/prompts/{pack}" for pack in layout.packs],
        "configMapGenerator": [
            {
                "name": f"{config.name}-config",
                "files": ["run.yaml"],
                "options": {"labels": labels, "disableNameSuffixHash": True},
            }
        ],
        "components": [layout.component(name, up=1) for name in own_components(layout)],
        "images": [{"name": IMAGE, **image_parts(config.cluster.images.worker)}],
        "patches": [
            patch("Job", "controller", _controller_changes(config, layout)),
            *(_own_prompts(config.name, pack, labels) for pack in layout.packs),
            *merge_patches(config.cluster, "controller"),
        ],
    }
    return {name: value for name, value in body.items() if value}


def _own_prompts(run: str, pack: str, labels: Mapping[str, str]) -> Body:
    """The pack under the run's own name: newer prompts of one run are no other run's."""
    changes = [replace("/metadata/name", pack_map(run, pack)), add("/metadata/labels", dict(labels))]
    return patch("ConfigMap", f"prompts-{pack}", changes) | {"options": {"allowNameChange": True}}


def _controller_changes(config: RunConfig, layout: RunFolderLayout) -> list[Body]:
    cluster = config.cluster
    labels = [add(f"{labels}/scope~1run", config.name) for labels in ("/metadata/labels", _POD_LABELS)]
    changes = [*labels, replace(f"{POD}/volumes/2/configMap/name", f"{config.name}-config")]
    for pack in layout.packs:
        name = f"prompts-{pack}"
        mount = {"name": name, "mountPath": f"{PROMPTS_FOLDER}/{pack}", "readOnly": True}
        source = {"configMap": {"name": pack_map(config.name, pack)}}
        changes.append(add(f"{POD}/volumes/-", {"name": name, **source}))
        changes.append(add(f"{CONTAINER}/volumeMounts/-", mount))
    changes += pod_changes(cluster)
    if cluster.tiny and cluster.retriever.serve:
        changes.append(add(f"{POD}/initContainers", [_index_container(config)]))
    return changes


def _index_container(config: RunConfig) -> Body:
    """A small world's index is made in seconds, before the controller starts."""
    volumes = config.cluster.volumes
    extra = [{"name": volume.name, "mountPath": volume.path, "readOnly": True} for volume in volumes]
    return {
        "name": "index",
        "image": IMAGE,
        "command": ["python", "-m", "jobs.build_index"],
        "args": ["--config", f"{CONFIG_FOLDER}/run.yaml", "--index", config.cluster.retriever.index],
        "env": [{"name": "HF_HUB_OFFLINE", "value": "1"}, {"name": "HOME", "value": "/tmp"}],
        # The larger request of both containers is held for as long as the controller lives: no more than its own.
        "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "run", "mountPath": CONFIG_FOLDER, "readOnly": True},
            *extra,
        ],
    }


def shipped_kustomize() -> Path:
    """`k8s/` of a checkout, or of an installed wheel."""
    package = Path(__file__).parent.parent
    checkout = package.parent / "k8s"
    return checkout if (checkout / "base").is_dir() else package / "kustomize"


def packs_needed(config: RunConfig) -> list[str]:
    """The run's pack and all that it extends; a model judge's too, where the run's own pack lacks its prompts."""
    own = pack_path(config.domain)
    names = pack_chain(own)
    pack = load_pack(own)
    if with_judge_prompts(pack, config.judge) != pack:
        names += pack_chain(pack_path(config.judge.prompts))
    return sorted(set(names))


def copy_shared_parts(top: Path, packs: list[str]) -> None:
    """Put the shared parts and the packs below `top`, where they are not there already."""
    for part in ("base", "components", "evaluate", "prepare", "shared", "viewer"):
        if not (top / "k8s" / part).is_dir():
            shutil.copytree(shipped_kustomize() / part, top / "k8s" / part)
    for pack in packs:
        if not (top / "prompts" / pack).is_dir():
            shutil.copytree(
                shipped_prompts() / pack, top / "prompts" / pack, ignore=shutil.ignore_patterns("__*")
            )


def components_of(folder: Path) -> list[str]:
    """The components of a run's folder, as `--component` names them; none where there is no folder yet.

    Raises ConfigError for a kustomization that is not YAML.
    """
    own, shared = (_components_in(folder / part / "kustomization.yaml") for part in ("setup", SHARED))
    return all_components(own, shared)


def _components_in(file: Path) -> list[str]:
    try:
        setup = yaml.safe_load(_read(file) or "") or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from None
    listed = setup.get("components") if isinstance(setup, dict) else None
    shipped = r"\A(\.\./)+k8s/components/([^/]+)/?\Z"
    return [re.sub(shipped, r"\2", str(path)) for path in listed or []]


def link_config(folder: Path) -> None:
    """`run.yaml` in the run's folder is its config, where nothing else has that name."""
    link = folder / "run.yaml"
    if not link.exists() and not link.is_symlink():
        link.symlink_to(Path("setup") / "run.yaml")


def write_folder(folder: Path, files: Mapping[str, str], *, force: bool) -> list[Path]:
    """Write `files` below `folder`; returns those that are new or changed. Raises ConfigError before overwriting."""
    changed = {name: text for name, text in files.items() if _read(folder / name) != text}
    lost = [name for name in changed if (folder / name).exists()]
    if lost and not force:
        raise ConfigError(
            f"{folder}: {', '.join(lost)} differ from what this config gives; keep them, or replace them with --force"
        )
    for name, text in changed.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in changed]


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
