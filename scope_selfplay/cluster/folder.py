"""A run's folder under `k8s/runs/`: whole objects as the controller makes its own, and kustomizations that put
components and a person's patches on them; and writing it without losing what a person changed.

shared/kustomization.yaml     the claim, accounts and policies of the namespace; applied once, and in no run's own
                              folder, so that deleting a run leaves the data and the others alone
setup/                        config, controller and prompt packs: what the run and its iterations share
kustomization.yaml            the whole run
iteration-NN/                 the controller for this iteration alone
prepare/, prepare/warm-start/ what the run needs on the volume before it starts: see `prepare`
evaluate/                     checkpoints on benchmarks, where cluster.evaluate names some

They stand on a base, which is this package's own (`shipped_kustomize`) or, vendored, a copy beside the runs.
"""

import difflib
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from scope_selfplay import __version__
from scope_selfplay.base.errors import ConfigError
from scope_selfplay.cluster.objects import port_of
from scope_selfplay.cluster.pods import (
    CLAIM,
    CONFIG_FOLDER,
    PORT,
    RUNS,
    Body,
    Component,
    Label,
    Mount,
    Program,
    from_secrets,
    labels_of,
    name_by_content,
    named_object,
    pack_map,
    pod_template,
    run_mounts,
    way_out,
)
from scope_selfplay.cluster.prepare import evaluation_job, prepare_jobs
from scope_selfplay.cluster.stages import small_index
from scope_selfplay.config.cluster import ClusterConfig, PodConfig
from scope_selfplay.config.load import CLUSTER_FILE
from scope_selfplay.config.run import RunConfig
from scope_selfplay.prompts.folder import load_pack, pack_folders, pack_path
from scope_selfplay.run.begin import JUDGE_PACK, with_judge_prompts

SHARED = "shared"
RENDERED = "k8s/rendered.sha256"
"""Below TOP: which release wrote the files, and their hashes. What has another one by now was edited by a person."""
_WHOLE = (
    *("namespace", "quota", "node-dns", "external-servers", "tool-servers", "tracking", "monitoring"),
    *("ranks", "disruption-budgets"),
)
"""Components that are no run's own: what they bring, the namespace has once."""
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

    base: str
    """The folder that holds shared/ and components/, seen from the run's."""
    packs: Mapping[str, str]
    """Prompt packs and their folders, seen from the run's: its own and all that they extend."""
    components: Sequence[str] = ()
    """Components of the base; one with a slash in it is a path from setup/ and stays as it is."""
    cluster_yaml: str = ""
    """The values of the cluster, which all its runs share; empty where the run's config has them all."""

    @property
    def namespace(self) -> str | None:
        """The namespace that the run's objects name, as k8s/components/namespace brings it; else the context's."""
        return "scope" if "namespace" in self.components else None

    def paths(self, names: Sequence[str], *, up: int) -> list[str]:
        """Paths of components, from a folder `up` levels below the run's."""
        return [name if "/" in name else f"{'../' * up}{self.base}/components/{name}" for name in names]


def run_folder(config: RunConfig, run_yaml: str, layout: RunFolderLayout) -> dict[str, str]:
    """Every file of the run's folder by its path there; `run_yaml` is the config as its author wrote it. Pure."""
    controller = controller_job(config, [*layout.packs], layout.components)
    name, arguments = controller["metadata"]["name"], "/spec/template/spec/containers/0/args/-"
    files = {
        "setup/run.yaml": run_yaml,
        **({f"setup/{CLUSTER_FILE}": layout.cluster_yaml} if layout.cluster_yaml else {}),
        "setup/controller.yaml": yaml_text(controller),
        "setup/kustomization.yaml": _kustomization("setup", _setup(config, layout)),
        "kustomization.yaml": _kustomization("", {"components": ["setup"]}),
        f"{SHARED}/kustomization.yaml": _kustomization(SHARED, _shared(config.cluster, layout)),
    }
    for iteration in range(1, config.iterations + 1):
        number, label = f"{iteration:02d}", "metadata/labels/scope~1iteration"
        own = f"{config.name}-i{number}{name.removeprefix(config.name)}"
        changes = [(f"/{label}", number), (f"/spec/template/{label}", number)]
        changes += [(arguments, "--only-iteration"), (arguments, number)]
        body = {"components": ["../setup"], "patches": [_renamed("Job", name, own, *changes)]}
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
    labels = {Label.NAME: "scope-selfplay", Label.RUN: config.name}
    return {
        "namespace": layout.namespace,
        "resources": ["controller.yaml", *(f"../{folder}" for folder in layout.packs.values())],
        "configMapGenerator": [
            {
                "name": f"{config.name}-config",
                "files": ["run.yaml", *([CLUSTER_FILE] if layout.cluster_yaml else [])],
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
    names += ["single-node"] if "single-node" in layout.components else []
    trained = (cluster.train_challenger, cluster.train_solver)
    names += ["ranks"] if "ranks" not in names and any(stage.nodes > 1 for stage in trained) else []
    claim: Body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM}}
    is_brought = cluster.volume_claim == CLAIM and not cluster.store
    own = claim | ({"spec": cluster.claim} if is_brought else {"$patch": "delete"})
    patches: list[Body] = [{"patch": yaml_text(own)}] if cluster.claim or "spec" not in own else []
    for url in filter(None, (cluster.proxy, cluster.prepare.hub)):
        is_stages = url == cluster.proxy and "external-servers" in names
        callers = "fetch-model|trainer|worker" if is_stages else "fetch-model"
        rule = {"ports": [{"protocol": "TCP", "port": port_of(url)}]}
        opened = yaml_text([{"op": "add", "path": "/spec/egress/-", "value": rule}])
        patches.append({"target": {"kind": "NetworkPolicy", "name": f"scope-({callers})"}, "patch": opened})
    if cluster.store:
        # To the store or the way to it, and to Google's server of credentials.
        endpoint = cluster.store.partition("?endpoint=")[2] or "https://"
        way = cluster.proxy if endpoint.startswith("https:") and cluster.proxy else endpoint
        ports = [port_of(way), *([80, 988] if cluster.store.startswith("gs:") else [])]
        rule = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
        # Every pod copies, and asks for names.
        opened = yaml_text(
            [
                {"op": "remove", "path": "/spec/podSelector/matchExpressions"},
                {"op": "add", "path": "/spec/egress/-", "value": rule},
            ]
        )
        patches.append({"target": {"kind": "NetworkPolicy", "name": "scope-dns"}, "patch": opened})
    return {
        "resources": [f"../{layout.base}/shared"],
        "components": layout.paths(names, up=1),
        "patches": patches,
    }


def controller_job(config: RunConfig, packs: Sequence[str], components: Sequence[str] = ()) -> Body:
    """The Job that drives a run, and owns all that it creates; it may be stopped and applied again at any time. Pure.

    One of other content, components that change it included, takes over from the one that is at work.

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
    if cluster.store:
        extra = from_secrets(cluster.store_secret, extra)
    job: Body = {"fieldRef": {"fieldPath": "metadata.labels['job-name']"}}
    environment = {"SCOPE_JOB": job, **(way_out(cluster) if cluster.store else {})}
    command, before = ["python", "-m", "jobs", "run-controller"], {} if cluster.store else small_index(config)
    program = Program(cluster.images.worker, command, PodConfig(), environment, extra, before)
    template = pod_template(cluster, program, labels, [*mounts, token], stays=False)
    template["spec"]["serviceAccountName"] = "scope-controller"
    codes = {"containerName": "main", "operator": "In", "values": [64, 70]}
    rules = [
        {"action": "FailJob", "onExitCodes": codes},
        # Drains and lost nodes are not counted.
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    spec = {"backoffLimit": 100, "podFailurePolicy": {"rules": rules}, "template": template}
    return {**named_object("Job", name_by_content(name, [spec, *components]), labels), "spec": spec}


def shipped_kustomize() -> Path:
    """`k8s/` of a checkout, or of an installed wheel."""
    package = Path(__file__).parent.parent
    checkout = package.parent / "k8s"
    return checkout if (checkout / "shared").is_dir() else package / "kustomize"


def packs_needed(config: RunConfig) -> dict[str, Path]:
    """The run's pack and all that it extends, with their folders; a model judge's too, where the run's own pack lacks
    its prompts. Raises PromptError."""
    own = pack_path(config.domain)
    pack, roots = load_pack(own), [own]
    if with_judge_prompts(pack, config.judge) != pack:
        roots.append(pack_path(JUDGE_PACK))
    found = {name: place for root in roots for name, place in pack_folders(root).items()}
    return dict(sorted(found.items()))


def layout_of(folder: Path, config: RunConfig, components: Sequence[str]) -> RunFolderLayout:
    """What the run's folder TOP/k8s/runs/NAME refers to: what is vendored below TOP, else what ships."""
    top = folder.resolve().parents[2]
    base = top / "k8s" if (top / "k8s" / SHARED).is_dir() else shipped_kustomize()
    places = {"": base}
    for name, pack in packs_needed(config).items():
        own = top / "prompts" / name
        places[name] = own if own.is_dir() else pack.resolve()
    # kustomize takes no absolute paths.
    paths = {name: os.path.relpath(place, folder.resolve()) for name, place in places.items()}
    return RunFolderLayout(
        paths.pop(""),
        paths,
        components,
        _read(top / "k8s" / CLUSTER_FILE) or _read(folder / "setup" / CLUSTER_FILE) or "",
    )


def vendored_files(config: RunConfig) -> dict[str, str]:
    """The base and the run's prompt packs, as they lie below TOP."""
    base = shipped_kustomize()
    places = [(f"k8s/{part}", base / part) for part in ("components", SHARED)]
    places += [(f"prompts/{name}", place) for name, place in packs_needed(config).items()]
    return {
        f"{where}/{file.relative_to(place)}": file.read_text(encoding="utf-8")
        for where, place in places
        for file in sorted(place.rglob("*"))
        if file.is_file() and file.suffix in (".yaml", ".json", ".md")
    }


def components_of(folder: Path) -> list[str]:
    """The components of a run's folder, as `--component` names them; none where there is no folder yet.

    Raises ConfigError for a kustomization that is not YAML.
    """
    own, shared = (_components_in(folder / part / "kustomization.yaml") for part in ("setup", SHARED))
    return [*own, *(name for name in shared if name not in (*own, "ranks"))]


def _components_in(file: Path) -> list[str]:
    try:
        setup = yaml.safe_load(_read(file) or "") or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from None
    listed = setup.get("components") if isinstance(setup, dict) else None
    shipped = r"\A\.\./.*/components/([^/]+)/?\Z"
    return [re.sub(shipped, r"\1", str(path)) for path in listed or []]


def render_folder(
    top: Path,
    place: Path,
    config: RunConfig,
    run_yaml: str,
    components: Sequence[str],
    *,
    vendor: bool,
    force: bool,
    update: bool,
) -> tuple[RunFolderLayout, "list[Written]"]:
    """Write the run's folder TOP/PLACE, and the base below TOP where it is to be vendored, or was and is updated."""
    folder, is_vendored = top / place, vendor or (update and (top / "k8s" / SHARED).is_dir())
    is_ours = (top / "k8s").resolve() == shipped_kustomize().resolve()
    vendored = vendored_files(config) if is_vendored and not is_ours else {}
    wrote = [write_folder(top, vendored, force=force, update=update)]
    layout = layout_of(folder, config, components or components_of(folder))
    files = {f"{place}/{name}": text for name, text in run_folder(config, run_yaml, layout).items()}
    wrote.append(write_folder(top, files, force=force, update=update))
    # In the run's folder it is its config, where nothing else has that name.
    link = folder / "run.yaml"
    if not link.exists() and not link.is_symlink():
        link.symlink_to(Path("setup") / "run.yaml")
    return layout, wrote


class Written(NamedTuple):
    """What writing a folder changed."""

    changed: list[Path]
    kept: list[Path]
    """Files that a person edited: they stay, and what they would be is in the difference."""
    difference: str
    """As `diff -u` has it, of files that were there before."""


def write_folder(folder: Path, files: Mapping[str, str], *, force: bool, update: bool = False) -> Written:
    """Write `files` below `folder`, but not over those that a person edited: they are kept (`update`), replaced
    (`force`), or else nothing is written and a ConfigError says which."""
    before = {name: _read(folder / name) for name in files}
    changed = {name: text for name, text in files.items() if before[name] != text}
    rendered = (_read(folder / RENDERED) or "").splitlines()
    pairs = (line.split("  ", 1) for line in rendered if not line.startswith("#"))
    hashes = {name: value for value, name in pairs}
    edited = [
        name for name in changed if (old := before[name]) is not None and hashes.get(name) != _hash(old)
    ]
    if edited and not (force or update):
        raise ConfigError(
            f"{folder}: {', '.join(edited)} differ from what this config gives; keep them (--update), or replace them "
            "(--force)"
        )
    kept = edited if update and not force else []
    for name in (each for each in changed if each not in kept):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(files[name], encoding="utf-8")
    # Of a file that is kept the hash says that it was edited, as before.
    hashes |= {name: _hash(text) for name, text in files.items() if name not in kept}
    lines = [f"{value}  {name}\n" for name, value in sorted(hashes.items()) if (folder / name).is_file()]
    (folder / RENDERED).parent.mkdir(parents=True, exist_ok=True)
    (folder / RENDERED).write_text("".join([f"# scope-selfplay {__version__}\n", *lines]), encoding="utf-8")
    lines = []
    for name, text in changed.items():
        was = (before[name] or "").splitlines(keepends=True)
        lines += difflib.unified_diff(was, text.splitlines(keepends=True), name, name)
    written = [folder / name for name in changed if name not in kept]
    return Written(written, [folder / name for name in kept], "".join(lines))


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def yaml_text(body: Any) -> str:
    """Maps and lists that hold nothing but scalars take one line each."""
    return yaml.dump(body, Dumper=_Dumper, sort_keys=False, width=110, default_flow_style=None)


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
