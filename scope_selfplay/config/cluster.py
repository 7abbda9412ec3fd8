"""What a run asks of a Kubernetes cluster. None of it changes what a run computes: the hash leaves it out."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from scope_selfplay.config.base import ConfigSection
from scope_selfplay.config.pods import (
    CPU,
    MEMORY,
    REPOSITORY,
    Image,
    LabelKey,
    LabelValue,
    ObjectName,
    OptionalImage,
    PodConfig,
    PodPatch,
    TolerationConfig,
    VolumeConfig,
)

Sharding = Literal["full", "hybrid"]
"""torch's words for what a training over several nodes keeps on each GPU."""
OFFLOADED = range(2, 4)
"""So many GPUs that hold one copy between them keep it in host memory: two of 80 GB hold an 8B trainer only with its
optimizer there, four hold it without."""


class ImagesConfig(ConfigSection):
    """An empty field means the image of `worker`. Production runs name images by digest. `latest` is pulled at every
    start, other tags where a node has no such image."""

    worker: Image = "scope-selfplay:0.1.0"
    """Runs `python -m jobs....` and servers without a GPU. To train or serve policies on the CPU it needs torch:
    `scope-selfplay-local:0.1.0`."""
    trainer: OptionalImage = ""
    """Runs the two training stages; contains CUDA, TRL and vLLM."""
    server: OptionalImage = ""
    """Serves models with `vllm serve`."""
    retriever: OptionalImage = ""
    """Serves the index with `scope serve-retriever`."""


class StageConfig(PodConfig):
    deadline: int = Field(default=172_800, ge=60)
    """Seconds after which an attempt is stopped, including the wait for a node; the next one resumes its work."""
    grace: int = Field(default=120, ge=1)
    """Seconds between SIGTERM and SIGKILL: work is abandoned at once, a checkpoint in writing is finished."""


class TaskMakingStageConfig(StageConfig):
    shards: int = Field(default=1, ge=1, le=99)
    """Number of Jobs among which the documents are divided."""


class TrainingStageConfig(StageConfig):
    nodes: int = Field(default=1, ge=1)
    """Nodes that train together; more than one needs Kubernetes 1.24."""
    sharding: Sharding = "full"
    """What each GPU of several nodes holds of weights, gradients and optimizer: `full`, a share among all GPUs;
    `hybrid`, a share among those of its node (if it has several), so that only gradients go from node to node, once
    per update."""


class ChallengerStageConfig(TrainingStageConfig):
    gpus: int = Field(default=2, ge=0)
    """GPUs of each node."""
    cpu: str = Field(default="16", pattern=CPU)
    """CPU cores."""
    memory: str = Field(default="256Gi", pattern=MEMORY)
    """Memory. With two GPUs the trainer's states are here: 175 to 222 GiB for the paper's models (`scope plan`)."""


class SolverStageConfig(TrainingStageConfig):
    gpus: int = Field(default=4, ge=0)
    """GPUs of each node."""
    cpu: str = Field(default="32", pattern=CPU)
    """CPU cores."""
    memory: str = Field(default="384Gi", pattern=MEMORY)
    """Memory."""


class ServerConfig(PodConfig):
    serve: bool = True
    """Whether the run starts this server; false if the config names a running one, or if none is needed."""
    args: tuple[str, ...] = ()
    """Additional arguments of `vllm serve`, or of `scope serve-...`."""
    startup: int = Field(default=1800, ge=10)
    """Seconds from the creation of the server until it must be ready."""
    canary: int = Field(default=60, ge=1)
    """Timeout of the one-token probe in seconds (vLLM's `/health` succeeds even when the engine hangs). After three
    timeouts in a row during which no other request got a token, the server is restarted."""


class PolicyServerConfig(ServerConfig):
    gpus: int = Field(default=2, ge=0)
    """GPUs."""
    tensor_parallel: int | None = Field(default=None, ge=1)
    """GPUs that share one copy of the model; `gpus / tensor_parallel` copies answer side by side (vLLM's data
    parallelism). When left out, 1 where the model's name says at most 18 billion parameters (`Qwen3-8B`: it fits a GPU
    of 80 GB with room for its cache), else all."""
    replicas: int = Field(default=1, ge=1, le=99)
    """Servers of this kind, each with `gpus` GPUs, perhaps on different nodes. Prompts with the same beginning go to
    the same one, whose cache has it; when one is gone, the others take its prompts."""
    cpu: str = Field(default="8", pattern=CPU)
    """CPU cores."""
    memory: str = Field(default="64Gi", pattern=MEMORY)
    """Memory."""

    @model_validator(mode="after")
    def _divides_its_gpus(self) -> Self:
        if self.tensor_parallel and self.gpus % self.tensor_parallel:
            raise ValueError(
                f"found tensor_parallel {self.tensor_parallel} and {self.gpus} gpus; it must divide them, such as 1"
            )
        return self


class JudgeServerConfig(PolicyServerConfig):
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

    @property
    def workers(self) -> int:
        """Search processes: those of `args`, else one for each CPU but the one that answers requests; one on a GPU."""
        for row, argument in enumerate(self.args):
            name, _, value = argument.partition("=")
            if name == "--workers":
                return int(value or self.args[row + 1])
        return 1 if self.gpus else max(1, int(self.cores) - 1)


class WarmStartConfig(StageConfig):
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
    gpus: int = Field(default=8, ge=0)
    """GPUs."""
    cpu: str = Field(default="32", pattern=CPU)
    """CPU cores."""
    memory: str = Field(default="384Gi", pattern=MEMORY)
    """Memory."""


class PublishedFileConfig(ConfigSection):
    """A file that is downloaded and checked. It may be published in parts, which are joined."""

    urls: tuple[Annotated[str, Field(pattern=r"^(https?|hf)://[^\s]+/[^\s]+$")], ...] = Field(min_length=1)
    """`https://...`, or `hf://datasets/OWNER/NAME@REVISION/PATH` of the hub; one for each part, in their order."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Checksum of the file as it is published, its parts joined; the hub shows that of each file."""


class IndexJobConfig(PodConfig):
    """The Job that builds the index. With a GPU it has the image of the trainer, and torch encodes the passages."""

    cpu: str = Field(default="16", pattern=CPU)
    """CPU cores."""
    memory: str = Field(default="64Gi", pattern=MEMORY)
    """Memory."""


class PrepareConfig(ConfigSection):
    """What Jobs put on the volume before the run starts. A model is a repository of the hub, pinned by `@` and a
    commit; what is not named here must be copied by hand."""

    model: str | None = Field(default=None, pattern=REPOSITORY)
    """The base model, such as `Qwen/Qwen3-8B@COMMIT`; it is stored at `model.path`, or where `warm_start` starts."""
    judge: str | None = Field(default=None, pattern=REPOSITORY)
    """The judge, if it is another model; it is stored at `cluster.judge.model`."""
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


class GangConfig(ConfigSection):
    """Each stage is one JobSet with all its servers, which Kueue admits as a whole; needs JobSet and Kueue."""

    queue: ObjectName
    """LocalQueue of the namespace in which the stages wait."""


class EvaluationJobConfig(StageConfig):
    """A Job of its own that lets checkpoints of the run answer benchmarks: `kubectl apply -k RUN/evaluate`."""

    checkpoints: tuple[str, ...] = Field(min_length=1)
    """Checkpoints such as `S_3` and `S_0`, all on one leaderboard."""
    benchmarks: tuple[str, ...] = Field(min_length=1)
    """Benchmarks, as `scope eval --benchmark` takes them, with files on the volume: `popqa=/data/benchmarks/popqa`."""
    options: tuple[str, ...] = ()
    """Additional options of `scope eval`, such as `--samples=4` or `--pairwise`."""
    gpus: int = Field(default=1, ge=0)
    """GPUs; the Job samples from the checkpoints itself, one after the other."""
    cpu: str = Field(default="8", pattern=CPU)
    """CPU cores."""
    memory: str = Field(default="64Gi", pattern=MEMORY)
    """Memory."""


class ClusterConfig(ConfigSection):
    tiny: bool = False
    """Use no GPUs, and serve with `scope serve-model` and `scope serve-judge` instead of vLLM."""
    images: ImagesConfig = ImagesConfig()
    """Container images."""
    pull_secret: ObjectName | None = None
    """Name of the Secret with which images are pulled."""
    key_secret: ObjectName | None = None
    """Secret whose key `token` is the API key of every server of the run, in addition to the NetworkPolicies."""
    tracking_secret: ObjectName | None = None
    """Secret whose keys are environment variables of the training stages: what a tracker of `tracking.report_to` needs,
    such as `WANDB_API_KEY`, or `MLFLOW_TRACKING_URI` and `MLFLOW_TRACKING_TOKEN`."""
    volume_claim: ObjectName = "scope-data"
    """PersistentVolumeClaim, mounted at /data; a claim with another name than the default must already exist."""
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = "ReadWriteMany"
    """Whether several nodes can mount the claim, or only one; then `node_selector` must select that node."""
    storage_class: ObjectName | None = None
    """StorageClass of the claim; the cluster's default one when left out."""
    storage: str = Field(default="1Ti", pattern=MEMORY)
    """Size of the claim, as a Kubernetes quantity."""
    prepare: PrepareConfig = PrepareConfig()
    """What is put on the volume before the run starts."""
    volumes: tuple[VolumeConfig, ...] = ()
    """Additional volumes, mounted read-only in every pod of the run."""
    gpu_resource: LabelKey = "nvidia.com/gpu"
    """Resource name of the GPUs on the nodes."""
    user: int = Field(default=10_001, ge=1)
    """User and group id of every container; never root."""
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: tuple[TolerationConfig, ...] = ()
    """Tolerations of every pod; pods with GPUs also tolerate a taint with the key of `gpu_resource`."""
    priority_class: ObjectName | None = None
    """PriorityClass of every pod."""
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Additional labels of Jobs and Deployments, such as `kueue.x-k8s.io/queue-name`; `scope/` is reserved."""
    pod: PodPatch = Field(default_factory=dict)
    """A strategic-merge patch of every pod, controller and preparing Jobs included: proxies, annotations, a scheduler.
    The container is called `main`; null deletes. Each part has a `pod` of its own, which is applied after this one."""
    gang: GangConfig | None = None
    """One JobSet per stage, admitted by a queue; when left out, servers are Deployments, and a stage is a Job."""
    patience: int = Field(default=900, ge=60)
    """Seconds for which a run holds GPUs while another of its pods finds no node; up to twice as long, so that two
    runs do not give up together. Then its servers are deleted, and it tries again after a pause that doubles."""
    expiry: int = Field(default=43_200, ge=3600)
    """Seconds after which the cluster ends a run whose controller is not at work any more (an hour later it has deleted
    its servers, with their GPUs). It goes on from the volume when its folder is applied again."""
    retries: int = Field(default=3, ge=0)
    """Number of retries of a failed stage; outages, stops and evictions do not count."""
    keep: int = Field(default=86_400, ge=600)
    """Seconds for which a finished Job and its logs are kept; at least 600, because a restarted controller reads the
    result from the Job."""
    train_challenger: ChallengerStageConfig = ChallengerStageConfig()
    """Stage A."""
    make_tasks: TaskMakingStageConfig = TaskMakingStageConfig()
    """Stage B, and the held-out tasks."""
    train_solver: SolverStageConfig = SolverStageConfig()
    """Stage C."""
    compare: StageConfig = StageConfig()
    """Stage D."""
    evaluate: EvaluationJobConfig | None = None
    """A Job that evaluates checkpoints on benchmarks, whenever it is applied."""
    judge: JudgeServerConfig = JudgeServerConfig()
    """The frozen judge; serves the whole run."""
    solver: PolicyServerConfig = PolicyServerConfig()
    """The Solver server of stages A, B and D."""
    challenger: PolicyServerConfig = PolicyServerConfig()
    """The Challenger server of stage B."""
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
