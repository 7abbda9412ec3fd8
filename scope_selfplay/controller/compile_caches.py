"""What vLLM compiles for a model when it starts, kept on the volume for its next start."""

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.manifests import CACHE, Body, Component, short_hash
from scope_selfplay.errors import StorageError
from scope_selfplay.store import RunFolder


def cache_mount(config: RunConfig, component: Component, replica: int) -> Body:
    """The mount of a server's own folder on the volume, which it can write: by component, image and base model.

    Replicas have one each: vLLM does not expect that others write into its own.
    """
    cluster = config.cluster
    base = cluster.judge.model if component is Component.JUDGE else config.model.path
    number = f"-{replica}" if replica else ""
    name = f"{component}{number}-{short_hash(cluster.images.server or cluster.images.worker, base)}"
    return {"name": "data", "mountPath": CACHE, "subPath": f"runs/{config.name}/cache/{name}"}


def make_cache(folder: RunFolder, body: Body) -> None:
    """Make the folder that a server mounts as its cache; the kubelet would make it as root's.

    Raises StorageError.
    """
    if "template" not in body.get("spec", {}):
        return
    for mount in body["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]:
        if mount["mountPath"] == CACHE:
            place = folder.caches / mount["subPath"].rpartition("/")[2]
            try:
                place.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                why = f"{place}: cannot be made ({error.strerror}); see that the volume is well"
                raise StorageError(why) from error
