"""What a run asks of a Kubernetes cluster. None of it changes what a run computes: the hash leaves it out."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from scope_selfplay.config.base import ConfigSection

CPU = r"^[0-9]+(\.[0-9]+)?m?$"
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


def _name(pattern: str, what: str, longest: int = 253) -> Any:
    """A name by the API server's rule; unlike a pattern's error, the message describes a valid one."""

    def check(name: str) -> str:
        if len(name) > longest or not re.fullmatch(pattern, name):
            raise ValueError(f"found {name!r}, expected {what}")
        return name

    return AfterValidator(check)


_AN_IMAGE = "an image's name, with a tag or a digest of 64 digits, such as registry.example/scope:1"
_A_KEY = "a label's key of at most 63 letters, digits, -, _ and ., such as team.example/pool"
Image = Annotated[str, _name(_IMAGE, _AN_IMAGE, 512)]
OptionalImage = Annotated[str, _name(f"({_IMAGE})?", _AN_IMAGE, 512)]
ObjectName = Annotated[
    str, _name(_DOMAIN, "the name of an object: small letters, digits, - and ., such as my-secret")
]
SecretKey = Annotated[
    str, _name(rf"{_DOMAIN}(/[-A-Za-z0-9_.]+)?", "the name of an object, or name/key, such as servers/token")
]
"""Of a Secret without a key the key `token` is meant."""
LabelKey = Annotated[str, _name(rf"({_DOMAIN}/)?{_LABEL}", _A_KEY, 317)]


_FACTORS = {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9} | {
    letter + i: base**power
    for i, base, letters in (("i", 1024.0, "KMGTPE"), ("", 1e3, "kMGTPE"))
    for power, letter in enumerate(letters, start=1)
}


def secret_key(named: str) -> tuple[str, str]:
    """The Secret and the key that a setting names."""
    name, _, key = named.partition("/")
    return name, key or "token"


def amount(quantity: Any) -> float:
    """A Kubernetes quantity as a number: `500m` is 0.5, `1Gi` 1073741824."""
    text = str(quantity)
    number = text.rstrip("KMGTPEkmuni")
    return float(number) * _FACTORS[text.removeprefix(number)]


def _check_pod_patch(patch: dict[str, Any]) -> dict[str, Any]:
    """What a patch may hold: metadata and spec of a pod, whose lists of containers, variables, volumes have names."""
    metadata, spec = patch.get("metadata") or {}, patch.get("spec") or {}
    wrong = sorted({*patch} - {"metadata", "spec"})
    wrong += [f"metadata.{key}" for key in sorted({*metadata} - {"labels", "annotations"})]
    if wrong:
        raise ValueError(
            f"found {wrong[0]}; a pod's patch has metadata (labels, annotations) and spec, as in a PodTemplate"
        )
    own = [key for key in metadata.get("labels") or {} if key.startswith(("scope/", "app.kubernetes.io/"))]
    if own:
        raise ValueError(f"found the label {own[0]}, by which the run finds its pods; use another key")
    if "resourceClaims" in spec:
        raise ValueError(
            "found spec.resourceClaims; dynamic resource allocation is not supported, use a device plugin"
        )
    for kind in ("containers", "initContainers"):
        if any("name" not in container for container in spec.get(kind) or []):
            raise ValueError(
                f"found one of spec.{kind} without a name; the run's own container is called main"
            )
    return patch


PodPatch = Annotated[dict[str, Any], AfterValidator(_check_pod_patch)]
"""A strategic-merge patch of a pod's template, as `kubectl patch` takes it."""


_MERGE_KEYS = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "env", "imagePullSecrets"), "name"),
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""Lists whose items are told apart by a field; every other list is replaced."""


def patched(body: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`body` with `patch` merged in: mappings by key, lists by merge key; a null deletes."""
    merged = dict(body)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            before = merged.get(key)
            merged[key] = patched(before if isinstance(before, Mapping) else {}, value)
        elif key in _MERGE_KEYS and isinstance(merged.get(key), list):
            name = _MERGE_KEYS[key]
            by_key = {item.get(name): item for item in merged[key]}
            for change in value:
                by_key[change.get(name)] = patched(by_key.get(change.get(name), {}), change)
            merged[key] = list(by_key.values())
        else:
            merged[key] = value
    return merged


Gpus = Annotated[int, Field(ge=0, description="GPUs of each pod; CPU cores and memory go with them.")]


class PodConfig(ConfigSection):
    """One container's GPUs, and what goes with them. Requests and limits are equal, so that it is evicted last."""

    WITHOUT_GPU: ClassVar[tuple[int, int]] = (4, 16)
    TINY: ClassVar[tuple[int, int]] = (1, 2)

    gpus: Gpus = 0
    pod: PodPatch = Field(default_factory=dict)
    """A strategic-merge patch of these pods, applied after `cluster.pod`: variables such as NCCL_*, annotations,
    affinity, a runtimeClassName, other resources than go with GPUs. The container is called `main`; null deletes."""

    def with_gpus(self) -> tuple[int, int]:
        """CPU cores and GiB of memory of a pod with GPUs."""
        return 4 * self.gpus, (32 if self.gpus <= 2 else 64) * self.gpus

    def amounts(self, *, tiny: bool = False) -> dict[str, str]:
        """`cpu` and `memory`, as Kubernetes quantities: as the patch says, else what goes with the GPUs."""
        cpu, memory = self.TINY if tiny else self.with_gpus() if self.gpus else self.WITHOUT_GPU
        containers = (self.pod.get("spec") or {}).get("containers") or []
        main: dict[str, Any] = next((each for each in containers if each["name"] == "main"), {})
        resources = main.get("resources") or {}
        stated = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        usual = {"cpu": f"{cpu}", "memory": f"{memory}Gi"}
        return {name: str(stated.get(name) or found) for name, found in usual.items()}


Sharding = Literal["full", "hybrid"]
"""torch's words for what a training over several nodes keeps on each GPU."""
GRACE = 600
"""Seconds between SIGTERM and SIGKILL of a stage: work is abandoned at once, a training's complete steps are saved,
which for 8B takes a minute and more. Where a node goes sooner, the checkpoint before counts."""
OFFLOADED = range(2, 4)
"""So many GPUs that hold one copy between them keep it in host memory: two of 80 GB hold an 8B trainer only with its
optimizer there, four hold it without."""


class ImagesConfig(ConfigSection):
    """Production runs name images by digest. `latest` is pulled at every start, other tags where a node has no such
    image. One server's own image is a matter of its `pod`."""

    registry: str = Field(default="", pattern=r"^([A-Za-z0-9][-A-Za-z0-9.:/_]*)?$")
    """Registry and path, such as `registry.example/me`, of images that name none. Without it nodes that do not have
    such an image ask docker.io for it."""
    worker: Image = "scope-selfplay:0.2.0"
    """Runs `python -m jobs ...` and servers without a GPU. To train or serve policies on the CPU it needs torch:
    `scope-selfplay-local:0.2.0`."""
    trainer: OptionalImage = ""
    """Runs the two training stages, and `vllm serve`; contains CUDA, TRL and vLLM. That of `worker` when left out."""

    @model_validator(mode="after")
    def _in_the_registry(self) -> Self:
        for part in ("worker", "trainer"):
            image = getattr(self, part)
            if self.registry and image and not has_registry(image):
                object.__setattr__(self, part, f"{self.registry.rstrip('/')}/{image}")
        return self


def image_name(image: str) -> str:
    """Without registry, tag and digest."""
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def has_registry(image: str) -> bool:
    """Whether an image's name begins with a host, as container runtimes read it."""
    first, slash, _ = image.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


class TaskMakingStageConfig(PodConfig):
    shards: int = Field(default=1, ge=1, le=99)
    """Number of Jobs among which the documents are divided."""


class TrainingStageConfig(PodConfig):
    WITHOUT_GPU: ClassVar[tuple[int, int]] = (16, 64)
    TINY: ClassVar[tuple[int, int]] = (1, 4)

    nodes: int = Field(default=1, ge=1)
    """Nodes that train together; more than one needs Kubernetes 1.24."""
    sharding: Sharding = "full"
    """What each GPU of several nodes holds of weights, gradients and optimizer: `full`, a share among all GPUs;
    `hybrid`, a share among those of its node (if it has several), so that only gradients go from node to node, once
    per update."""

    def with_gpus(self) -> tuple[int, int]:
        """Two GPUs have the trainer's states in host memory: 175 to 222 GiB for the paper's models (`scope plan`)."""
        return 8 * self.gpus, (64 if self.gpus == 1 else 128 if self.gpus in OFFLOADED else 96) * self.gpus


class ChallengerStageConfig(TrainingStageConfig):
    gpus: Gpus = 2


class SolverStageConfig(TrainingStageConfig):
    gpus: Gpus = 4


class ServerConfig(PodConfig):
    serve: bool = True
    """Whether the run starts this server; false if the config names a running one, or if none is needed."""
    args: tuple[str, ...] = ()
    """Additional arguments of `vllm serve`, or of `scope serve-...`."""


class PolicyServerConfig(ServerConfig):
    WITHOUT_GPU: ClassVar[tuple[int, int]] = (8, 24)

    gpus: Gpus = 2
    tensor_parallel: int | None = Field(default=None, ge=1)
    """GPUs that share one copy of the model; `gpus / tensor_parallel` copies answer side by side (vLLM's data
    parallelism). When left out, 1 where the model's name says at most 18 billion parameters (`Qwen3-8B`: it fits a GPU
    of 80 GB with room for its cache), else all."""
    vllm: bool = False
    """Serve with vLLM also without a GPU, by its build for CPUs."""
    replicas: int = Field(default=1, ge=1, le=99)
    """Servers of this kind, each with `gpus` GPUs, perhaps on different nodes. Prompts with the same beginning go to
    the same one, whose cache has it; when one is gone, the others take its prompts."""

    def mistakes(self) -> Iterator[str]:
        if self.tensor_parallel and self.gpus % self.tensor_parallel:
            yield (
                f"found tensor_parallel {self.tensor_parallel} and {self.gpus} gpus; it must divide them, such as 1"
            )


class JudgeServerConfig(PolicyServerConfig):
    WITHOUT_GPU: ClassVar[tuple[int, int]] = (1, 1)
    TINY: ClassVar[tuple[int, int]] = WITHOUT_GPU

    model: str = "/data/models/judge"
    """Folder of the frozen judge on the volume."""


class RetrieverServerConfig(ServerConfig):
    cpu: str = Field(default="16", pattern=CPU)
    """CPU cores: one answers requests, each of the others has a search process (`--workers`)."""
    memory: str = Field(default="32Gi", pattern=MEMORY)
    """Memory; the default is for 16 CPUs and a `compact` or `bm25` index of Wikipedia; `scope plan` says what others
    take. The retriever ends with 64 where its search processes need more, and warns where the index does."""
    index: str = "/data/index/default"
    """Folder of the index on the volume."""

    def amounts(self, *, tiny: bool = False) -> dict[str, str]:
        """`cpu` and `memory`: those of a retriever go with its index."""
        return {"cpu": self.cpu, "memory": self.memory}

    @property
    def workers(self) -> int:
        """Search processes: those of `args`, else one for each CPU but the one that answers requests."""
        for row, argument in enumerate(self.args):
            name, _, value = argument.partition("=")
            if name == "--workers":
                return int(value or self.args[row + 1])
        return max(1, int(amount(self.cpu)) - 1)


class WarmStartConfig(PodConfig):
    """Supervised training before the run, by a Job of its own. What it writes is the run's M0: `model.path`."""

    start: str = Field(pattern=r"^/")
    """Folder of the model that learns; `cluster.prepare.model` is stored there."""
    trajectories: tuple[str, ...] = Field(min_length=1)
    """Files of JSON lines, each a conversation: `messages` with tool calls in the usual chat format; maybe `tools`."""
    epochs: float = Field(default=3.0, gt=0)
    """Passes over all trajectories (ArenaRL, appendix A)."""
    learning_rate: float = Field(default=1e-5, gt=0)
    """Learning rate after one step of warm-up."""
    batch: int = Field(default=32, ge=1)
    """Rows per step, of all GPUs (ArenaRL, appendix A: one on each of 32)."""
    micro_batch: int = Field(default=1, ge=1)
    """Rows of the greatest length for which a forward pass of a GPU has room (ArenaRL, appendix A)."""
    max_length: int = Field(default=32_768, ge=64)
    """Maximum tokens of a trajectory; longer ones are left out and counted."""
    gpus: Gpus = 8

    def with_gpus(self) -> tuple[int, int]:
        return 4 * self.gpus, 48 * self.gpus


class PublishedFileConfig(ConfigSection):
    """A file that is downloaded and checked. It may be published in parts, which are joined."""

    urls: tuple[Annotated[str, Field(pattern=r"^(https?|hf)://[^\s]+/[^\s]+$")], ...] = Field(min_length=1)
    """`https://...`, or `hf://datasets/OWNER/NAME@REVISION/PATH` of the hub; one for each part, in their order."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Checksum of the file as it is published, its parts joined; the hub shows that of each file."""


class IndexJobConfig(PodConfig):
    """The Job that builds the index. With a GPU it has the image of the trainer, and torch encodes the passages."""

    WITHOUT_GPU: ClassVar[tuple[int, int]] = (16, 64)

    def with_gpus(self) -> tuple[int, int]:
        return self.WITHOUT_GPU


class PrepareConfig(ConfigSection):
    """What Jobs put on the volume before the run starts. A model is a repository of the hub, pinned by `@` and a
    commit; what is not named here must be copied by hand."""

    model: str | None = Field(default=None, pattern=REPOSITORY)
    """The base model, such as `Qwen/Qwen3-8B@COMMIT`; it is stored at `model.path`, or where `warm_start` starts."""
    judge: str | None = Field(default=None, pattern=REPOSITORY)
    """The judge, if it is another model; it is stored at `cluster.judge.model`."""
    hub: str = Field(default="", pattern=r"^(https?://[^\s/]+.*)?$")
    """A mirror of the hub, such as `https://mirror.example:8443`; fetching pods may call its port."""
    hub_secret: SecretKey = "hub-token"
    """Secret with the token for the hub; it may be missing."""
    encoder: str | None = Field(default="intfloat/e5-base-v2", pattern=REPOSITORY)
    """The encoder of the retriever; it is stored below `/data/models` (SCOPE, section 4.1: E5-base-v2)."""
    corpus: PublishedFileConfig | None = None
    """The corpus; it is stored at `corpus.path`, as JSON lines where that ends in `.jsonl`."""
    vectors: PublishedFileConfig | None = None
    """A flat FAISS index of the corpus, row for row, whose vectors are taken instead of encoding; it is stored below
    `/data/corpus`."""
    index: tuple[str, ...] = ("--profile", "compact")
    """Options of `scope index build` in addition to `--encoder`; without options and encoder a BM25 index is built."""
    index_job: IndexJobConfig = IndexJobConfig()
    """The Job that builds the index."""
    warm_start: WarmStartConfig | None = None
    """Supervised training of the base model on trajectories, before the run (ArenaRL, section 6.1)."""


class EvaluationJobConfig(PodConfig):
    """A Job of its own that lets checkpoints of the run answer benchmarks: `kubectl apply -k RUN/evaluate`."""

    checkpoints: tuple[str, ...] = Field(min_length=1)
    """Checkpoints such as `S_3` and `S_0`, all on one leaderboard."""
    benchmarks: tuple[str, ...] = Field(min_length=1)
    """Benchmarks, as `scope eval --benchmark` takes them, with files on the volume: `popqa=/data/benchmarks/popqa`."""
    options: tuple[str, ...] = ()
    """Additional options of `scope eval`, such as `--samples=4` or `--pairwise`."""
    gpus: int = Field(default=1, ge=0)
    """GPUs; the Job samples from the checkpoints itself, one after the other."""

    def with_gpus(self) -> tuple[int, int]:
        return 8 * self.gpus, 64 * self.gpus


class ClusterConfig(ConfigSection):
    tiny: bool = False
    """Use no GPUs, and serve with `scope serve-model` and `scope serve-judge` instead of vLLM."""
    images: ImagesConfig = ImagesConfig()
    """Container images."""
    key_secret: SecretKey | None = None
    """Secret, and key if it is not `token`, of the API key of every server of the run (`VLLM_API_KEY` in its stages),
    in addition to the NetworkPolicies."""
    judge_secret: SecretKey | None = None
    """Secret of the key of an external judge: `JUDGE_API_KEY` in stages alone, for `judge.endpoint.api_key_env`."""
    proxy: str = Field(default="", pattern=r"^(https?://[^\s/@]+:[0-9]+/?)?$")
    """The way out, `http://HOST:PORT`, of pods that fetch, and of stages that call outside over HTTPS."""
    queue: str = Field(default="", pattern=rf"^({_DOMAIN})?$", max_length=63)
    """Kueue's LocalQueue of every pod that asks for GPUs, its Job or Deployment."""
    tracking_secret: ObjectName | None = None
    """Secret whose keys are environment variables of the training stages: what a tracker of `tracking.report_to` needs,
    such as `WANDB_API_KEY`, or `MLFLOW_TRACKING_URI` and `MLFLOW_TRACKING_TOKEN`."""
    volume_claim: ObjectName = "scope-data"
    """PersistentVolumeClaim, mounted at /data; a claim with another name than the default must already exist."""
    claim: dict[str, Any] = Field(default_factory=dict)
    """A patch of the claim's spec (1Ti, ReadWriteMany, of the cluster's default StorageClass), such as
    `{storageClassName: nfs, resources: {requests: {storage: 4Ti}}}`. With `accessModes: [ReadWriteOnce]` one node alone
    can mount it, which the `nodeSelector` of `cluster.pod` must select."""
    store: str = Field(default="", pattern=r"^((s3|gs|file)://[^\s?]+(\?endpoint=https?://[^\s/]+)?)?$")
    """In place of a volume for all pods: each has a disk of its own, and what they have of each other lies in this
    object store, `s3://BUCKET/PREFIX` (with `?endpoint=http://HOST:PORT` where it is not Amazon's) or `gs://`."""
    store_secret: ObjectName | None = None
    """Secret whose keys are environment variables of all that copies, `AWS_ACCESS_KEY_ID` and such; none with workload
    identity."""
    prepare: PrepareConfig = PrepareConfig()
    """What is put on the volume before the run starts."""
    gpu_resource: LabelKey = "nvidia.com/gpu"
    """Resource name of the GPUs on the nodes, such as `nvidia.com/mig-3g.40gb` of MIG."""
    gpu_pod: PodPatch = Field(default_factory=dict)
    """As `pod`, of pods with GPUs alone, and after it: their pool and its tolerations, `runtimeClassName`, NCCL_*."""
    cpu_pod: PodPatch = Field(default_factory=dict)
    """As `pod`, of pods without GPUs alone, the controller among them, and after it."""
    pod: PodPatch = Field(default_factory=dict)
    """A strategic-merge patch of every pod, controller and preparing Jobs included: `nodeSelector`, `tolerations` (pods
    with GPUs tolerate a taint with the key of `gpu_resource`, too), `imagePullSecrets`, `priorityClassName`, proxies,
    annotations, volumes (called `extra-...` where the run's folder does not bring what they mount). Its labels are
    those of Jobs and Deployments, too; a queue is named in `queue`. The container is called `main`; null deletes.
    Each part has a `pod` of its own, which is applied after this one."""
    deadline: int = Field(default=172_800, ge=60)
    """Seconds after which an attempt of a stage is stopped, including the wait for a node; the next one resumes its
    work."""
    patience: int = Field(default=1800, ge=60)
    """Seconds for which a run holds GPUs while another of its pods finds no node; a new node must take less."""
    train_challenger: ChallengerStageConfig = ChallengerStageConfig()
    """The stage `challenger`."""
    make_tasks: TaskMakingStageConfig = TaskMakingStageConfig()
    """The stage `tasks`, and the held-out tasks."""
    train_solver: SolverStageConfig = SolverStageConfig()
    """The stage `solver`."""
    compare: PodConfig = PodConfig()
    """The stage `compare`."""
    evaluate: EvaluationJobConfig | None = None
    """A Job that evaluates checkpoints on benchmarks, whenever it is applied."""
    judge: JudgeServerConfig = JudgeServerConfig()
    """The frozen judge; serves the whole run."""
    solver: PolicyServerConfig = PolicyServerConfig()
    """The Solver server of the stages `challenger`, `tasks` and `compare`."""
    challenger: PolicyServerConfig = PolicyServerConfig()
    """The Challenger server of the stage `tasks`."""
    retriever: RetrieverServerConfig = RetrieverServerConfig()
    """The retriever; serves the whole run."""

    def mistakes(self) -> Iterator[str]:
        if self.gpu_resource.startswith("amd.com/"):
            yield f"found gpu_resource {self.gpu_resource}; AMD GPUs are not supported: all images are CUDA's"

    @property
    def node_selector(self) -> dict[str, str]:
        """Labels that a node must have for any pod."""
        return dict((self.pod.get("spec") or {}).get("nodeSelector") or {})

    @property
    def labels(self) -> dict[str, str]:
        """Further labels of Jobs, Deployments and pods."""
        return dict((self.pod.get("metadata") or {}).get("labels") or {})

    @property
    def access_mode(self) -> str:
        """Whether several nodes can mount the claim (ReadWriteMany) or one (ReadWriteOnce)."""
        modes = self.claim.get("accessModes") or ["ReadWriteMany"]
        return str(modes[0])
