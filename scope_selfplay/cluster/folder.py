"""A run's folder under `k8s/runs/`: whole objects as the controller makes its own, and kustomizations that put
components and a person's patches on them; and writing it without losing what a person changed.

shared/kustomization.yaml     the claim, accounts and policies of the namespace; applied once, and in no run's own
                              folder, so that deleting a run leaves the data and the others alone
setup/                        config, controller and prompt packs: what the run and its iterations share
kustomization.yaml            the whole run
iteration-NN/                 the controller for this iteration alone
prepare/, prepare/warm-start/ what the run needs on the volume before it starts: see `prepare`
evaluate/                     checkpoints on benchmarks, where cluster.evaluate names some
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.cluster.pods import (
    CLAIM,
    CONFIG_FOLDER,
    PORT,
    RUN,
    RUNS,
    Body,
    Component,
    Mount,
    Program,
    container_of,
    labels_of,
    named_object,
    pack_map,
    pod_template,
    run_mounts,
)
from scope_selfplay.cluster.prepare import evaluation_job, prepare_jobs
from scope_selfplay.config.cluster import ClusterConfig, PodConfig
from scope_selfplay.config.run import RunConfig
from scope_selfplay.prompts.folder import load_pack, pack_chain, pack_path, shipped_prompts
from scope_selfplay.run.begin import JUDGE_PACK, with_judge_prompts

SHARED = "shared"
_TOP = "../../.."
"""The folder that holds k8s/ and prompts/, seen from a run's folder."""
_WHOLE = ("namespace", "quota", "node-dns", "external-servers", "tool-servers", "tracking", "monitoring")
"""Components that are no run's own: what they bring, the namespace has once."""
_PARTS = {"single-node": "single-node", "multi-node": "ranks"}
"""Components that change a run, and what of them belongs to all runs."""
_NOTES = {
    SHARED: "Apply this first, once for all runs of a namespace. Deleting it deletes the claim: the data of all runs.",
    "setup": "What the run and each of its iterations share: config, prompt packs, the controller.",
    "prepare": "After ../shared; `kubectl wait` for the Jobs with the label scope/prepares. For other models or files "
    "delete their Jobs, change run.yaml, render and apply again.",
    "prepare/warm-start": "With the base model and the trajectories on the volume. The run starts from what it writes.",
    "evaluate": "While the run goes on, or with other servers. For other checkpoints delete the Job, render and apply.",
}


@dataclass(frozen=True)
class RunFolderLayout:
    """Which packs and components a run's folder refers to."""

    packs: Sequence[str] = ()
    """Prompt packs below prompts/: the run's own and all that they extend."""
    components: Sequence[str] = ()
    """Components below k8s/components/; one with a slash in it is a path from setup/ and stays as it is."""

    @property
    def namespace(self) -> str | None:
        """The namespace that the run's objects name, as k8s/components/namespace brings it; else the context's."""
        return "scope" if "namespace" in self.components else None

    def paths(self, names: Sequence[str], *, up: int) -> list[str]:
        """Paths of components, from a folder `up` levels below the run's."""
        top = f"{'../' * up}{_TOP}/k8s/components"
        return [name if "/" in name else f"{top}/{name}" for name in names]


def run_folder(config: RunConfig, run_yaml: str, layout: RunFolderLayout) -> dict[str, str]:
    """Every file of the run's folder by its path there; `run_yaml` is the config as its author wrote it. Pure."""
    files = {
        "setup/run.yaml": run_yaml,
        "setup/controller.yaml": yaml_text(controller_job(config, layout.packs)),
        "setup/kustomization.yaml": _kustomization("setup", _setup(config, layout)),
        "kustomization.yaml": _kustomization("", {"components": ["setup"]}),
        f"{SHARED}/kustomization.yaml": _kustomization(SHARED, _shared(config.cluster, layout)),
    }
    for iteration in range(1, config.iterations + 1):
        patches = [_only_iteration(config.name, f"{iteration:02d}")]
        body = {"components": ["../setup"], "patches": patches}
        files[f"iteration-{iteration:02d}/kustomization.yaml"] = _kustomization("", body)
    by_hand = prepare_jobs(config)
    if config.cluster.evaluate is not None:
        by_hand["evaluate"] = [evaluation_job(config, config.cluster.evaluate)]
    for place, jobs in by_hand.items():
        files[f"{place}/jobs.yaml"] = "---\n".join(map(yaml_text, jobs))
        # The others change what only a running run has.
        components = [name for name in layout.components if name == "single-node"]
        files[f"{place}/kustomization.yaml"] = _kustomization(
            place,
            {
                "namespace": layout.namespace,
                "resources": ["jobs.yaml"],
                "components": layout.paths(components, up=place.count("/") + 1),
            },
        )
    return files


def _kustomization(place: str, parts: Body) -> str:
    """A kustomization's text, without what is empty."""
    kind, version = ("Component", "v1alpha1") if place == "setup" else ("Kustomization", "v1beta1")
    head = {"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind}
    text = yaml_text({**head, **{name: value for name, value in parts.items() if value}})
    return f"# {_NOTES[place]}\n{text}" if place else text


def _setup(config: RunConfig, layout: RunFolderLayout) -> Body:
    labels = {"app.kubernetes.io/name": "scope-selfplay", RUN: config.name}
    return {
        "namespace": layout.namespace,
        "resources": ["controller.yaml", *(f"../{_TOP}/prompts/{pack}" for pack in layout.packs)],
        "configMapGenerator": [
            {
                "name": f"{config.name}-config",
                "files": ["run.yaml"],
                "options": {"labels": labels, "disableNameSuffixHash": True},
            }
        ],
        "components": layout.paths([name for name in layout.components if name not in _WHOLE], up=1),
        # Packs have the run's own name: newer prompts of one run are no other run's.
        "patches": [
            _renamed(
                "ConfigMap", f"prompts-{pack}", pack_map(config.name, pack), ("/metadata/labels", labels)
            )
            for pack in layout.packs
        ],
    }


def _only_iteration(run: str, number: str) -> Body:
    label, arguments = "metadata/labels/scope~1iteration", "/spec/template/spec/containers/0/args/-"
    changes = [(f"/{label}", number), (f"/spec/template/{label}", number)]
    changes += [(arguments, "--only-iteration"), (arguments, number)]
    return _renamed("Job", f"{run}-controller", f"{run}-i{number}-controller", *changes)


def _renamed(kind: str, name: str, new: str, *added: tuple[str, Any]) -> Body:
    """The patch that gives an object another name, and values at more paths."""
    changes = [
        {"op": "replace", "path": "/metadata/name", "value": new},
        *({"op": "add", "path": path, "value": value} for path, value in added),
    ]
    options = {"allowNameChange": True}
    return {"target": {"kind": kind, "name": name}, "patch": yaml_text(changes), "options": options}


def _shared(cluster: ClusterConfig, layout: RunFolderLayout) -> Body:
    """What all runs have; the claim is what the first run that is applied says of it, or exists already."""
    names = [name for name in layout.components if name in _WHOLE]
    names += [_PARTS[name] for name in layout.components if name in _PARTS]
    claim: Body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM}}
    own = claim | ({"spec": cluster.claim} if cluster.volume_claim == CLAIM else {"$patch": "delete"})
    return {
        "resources": [f"../{_TOP}/k8s/shared"],
        "components": layout.paths(names, up=1),
        "patches": [{"patch": yaml_text(own)}] if cluster.claim or "spec" not in own else [],
    }


def controller_job(config: RunConfig, packs: Sequence[str]) -> Body:
    """The Job that drives a run, and owns all that it creates; it may be stopped and applied again at any time. Pure.

    Failures of stages are counted by the controller itself; the Job counts its crashes, and ends with the run, also
    with one that failed for good (exit 64 or 70). The controller gives it a deadline (`driver.loop`).
    """
    name, cluster = f"{config.name}-controller", config.cluster
    labels = labels_of(config, Component.CONTROLLER)
    # The token expires, and only this pod has one. What has a default is written out: the list is compared as a whole,
    # and every apply would be a change.
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    mounts = run_mounts(config, packs)
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    token = Mount("token", {"projected": {"sources": sources}}, account)
    arguments = ["--config", f"{CONFIG_FOLDER}/run.yaml", "--root", RUNS, "--metrics", str(PORT)]
    resources = {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    extra: Body = {
        "args": arguments,
        # For Prometheus; no policy lets anybody in without the component monitoring.
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": resources,
    }
    job: Body = {"fieldRef": {"fieldPath": "metadata.labels['job-name']"}}
    command = ["python", "-m", "jobs", "run-controller"]
    program = Program(cluster.images.worker, command, PodConfig(), {"SCOPE_JOB": job}, extra)
    template = pod_template(cluster, program, labels, [*mounts, token], stays=False)
    template["spec"]["serviceAccountName"] = "scope-controller"
    if cluster.tiny and cluster.retriever.serve:
        # A small world's index is made in seconds, before the controller starts. The larger request of both containers
        # is held for as long as the controller lives: no more than its own.
        given = {"args": [f"{CONFIG_FOLDER}/run.yaml", cluster.retriever.index], "resources": resources}
        index = Program(cluster.images.worker, ["scope", "index", "build"], PodConfig(), extra=given)
        before = container_of(cluster, index, (), name="index")
        mounted = template["spec"]["containers"][0]["volumeMounts"]
        before["volumeMounts"] = [each for each in mounted if each["name"] != "token"]
        template["spec"]["initContainers"] = [*template["spec"].get("initContainers", ()), before]
    codes = {"containerName": "main", "operator": "In", "values": [64, 70]}
    rules = [
        {"action": "FailJob", "onExitCodes": codes},
        # Drains and lost nodes are not counted.
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    spec = {"backoffLimit": 100, "podFailurePolicy": {"rules": rules}, "template": template}
    return {**named_object("Job", name, labels), "spec": spec}


def shipped_kustomize() -> Path:
    """`k8s/` of a checkout, or of an installed wheel."""
    package = Path(__file__).parent.parent
    checkout = package.parent / "k8s"
    return checkout if (checkout / "shared").is_dir() else package / "kustomize"


def packs_needed(config: RunConfig) -> list[str]:
    """The run's pack and all that it extends; a model judge's too, where the run's own pack lacks its prompts."""
    own = pack_path(config.domain)
    names = pack_chain(own)
    pack = load_pack(own)
    if with_judge_prompts(pack, config.judge) != pack:
        names += pack_chain(pack_path(JUDGE_PACK))
    return sorted(set(names))


def copy_shared_parts(top: Path, packs: list[str]) -> None:
    """Put the shared parts and the packs below `top`, where they are not there already."""
    for part in ("components", "shared"):
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
    return [*own, *(name for name in shared if name not in own and name not in _PARTS.values())]


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


def yaml_text(body: Any) -> str:
    return yaml.dump(body, Dumper=_Dumper, sort_keys=False, width=110)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stay readable; every text that YAML could read as something else is quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# What some reader of YAML takes for a number or a truth value, and PyYAML does not: 1e3, 0o17, 12_000, y.
_DOUBTFUL = re.compile(r"[-+.]?[0-9].*|y|n|Y|N|~|=|\.inf|\.nan", re.IGNORECASE)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if _DOUBTFUL.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
