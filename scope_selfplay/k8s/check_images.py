"""Images that cannot do what a run asks of them, and names that a cluster does not hold to one image."""

from collections.abc import Iterator

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.manifests import Component, gpus_of
from scope_selfplay.controller.servers import is_vllm, settings_of
from scope_selfplay.k8s.objects import ManifestProblem
from scope_selfplay.k8s.patches import IMAGE, image_parts
from scope_selfplay.schedule import is_challenger_trained

_POLICIES = (Component.SOLVER, Component.CHALLENGER)


def image_problems(config: RunConfig) -> Iterator[ManifestProblem]:
    yield from _gpu_problems(config)
    yield from _torch_problems(config)


def _gpu_problems(config: RunConfig) -> Iterator[ManifestProblem]:
    """What runs on a GPU has CUDA in its image, and the worker's has none."""
    cluster, stages = config.cluster, ("train_challenger", "train_solver")
    trainers = [stage for stage in stages if gpus_of(cluster, getattr(cluster, stage))]
    servers = [
        component.value
        for component in (Component.JUDGE, *_POLICIES)
        if settings_of(config, component).serve and is_vllm(config, component)
    ]
    for name, users in (("trainer", trainers), ("server", servers)):
        if users and not getattr(cluster.images, name):
            yield ManifestProblem(
                f"cluster.images.{name}",
                f"is not named, so {', '.join(users)} would get GPUs and the image of the workers, which has no CUDA; "
                "name one built from k8s/images/trainer.Dockerfile",
            )


def _torch_problems(config: RunConfig) -> Iterator[ManifestProblem]:
    """What trains or serves a policy on the CPU has torch in its image; the slim one is known by its name."""
    cluster = config.cluster
    worker = cluster.images.worker
    if image_parts(worker)["newName"].rpartition("/")[2] != IMAGE:
        return
    trained = ["train_solver", *(["train_challenger"] if is_challenger_trained(config, 1) else [])]
    users = [
        *(
            name
            for name in trained
            if not (cluster.images.trainer or gpus_of(cluster, getattr(cluster, name)))
        ),
        *(
            component.value
            for component in _POLICIES
            if settings_of(config, component).serve and not is_vllm(config, component)
        ),
    ]
    if users:
        yield ManifestProblem(
            "cluster.images.worker",
            f"is {worker}, the slim image, which has no torch for {', '.join(users)}; "
            "name the one of `make image-local`",
        )


def image_notes(config: RunConfig) -> Iterator[str]:
    images = config.cluster.images
    named = {images.worker, images.trainer, images.server, images.retriever} - {""}
    loose = sorted(image for image in named if "@sha256:" not in image)
    if loose:
        yield f"images without a digest may change under a run: {', '.join(loose)}"
    if latest := [image for image in loose if image_parts(image).get("newTag", "latest") == "latest"]:
        yield (
            f"images called latest are pulled at every start, also where they were loaded: {', '.join(latest)}; "
            "name them by another tag, or by digest"
        )
