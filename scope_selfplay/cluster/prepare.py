"""Jobs that a person applies beside a run: what it needs on its volume before it starts, and evaluations; and what each
pod needs of the store, where it has a disk of its own. Pure.

Preparing tries out the volume, fetches models, corpus and vectors, and builds the retriever's index, which waits for
what it is made from; the warm start is apart, because a person brings its trajectories. A run in tiny mode needs none:
its policy is in the image, and its index is made before its controller starts. Jobs are named after the run: two runs
of a namespace may want different models.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, starmap, takewhile
from pathlib import Path
from typing import NamedTuple

from scope_selfplay.cluster.pods import (
    RUNS,
    VOLUME,
    Body,
    Component,
    Label,
    Mount,
    Program,
    RunStage,
    labels_of,
    name_by_content,
    named_object,
    pod_template,
    queue_labels,
    stage_variables,
    stored,
    way_out,
)
from scope_selfplay.cluster.stages import encoder_folder, endpoint_settings, is_vllm, policies_of, servers_of
from scope_selfplay.config.cluster import (
    GRACE,
    EvaluationJobConfig,
    PodConfig,
    PrepareConfig,
    WarmStartConfig,
    secret_key,
)
from scope_selfplay.config.run import RunConfig
from scope_selfplay.run.schedule import challenger_of, promoted_solver, stages_of
from scope_selfplay.store.folder import RunFolder, Stage

_JOBS = ("python", "-m", "jobs")
_KEPT = 604_800
"""Seconds for which a Job that ended can be looked at."""


def prepare_jobs(config: RunConfig) -> dict[str, list[Body]]:
    """The Jobs by the folder of the run from which they are applied; none where the run needs nothing."""
    prepare, images = config.cluster.prepare, config.cluster.images
    jobs = [_job(config, *what, 30, part=part) for part, what in downloads(config).items()]
    if options := _index_options(config):
        # With a GPU it has the trainer's image: the worker's has no torch.
        image = images.trainer if prepare.index_job.gpus else ""
        jobs.append(_job(config, [*_JOBS, "build-index"], options, 100, pod=prepare.index_job, image=image))
    found = {"prepare": jobs}
    if options := warm_start_options(config):
        made = _job(config, [*_JOBS, "warm-start"], options, 6, pod=prepare.warm_start, image=images.trainer)
        made["spec"]["activeDeadlineSeconds"] = config.cluster.deadline
        found["prepare/warm-start"] = [made]
    if not config.cluster.store and any(found.values()):
        jobs.insert(0, _job(config, [*_JOBS, "probe-volume"], ["--folder", VOLUME], 1))
    return {place: jobs for place, jobs in found.items() if jobs}


def _job(
    config: RunConfig,
    command: Sequence[str],
    options: Sequence[str],
    tries: int,
    *,
    part: str = "",
    pod: PodConfig | None = None,
    image: str = "",
) -> Body:
    """A Job that runs a command; without a `pod` it is a small one. `part` is what a Job fetches."""
    extra: Body = {"args": list(options)}
    environment: dict[str, str | Body] = way_out(config.cluster) if part else {}
    mounts, grace = [], 30
    if part and (hub := config.cluster.prepare.hub):
        environment["HF_ENDPOINT"] = hub
    if pod is None:
        amounts = {"cpu": "2", "memory": "8Gi"} if part else {"cpu": "250m", "memory": "512Mi"}
        extra["resources"] = {"requests": amounts, "limits": amounts}
    if command[-1] == "fetch-model":
        # The image is offline: only these pods ask the hub.
        environment |= {"HF_HUB_OFFLINE": "0"}
        name, key = secret_key(config.cluster.prepare.hub_secret)
        items = [{"key": key, "path": "token"}]
        token = {"secret": {"secretName": name, "items": items, "optional": True}}
        mounts = [Mount("token", token, "/etc/scope/hub")]
    if isinstance(pod, WarmStartConfig):
        environment, grace = {"SCOPE_PROCESSES": str(max(1, pod.gpus))}, GRACE
    named = [(name, stored(path)) for name, path in pairwise(options) if path.startswith(f"{VOLUME}/")]
    reads = ("--source", "--encoder", "--vectors", "--start", "--trajectories")
    pulls = [path for name, path in named if name in reads]
    # The file that is fetched comes first, and has no name.
    keeps = [path for name, path in named if name in ("--folder", "--index", "--out")] or [stored(options[0])]
    image = image or config.cluster.images.worker
    program = Program(image, command, pod or PodConfig(), environment, extra, pulls=pulls, keeps=keeps)
    name = f"fetch-{part}" if part else command[-1]
    labels = {Label.NAME: "scope-selfplay", Label.COMPONENT: "fetch-model" if part else name}
    template = pod_template(config.cluster, program, labels, mounts, grace=grace)
    spec = {"backoffLimit": tries, "ttlSecondsAfterFinished": _KEPT, "template": template}
    return _named(config, name, labels | {"scope/prepares": config.name}, spec)


def _named(config: RunConfig, name: str, labels: dict[str, str], spec: Body) -> Body:
    own = labels | queue_labels(config.cluster, spec["template"])
    return {**named_object("Job", name_by_content(f"{config.name}-{name}", spec), own), "spec": spec}


def evaluation_job(config: RunConfig, settings: EvaluationJobConfig) -> Body:
    """`scope eval` of checkpoints on the volume, with the judge and the retriever of the run while it goes on;
    afterwards with those that the config names. The same Job again goes on where it was."""
    cluster = config.cluster
    extra = {"args": evaluation_arguments(config, settings)}
    image = cluster.images.trainer or cluster.images.worker
    program = Program(image, ["scope", "eval"], settings, stage_variables(cluster), extra)
    # The label `worker` opens the way to the run's judge and retriever.
    labels = labels_of(config, Component.WORKER)
    template = pod_template(cluster, program, labels, grace=GRACE)
    spec = {
        "backoffLimit": 6,
        "activeDeadlineSeconds": cluster.deadline,
        "ttlSecondsAfterFinished": _KEPT,
        "template": template,
    }
    return _named(config, "evaluate", labels, spec)


def evaluation_arguments(config: RunConfig, settings: EvaluationJobConfig) -> list[str]:
    """The command line of `scope eval`."""
    run = f"{RUNS}/{config.name}"
    first, *others = (f"{run}:{name}" for name in settings.checkpoints)
    # What serves the whole run: its judge and its retriever.
    servers = servers_of(config, RunStage(1, Stage.SOLVER), [True])
    given = {
        "--against": others,
        "--benchmark": settings.benchmarks,
        "--set": endpoint_settings(config, servers),
    }
    arguments = [part for option, values in given.items() for value in values for part in (option, value)]
    return [first, *arguments, "--root", f"{run}/benchmarks", *settings.options]


def downloads(config: RunConfig) -> dict[str, tuple[list[str], list[str]]]:
    """What a Job `fetch-PART` brings to the volume: its command, and its options.

    A model's repository is named; it is a run's whose folder lies on the volume.
    """
    prepare, has_index = config.cluster.prepare, bool(_index_options(config))
    models = {
        "model": (prepare.model, _base_folder(config)),
        "judge": (prepare.judge, _judge_folder(config)),
        "encoder": (prepare.encoder if has_index else None, encoder_folder(prepare.encoder or "")),
    }
    files = {
        "corpus": (prepare.corpus, config.corpus.path),
        "vectors": (prepare.vectors if has_index else None, _vectors_file(prepare)),
    }
    found: dict[str, tuple[list[str], list[str]]] = {}
    for part, (repository, folder) in models.items():
        if repository and _is_on_volume(config, folder):
            name, _, commit = repository.partition("@")
            revision = ["--revision", commit] if commit else []
            found[part] = ([*_JOBS, "fetch-model"], ["--model", name, "--folder", folder, *revision])
    for part, (published, file) in files.items():
        if published is not None and _is_on_volume(config, file):
            urls = [word for url in published.urls for word in ("--url", url)]
            found[part] = (["scope", "index", "fetch"], [file, "--sha256", published.sha256, *urls])
    return found


def awaited(config: RunConfig) -> list[str]:
    """What no stage can begin without, and is whole once it is there."""
    wanted = [config.model.path, _judge_folder(config), config.corpus.path]
    index, of_it = config.cluster.retriever.index, "" if config.cluster.store else "/manifest.json"
    wanted += [f"{index}{of_it}"] if _index_options(config) else []
    return [path for path in wanted if _is_on_volume(config, path)]


def inputs_of(config: RunConfig, *, begins: bool) -> list[str]:
    """The paths on the volume that a run's own settings name; those of its corpus are read where it begins."""
    corpus = {} if begins else {"corpus": True}
    # A cache is made, and nobody brings it.
    text = config.model_dump_json(exclude={"cluster": True, "judge": {"cache": True}, **corpus})
    return list(dict.fromkeys(re.findall(rf'(?:"|=)({VOLUME}/[^"]+)"', text)))


def stage_pulls(config: RunConfig, step: RunStage, promoted: Sequence[bool]) -> list[str]:
    """What a stage needs where it has a disk of its own, as options and arguments of `python -m jobs pull`.

    What the run began with, records of all stages before, what its own attempts have so far, and models: it names the
    policies that it is served, too, by their weights.
    """
    policies = [*policies_of(config, step, promoted).values()]
    if step.stage is Stage.CHALLENGER:
        policies.append(challenger_of(config, step.iteration - 1))
    elif step.stage is Stage.SOLVER:
        policies.append(promoted_solver(step.iteration - 1, lambda iteration: promoted[iteration]))
    folder = RunFolder(Path(RUNS) / config.name)
    trained = [f"{path}" for each in policies if (path := each.checkpoint(folder)) is not None]
    before = takewhile(lambda other: other != step, starmap(RunStage, stages_of(config)))
    records = [word for each in before for word in ("--records", stored(f"{folder.stage(*each).path}"))]
    paths = map(stored, dict.fromkeys([*inputs_of(config, begins=False), *trained]))
    work = stored(f"{folder.stage(*step).path}")
    return [*records, "--work", work, f"runs/{config.name}/begin", *paths]


def manual_steps(config: RunConfig) -> Iterator[str]:
    """What the run expects on the volume and no Job brings there, one line for each."""
    fetched = [options for _, options in downloads(config).values()]
    store = config.cluster.store

    def place(path: str) -> str:
        return f"{store.partition('?')[0]}/{stored(path)} (scope upload)" if store else path

    for setting, folder in (("model", _base_folder(config)), ("judge", _judge_folder(config))):
        if _is_on_volume(config, folder) and not any(folder in options for options in fetched):
            yield f"copy the model to {place(folder)}, or name its repository: cluster.prepare.{setting}"
    warm_start = config.cluster.prepare.warm_start
    for file in warm_start.trajectories if warm_start and _is_on_volume(config, config.model.path) else ():
        yield f"copy the trajectories to {place(file)}"
    if _is_on_volume(config, config.corpus.path) and config.cluster.prepare.corpus is None:
        yield f"copy the corpus to {place(config.corpus.path)}, or name its URL: cluster.prepare.corpus"


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
        "seed": str(config.seed),
    }
    files = [part for file in warm_start.trajectories for part in ("--trajectories", file)]
    return [*(part for name, value in given.items() for part in (f"--{name}", value)), *files]


TRACKERS: Mapping[str, tuple[str, ...]] = {
    "wandb": ("WANDB_API_KEY", "WANDB_MODE"),
    "comet_ml": ("COMET_API_KEY", "COMET_MODE"),
    "mlflow": ("MLFLOW_TRACKING_URI",),
}
"""Trackers that need a variable, by transformers' names: one of these tells them where or who they are."""


class NamedSecret(NamedTuple):
    """A Secret that a run names, the keys that it must have, and how kubectl is given each."""

    name: str
    keys: Sequence[str]
    option: str

    @property
    def advice(self) -> str:
        """How it is made."""
        given = " ".join(self.option.format(key) for key in self.keys)
        return f"kubectl create secret generic {self.name} {given}" if given else "create it"


def secrets_of(config: RunConfig) -> dict[str, NamedSecret]:
    """By the setting that names it."""
    cluster, found = config.cluster, dict[str, NamedSecret]()
    trackers = [name for tracker in config.tracking.report_to for name in TRACKERS.get(tracker, ())[:1]]
    if cluster.store and cluster.store_secret:
        keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
        found["store_secret"] = NamedSecret(cluster.store_secret, keys, "--from-literal={}=...")
    for setting, value in (("key_secret", "$(openssl rand -hex 32)"), ("judge_secret", "KEY")):
        if secret := getattr(cluster, setting):
            name, key = secret_key(secret)
            found[setting] = NamedSecret(name, [key], f"--from-literal={{}}={value}")
    if cluster.tracking_secret:
        found["tracking_secret"] = NamedSecret(cluster.tracking_secret, trackers, "--from-file={}=FILE")
    return found


def _base_folder(config: RunConfig) -> str:
    """Where the base model is put: what a warm start writes is made from it."""
    warm_start = config.cluster.prepare.warm_start
    return config.model.path if warm_start is None else warm_start.start


def _index_options(config: RunConfig) -> list[str]:
    """Empty for a run whose documents are not on the volume, or that starts no retriever."""
    cluster = config.cluster
    if not cluster.retriever.serve or not _is_on_volume(config, config.corpus.path):
        return []
    prepare = cluster.prepare
    more = [*prepare.index, *(["--encoder", encoder_folder(prepare.encoder)] if prepare.encoder else [])]
    if prepare.vectors is not None:
        more += ["--vectors", _vectors_file(prepare)]
    elif prepare.index_job.gpus:
        more += ["--device", "cuda"]
    where = ["--index", cluster.retriever.index, "--source", config.corpus.path]
    return [*where, *(["--", *more] if more else [])]


def _vectors_file(prepare: PrepareConfig) -> str:
    return f"{VOLUME}/corpus/vectors-{prepare.vectors.sha256[:12]}.faiss" if prepare.vectors else ""


def _judge_folder(config: RunConfig) -> str:
    """Empty where the judge is the base model itself, or no model that the run serves."""
    judge = config.cluster.judge
    its_own = judge.serve and is_vllm(config, Component.JUDGE) and judge.model != config.model.path
    return judge.model if its_own else ""


def _is_on_volume(config: RunConfig, path: str) -> bool:
    return not config.cluster.tiny and path.startswith(f"{VOLUME}/")
