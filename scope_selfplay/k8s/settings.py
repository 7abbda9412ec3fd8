"""What a run's config asks of a cluster and its pods could not do. Pure."""

from collections.abc import Iterator

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.names import Component
from scope_selfplay.controller.pods import gpus_of, is_vllm
from scope_selfplay.controller.servers import settings_of
from scope_selfplay.errors import ConfigError
from scope_selfplay.k8s.check_references import ManifestProblem
from scope_selfplay.training.ranks import step_share


def setting_problems(config: RunConfig) -> list[ManifestProblem]:
    return [*_name(config), *_judge(config), *_engine(config), *_gpu_images(config), *_ranks(config)]


def _name(config: RunConfig) -> Iterator[ManifestProblem]:
    """Before Kubernetes 1.34 a Service is named by RFC 1035; the controller refuses such a run too."""
    if not config.name[0].isalpha():
        yield ManifestProblem("name", f"is {config.name!r}; on a cluster a run's id begins with a letter")


def _judge(config: RunConfig) -> Iterator[ManifestProblem]:
    """Without a GPU the judge is `scope serve-judge`, which knows the articles of the embedded world alone."""
    server = config.cluster.judge
    knows_them = config.corpus.path == "embedded" or {"--rehearsal", "--corpus"} & set(server.args)
    if (
        server.serve
        and config.judge.kind == "model"
        and not is_vllm(config, Component.JUDGE)
        and not knows_them
    ):
        yield ManifestProblem(
            "cluster.judge",
            "has no GPU, so it would judge the articles of the embedded world, and the corpus is "
            f"{config.corpus.path}; give it gpus and a model, or `args: [--rehearsal]` for a judge that throws dice",
        )


def _engine(config: RunConfig) -> Iterator[ManifestProblem]:
    """A colocated vLLM is on the trainer's own GPUs."""
    cluster = config.cluster
    for name in _trained(config):
        if config.model.engine == "vllm_colocated" and not gpus_of(cluster, getattr(cluster, name)):
            yield ManifestProblem(
                f"cluster.{name}",
                "has no GPU, and model.engine vllm_colocated samples on the trainer's; give it gpus, or set "
                "model.engine: in_process",
            )


def _trained(config: RunConfig) -> list[str]:
    return ["train_solver", *([] if config.challenger.frozen else ["train_challenger"])]


def _gpu_images(config: RunConfig) -> Iterator[ManifestProblem]:
    """What runs on a GPU has CUDA in its image, and the worker's has none."""
    cluster = config.cluster
    trained = [
        name for name in ("train_challenger", "train_solver") if gpus_of(cluster, getattr(cluster, name))
    ]
    served = [
        part.value
        for part in (Component.JUDGE, Component.SOLVER, Component.CHALLENGER)
        if settings_of(config, part).serve and is_vllm(config, part)
    ]
    for name, image, users in (
        ("trainer", cluster.images.trainer, trained),
        ("server", cluster.images.server, served),
    ):
        if users and not image:
            yield ManifestProblem(
                f"cluster.images.{name}",
                f"is not named, so {', '.join(users)} would get GPUs and the image of the workers, which has no CUDA; "
                "name one built from k8s/images/trainer.Dockerfile",
            )


def _ranks(config: RunConfig) -> Iterator[ManifestProblem]:
    """Each GPU has a process of its own, and each process whole groups."""
    cluster = config.cluster
    for name, settings, pod in (
        ("train_challenger", config.challenger, cluster.train_challenger),
        ("train_solver", config.solver, cluster.train_solver),
    ):
        try:
            step_share(settings, max(1, gpus_of(cluster, pod)) * pod.nodes)
        except ConfigError as error:
            yield ManifestProblem(
                f"cluster.{name}", f"has {pod.gpus} GPUs on each of {pod.nodes} nodes: {error}"
            )
