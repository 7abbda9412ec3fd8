"""What a run needs on its volume before it starts, as folders to apply one after the other. Pure.

prepare/volume    the Job that tries out what the volume can do
prepare/models    one Job for each model that `cluster.prepare` names
prepare/files     the Jobs that fetch the corpus, and vectors for its index
prepare/warm-start  the Job that trains the base model on trajectories
prepare/index     the Job that builds the retriever's index, when what it is made from is there

`prepare` itself is all of them but the warm start, whose trajectories a person brings. Before them comes `shared`, with
the claim. A run in tiny mode has none of them: its policy is in the image, and its index is made before its controller
starts. Jobs are named after the run: two runs of a namespace may want different models.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scope_selfplay.config import RunConfig
from scope_selfplay.config.cluster import PrepareConfig
from scope_selfplay.config.pods import PodConfig
from scope_selfplay.controller.manifests import VOLUME, Component, resources_of
from scope_selfplay.controller.servers import is_vllm
from scope_selfplay.k8s.patches import (
    CONTAINER,
    IMAGE,
    POD,
    TOP,
    Body,
    RunFolderLayout,
    add,
    image_parts,
    kustomization,
    merge_patches,
    patch,
    pod_changes,
    replace,
)
from scope_selfplay.k8s.shared import namespace_of

_NOTES = {
    "volume": "# After ../../shared. `kubectl logs` of its Job, or `scope k8s check --cluster`, shows the line.\n",
    "models": "# After ../../shared. To fetch another model: delete the Job, change run.yaml, render again.\n",
    "files": "# After ../../shared. What is there and whole is left alone.\n",
    "warm-start": "# After ../models, and with the trajectories on the volume. The run starts from what it writes.\n",
    "index": "# Waits for ../models and ../files, or for what is copied to the volume in their place.\n",
}
_ALL = (
    "# Everything that one command can prepare; `kubectl wait` for the Jobs with the label scope/prepares.\n"
)
_PREPARES = "scope/prepares"


_NO_GPUS = PodConfig()


@dataclass(frozen=True)
class ModelDownload:
    """A model that a Job `fetch-<part>` brings from the hub."""

    part: str
    repository: str
    folder: str

    @property
    def options(self) -> list[str]:
        """Options of the Job's command."""
        name, _, commit = self.repository.partition("@")
        return ["--model", name, "--folder", self.folder, *(["--revision", commit] if commit else [])]


def prepare_files(config: RunConfig, layout: RunFolderLayout) -> dict[str, str]:
    """Every file below prepare/ by its path in the run's folder; none where the run needs nothing."""
    parts = prepare_parts(config)
    bodies: dict[str, Body] = {}
    if "volume" in parts:
        bodies["volume"] = _jobs(config, layout, ["volume"], {"probe-volume": ["--folder", VOLUME]})
    if "models" in parts:
        models = model_downloads(config)
        folders = [f"models/{model.part}" for model in models]
        options = {f"fetch-{model.part}": model.options for model in models}
        bodies["models"] = _jobs(config, layout, folders, options)
    if "files" in parts:
        files = file_downloads(config)
        options = {f"fetch-{part}": given for part, given in files.items()}
        bodies["files"] = _jobs(config, layout, [f"files/{part}" for part in files], options)
    if "warm-start" in parts:
        bodies["warm-start"] = _warm_start(config, layout)
    if "index" in parts:
        bodies["index"] = _index(config, layout)
    texts = {
        f"prepare/{part}/kustomization.yaml": _NOTES[part] + kustomization(body)
        for part, body in bodies.items()
    }
    if together := parts_at_once(parts):
        texts["prepare/kustomization.yaml"] = _ALL + kustomization({"resources": together})
    return texts


def parts_at_once(parts: Sequence[str]) -> list[str]:
    """Those that one command applies: all but the warm start, whose trajectories a person brings."""
    return [part for part in parts if part != "warm-start"]


def prepare_parts(config: RunConfig) -> list[str]:
    """The folders below prepare/ that the run has, in the order in which they are applied."""
    parts = {
        "models": model_downloads(config),
        "files": file_downloads(config),
        "warm-start": warm_start_options(config),
        "index": _index_options(config),
    }
    found = [part for part, content in parts.items() if content]
    return ["volume", *found] if found else []


def model_downloads(config: RunConfig) -> list[ModelDownload]:
    """What is fetched: a model whose repository is named and whose folder lies on the volume."""
    prepare = config.cluster.prepare
    wanted = [("model", prepare.model, _base_folder(config)), ("judge", prepare.judge, _judge_folder(config))]
    found = [
        ModelDownload(part, name, folder)
        for part, name, folder in wanted
        if name and _is_on_volume(config, folder)
    ]
    if prepare.encoder and _index_options(config):
        found.append(ModelDownload("encoder", prepare.encoder, _encoder_folder(prepare.encoder)))
    return found


def file_downloads(config: RunConfig) -> dict[str, list[str]]:
    """Options of the Jobs `fetch-corpus` and `fetch-vectors`, where the corpus lies on the volume."""
    prepare = config.cluster.prepare
    wanted = {
        "corpus": (prepare.corpus, config.corpus.path),
        "vectors": (prepare.vectors if _index_options(config) else None, _vectors_file(prepare)),
    }
    return {
        part: [
            *("--file", file, "--sha256", published.sha256),
            *(word for url in published.urls for word in ("--url", url)),
        ]
        for part, (published, file) in wanted.items()
        if published is not None and _is_on_volume(config, file)
    }


def manual_steps(config: RunConfig) -> Iterator[str]:
    """What the run expects on the volume and no Job brings there, one line for each."""
    fetched = {model.folder for model in model_downloads(config)}
    for setting, folder in (("model", _base_folder(config)), ("judge", _judge_folder(config))):
        if _is_on_volume(config, folder) and folder not in fetched:
            yield f"copy the model to {folder}, or name its repository: cluster.prepare.{setting}"
    warm_start = config.cluster.prepare.warm_start
    for file in warm_start.trajectories if warm_start and _is_on_volume(config, config.model.path) else ():
        yield f"copy the trajectories to {file}"
    if _is_on_volume(config, config.corpus.path) and config.cluster.prepare.corpus is None:
        yield f"copy the corpus to {config.corpus.path}, or name its URL: cluster.prepare.corpus"


def warm_start_options(config: RunConfig) -> list[str]:
    """Options of the Job that trains the base model; none for a run without one."""
    warm_start = config.cluster.prepare.warm_start
    if warm_start is None or not _is_on_volume(config, config.model.path):
        return []
    given = {
        "start": warm_start.start,
        "out": config.model.path,
        "dialect": config.model.dialect,
        "epochs": f"{warm_start.epochs:g}",
        "learning-rate": f"{warm_start.learning_rate:g}",
        "batch": str(warm_start.batch),
        "micro-batch": str(warm_start.micro_batch),
        "max-length": str(warm_start.max_length),
        "grace": str(warm_start.grace),
        "seed": str(config.seed),
    }
    files = [part for file in warm_start.trajectories for part in ("--trajectories", file)]
    return [*(part for name, value in given.items() for part in (f"--{name}", value)), *files]


def _warm_start(config: RunConfig, layout: RunFolderLayout) -> Body:
    """The Job with the GPUs, the image and the time of a trainer."""
    settings, cluster = config.cluster.prepare.warm_start, config.cluster
    assert settings is not None
    body = _jobs(config, layout, ["warm-start"], {"warm-start": warm_start_options(config)}, settings)
    changes = [
        replace(f"{CONTAINER}/resources", resources_of(cluster, settings)),
        replace(f"{CONTAINER}/env/1/value", str(max(1, settings.gpus))),
        replace("/spec/activeDeadlineSeconds", settings.deadline),
        replace(f"{POD}/terminationGracePeriodSeconds", settings.grace),
    ]
    image = cluster.images.trainer or cluster.images.worker
    return {
        **body,
        "images": [{"name": IMAGE, **image_parts(image)}],
        "patches": [*body["patches"], patch("Job", "warm-start", changes)],
    }


def _index(config: RunConfig, layout: RunFolderLayout) -> Body:
    """The Job with its own size, and with the trainer's image where it has a GPU: the worker's has no torch."""
    settings, cluster = config.cluster.prepare.index_job, config.cluster
    body = _jobs(config, layout, ["index"], {"build-index": _index_options(config)}, settings)
    changes = [replace(f"{CONTAINER}/resources", resources_of(cluster, settings))]
    image = cluster.images.trainer if settings.gpus else ""
    return {
        **body,
        "images": [{"name": IMAGE, **image_parts(image or cluster.images.worker)}],
        "patches": [*body["patches"], patch("Job", "build-index", changes)],
    }


def _base_folder(config: RunConfig) -> str:
    """Where the base model is put: what a warm start writes is made from it."""
    warm_start = config.cluster.prepare.warm_start
    return config.model.path if warm_start is None else warm_start.start


def _jobs(
    config: RunConfig,
    layout: RunFolderLayout,
    folders: Sequence[str],
    options: Mapping[str, Sequence[str]],
    pod: PodConfig = _NO_GPUS,
) -> Body:
    """Jobs of k8s/prepare with these options, where the run's own pods run."""
    patches = []
    for job, given in options.items():
        placed = pod_changes(config.cluster, has_gpus=pod.gpus > 0)
        mine = add(f"/metadata/labels/{_PREPARES.replace('/', '~1')}", config.name)
        patches.append(patch("Job", job, [mine, replace(f"{CONTAINER}/args", list(given)), *placed]))
        patches += merge_patches(config.cluster, job, pod.pod)
    return {
        "namespace": namespace_of(layout),
        "namePrefix": f"{config.name}-",
        "resources": [f"../../{TOP}/k8s/prepare/{folder}" for folder in folders],
        # The others change what only a running run has.
        "components": [layout.component(name, up=2) for name in layout.components if name == "single-node"],
        "images": [{"name": IMAGE, **image_parts(config.cluster.images.worker)}],
        "patches": patches,
    }


def _index_options(config: RunConfig) -> list[str]:
    """Empty for a run whose documents are not on the volume, or that starts no retriever."""
    cluster = config.cluster
    if not cluster.retriever.serve or not _is_on_volume(config, config.corpus.path):
        return []
    prepare = cluster.prepare
    more = [*prepare.index, *(["--encoder", _encoder_folder(prepare.encoder)] if prepare.encoder else [])]
    if prepare.vectors is not None:
        more += ["--vectors", _vectors_file(prepare)]
    elif prepare.index_job.gpus:
        more += ["--device", "cuda"]
    where = ["--index", cluster.retriever.index, "--source", config.corpus.path]
    return [*where, *(["--", *more] if more else [])]


def _encoder_folder(repository: str) -> str:
    return f"{VOLUME}/models/{repository.partition('@')[0].rpartition('/')[2]}"


def _vectors_file(prepare: PrepareConfig) -> str:
    return f"{VOLUME}/corpus/vectors-{prepare.vectors.sha256[:12]}.faiss" if prepare.vectors else ""


def _judge_folder(config: RunConfig) -> str:
    """Empty where the judge is the base model itself, or no model that the run serves."""
    judge = config.cluster.judge
    its_own = judge.serve and is_vllm(config, Component.JUDGE) and judge.model != config.model.path
    return judge.model if its_own else ""


def _is_on_volume(config: RunConfig, path: str) -> bool:
    return not config.cluster.tiny and path.startswith(f"{VOLUME}/")
