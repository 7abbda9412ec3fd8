"""What a run asks of a Kubernetes cluster. None of it changes what a run computes: the hash leaves it out."""

import posixpath
import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from scope_selfplay.config.base import ConfigSection

CPU = r"^[0-9]+(\.[0-9]+)?m?$"
OUR_MOUNTS = (
    *("/data", "/tmp", "/dev/shm", "/etc/scope/run", "/etc/scope/prompts", "/etc/scope/hub"),
    "/var/run/secrets/kubernetes.io/serviceaccount",
)
"""Where pods of a run mount what is their own."""
_WRITABLE = ("/data", "/tmp")
REPOSITORY = r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+(@[A-Za-z0-9._/-]+)?$"
MEMORY = r"^[0-9]+(\.[0-9]+)?([kMGT]i?)?$"

_WORD = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = rf"{_WORD}(\.{_WORD})*"
_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PATH = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = (
    r"([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]+)?/)?"
    rf"{_PATH}(/{_PATH})*(:[A-Za-z0-9_][-A-Za-z0-9_.]{{0,127}})?(@sha256:[0-9a-f]{{64}})?"
)


def _name_rule(pattern: str, what: str, example: str, longest: int = 253) -> AfterValidator:
    """A name as a Kubernetes API server takes it; the message says what one looks like, which a pattern does not."""

    def check(name: str) -> str:
        if len(name) > longest or not re.fullmatch(pattern, name):
            raise ValueError(f"found {name!r}, expected {what}, such as {example}")
        return name

    return AfterValidator(check)


_IMAGE_RULE = ("an image's name, with a tag or a digest of 64 digits", "registry.example/scope:1", 512)
Image = Annotated[str, _name_rule(_IMAGE, *_IMAGE_RULE)]
OptionalImage = Annotated[str, _name_rule(f"({_IMAGE})?", *_IMAGE_RULE)]
ObjectName = Annotated[
    str, _name_rule(_DOMAIN, "the name of an object: small letters, digits, - and .", "my-secret")
]
LabelKey = Annotated[
    str,
    _name_rule(
        rf"({_DOMAIN}/)?{_LABEL}",
        "a label's key of at most 63 letters, digits, -, _ and .",
        "team.example/pool",
        317,
    ),
]
OptionalLabelKey = Annotated[
    str, _name_rule(rf"(({_DOMAIN}/)?{_LABEL})?", "a taint's key, or none", "nvidia.com/gpu", 317)
]
LabelValue = Annotated[
    str, _name_rule(rf"({_LABEL})?", "a label's value of at most 63 letters, digits, -, _ and .", "a100")
]


class TolerationConfig(ConfigSection):
    key: OptionalLabelKey = ""
    """Taint that is tolerated; every taint when empty."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """How the taint's value is compared."""
    value: str = ""
    """Value of the taint, for `Equal`."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; every effect when empty."""


class VolumeConfig(ConfigSection):
    """A volume besides the run's own, such as a company's certificates or a cache of models on NFS."""

    name: str = Field(pattern=r"^extra(-[a-z0-9]+)+$", max_length=63)
    """Name of the volume: `extra-` and a word."""
    path: str = Field(pattern=r"^/")
    """Where it is mounted, read-only."""
    source: dict[str, dict[str, Any]] = Field(min_length=1, max_length=1)
    """What it is, as in a pod: `{configMap: {name: ca}}`, `{nfs: {server: ..., path: ...}}`."""

    @field_validator("path")
    @classmethod
    def _hides_nothing_of_ours(cls, path: str) -> str:
        """A volume may be mounted below a folder that pods write to, such as a cache of models, and below no other."""
        place = PurePosixPath(posixpath.normpath(f"/{path.lstrip('/')}"))
        for ours in map(PurePosixPath, OUR_MOUNTS):
            is_below = ours in place.parents and str(ours) not in _WRITABLE
            if place == ours or place in ours.parents or is_below:
                raise ValueError(
                    f"found {path!r}, which meets {ours}, where pods have their own; choose another place"
                )
        return path


class ImagesConfig(ConfigSection):
    """A field left empty takes the image of `worker`. Production runs name images by digest."""

    worker: Image = "scope-selfplay:latest"
    """Runs `python -m jobs....` and, in tiny mode, every server."""
    trainer: OptionalImage = ""
    """Runs the two training stages; has CUDA, TRL and vLLM."""
    server: OptionalImage = ""
    """Serves models with `vllm serve`."""
    retriever: OptionalImage = ""
    """Serves the index with `scope serve-retriever`."""


class PodConfig(ConfigSection):
    """One container's share of a node. Requests and limits are equal, so that it is evicted last."""

    gpus: int = Field(default=0, ge=0)
    """GPUs."""
    cpu: str = Field(default="4", pattern=CPU)
    """CPU cores, as a Kubernetes quantity."""
    memory: str = Field(default="16Gi", pattern=MEMORY)
    """Memory, as a Kubernetes quantity."""


class StageConfig(PodConfig):
    deadline: int = Field(default=172_800, ge=60)
    """Seconds after which one attempt is stopped, waiting for a node included; the next one goes on from there."""
    grace: int = Field(default=120, ge=1)
    """Seconds between SIGTERM and SIGKILL: enough to save a checkpoint."""


class TaskMakingStageConfig(StageConfig):
    shards: int = Field(default=1, ge=1, le=99)
    """Jobs that share the documents."""


class ChallengerStageConfig(StageConfig):
    gpus: int = Field(default=2, ge=0)
    """GPUs of each node."""
    cpu: str = Field(default="16", pattern=CPU)
    """CPU cores."""
    memory: str = Field(default="192Gi", pattern=MEMORY)
    """Memory."""
    nodes: int = Field(default=1, ge=1)
    """Nodes that train together; more than one needs Kubernetes 1.24."""


class SolverStageConfig(StageConfig):
    gpus: int = Field(default=4, ge=0)
    """GPUs of each node."""
    cpu: str = Field(default="32", pattern=CPU)
    """CPU cores."""
    memory: str = Field(default="384Gi", pattern=MEMORY)
    """Memory."""
    nodes: int = Field(default=1, ge=1)
    """Nodes that train together; more than one needs Kubernetes 1.24."""


class ServerConfig(PodConfig):
    serve: bool = True
    """Whether the run starts this server; off where the config names one that runs already, or needs none."""
    args: tuple[str, ...] = ()
    """Further arguments of `vllm serve`, or of `scope serve-...`."""
    startup: int = Field(default=1800, ge=10)
    """Seconds from the server's creation until it must answer."""
    canary: int = Field(default=60, ge=1)
    """Seconds for one token, because vLLM's `/health` answers on a hung engine too; three misses, without a token for
    anybody else meanwhile, restart the server."""


class PolicyServerConfig(ServerConfig):
    gpus: int = Field(default=2, ge=0)
    """GPUs, also the tensor-parallel width."""
    cpu: str = Field(default="8", pattern=CPU)
    """CPU cores."""
    memory: str = Field(default="64Gi", pattern=MEMORY)
    """Memory."""


class JudgeServerConfig(PolicyServerConfig):
    model: str = "/data/models/judge"
    """Folder of the frozen judge on the volume."""


class RetrieverServerConfig(ServerConfig):
    cpu: str = Field(default="16", pattern=CPU)
    """CPU cores."""
    memory: str = Field(default="160Gi", pattern=MEMORY)
    """Memory."""
    index: str = "/data/index/default"
    """Folder of the index on the volume."""


class PrepareConfig(ConfigSection):
    """What Jobs bring to the volume before the run starts. A model is a repository of the hub, with `@` and a commit
    behind it, so that it stays what it is; one that is not named is yours to copy."""

    model: str | None = Field(default=None, pattern=REPOSITORY)
    """The base model, such as `Qwen/Qwen3-8B@COMMIT`; goes to `model.path`."""
    judge: str | None = Field(default=None, pattern=REPOSITORY)
    """The judge, where it is another model; goes to `cluster.judge.model`."""
    encoder: str | None = Field(default="intfloat/e5-base-v2", pattern=REPOSITORY)
    """The retriever's encoder; goes below `/data/models` (SCOPE, section 4.1: E5-base-v2)."""
    index: tuple[str, ...] = ("--profile", "compact")
    """Options of `scope index build` besides `--encoder`; with none of them and no encoder the index is BM25's."""


class ClusterConfig(ConfigSection):
    tiny: bool = False
    """No GPUs anywhere, and instead of vLLM `scope serve-model` and `scope serve-judge`."""
    images: ImagesConfig = ImagesConfig()
    """Container images."""
    pull_secret: ObjectName | None = None
    """Name of the Secret with which images are pulled."""
    key_secret: ObjectName | None = None
    """Secret whose key `token` every server of the run demands; a second layer behind the NetworkPolicy."""
    volume_claim: ObjectName = "scope-data"
    """PersistentVolumeClaim, mounted at /data; one of another name than this must be there already."""
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = "ReadWriteMany"
    """Whether many nodes mount the claim, or one, which `node_selector` then names for every pod."""
    prepare: PrepareConfig = PrepareConfig()
    """What is brought to the volume before the run starts."""
    volumes: tuple[VolumeConfig, ...] = ()
    """Further volumes, read-only in every pod of the run."""
    gpu_resource: LabelKey = "nvidia.com/gpu"
    """Name under which nodes offer their GPUs."""
    user: int = Field(default=10_001, ge=1)
    """User and group id of every container; never root."""
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: tuple[TolerationConfig, ...] = ()
    """Taints that are tolerated."""
    priority_class: ObjectName | None = None
    """PriorityClass of every pod."""
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Further labels of every Job and Deployment, such as `kueue.x-k8s.io/queue-name`; none under `scope/`."""
    retries: int = Field(default=3, ge=0)
    """Failed attempts of one stage that are made good by another; outages, stops and evictions do not count."""
    keep: int = Field(default=86_400, ge=600)
    """Seconds that a finished Job and its logs stay, at least 600: a controller that starts again reads from the Job
    how it ended."""
    train_challenger: ChallengerStageConfig = ChallengerStageConfig()
    """Stage A."""
    make_tasks: TaskMakingStageConfig = TaskMakingStageConfig()
    """Stage B, and the held-out tasks."""
    train_solver: SolverStageConfig = SolverStageConfig()
    """Stage C."""
    compare: StageConfig = StageConfig()
    """Stage D."""
    judge: JudgeServerConfig = JudgeServerConfig()
    """The frozen judge; serves the whole run."""
    solver: PolicyServerConfig = PolicyServerConfig()
    """The Solver beside stages A, B and D."""
    challenger: PolicyServerConfig = PolicyServerConfig()
    """The Challenger beside stage B."""
    retriever: RetrieverServerConfig = RetrieverServerConfig()
    """The retriever; serves the whole run."""

    @field_validator("labels")
    @classmethod
    def _are_not_the_controllers(cls, labels: dict[str, str]) -> dict[str, str]:
        if own := next((key for key in labels if key.startswith("scope/")), None):
            raise ValueError(
                f"found {own}; keys under scope/ are the controller's own, give yours another prefix"
            )
        return labels

    @field_validator("volumes")
    @classmethod
    def _each_once(cls, volumes: tuple[VolumeConfig, ...]) -> tuple[VolumeConfig, ...]:
        for what in ("name", "path"):
            values = [getattr(volume, what) for volume in volumes]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"found the {what} {twice[0]!r} twice; give each volume its own")
        return volumes
