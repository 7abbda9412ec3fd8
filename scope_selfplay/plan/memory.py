"""Memory of each pod: what each of its GPUs holds at its peak, and the pod's own memory beside them.

A training step has two peaks on a GPU. While it samples, the colocated engine has its share, of which it gives back all
before the update; then there are gradients, gathered units and activations. What is the same in both is sharded
(`sharding`).
"""

from typing import NamedTuple

from retrieval.profiles import GIB
from scope_selfplay.config.base import ON_ONE_GPU
from scope_selfplay.config.cluster import OFFLOADED, ClusterConfig, PolicyServerConfig, Sharding, amount
from scope_selfplay.config.run import ModelConfig, RunConfig
from scope_selfplay.config.training import TrainConfig
from scope_selfplay.plan.size import Assumptions, ModelShape, ModelSize, judge_size

HALF, FULL = 2, 4
"""Bytes of a bf16 and of a float32 number."""
EXPORT_FILE = 5e9
"""Bytes of the largest file of an export."""
HEAD_TILE = (4096, 32_768)
"""Tokens and words of a tile of logits in TRL's fused output layer."""


def export_bytes(model: ModelConfig, size: ModelSize) -> float:
    """Of a plain checkpoint: as M0 is stored, which is bf16 for the models of today, or float32."""
    return (FULL if model.export_dtype == "float32" else HALF) * size.parameters


def layer_activations(shape: ModelShape) -> int:
    """Bytes per token that one decoder layer keeps for its backward pass, with an attention that keeps no scores.

    Counted on the meta device: norms and rotations in float32, four times the feed-forward width in bf16.
    """
    return 17 * (shape.hidden + shape.queries + shape.keys) + 8 * shape.between


def pinned_bytes(size: ModelSize, processes: int, width: int) -> float:
    """Host memory of one process for its shards of all weights at `width` bytes, pinned.

    torch rounds every pinned tensor up to a power of two, a third more for Qwen3-8B.
    """
    shape = size.shape
    layer = sum(_rounded(-(-rows // processes) * columns * width) for rows, columns in shape.matrices)
    table = _rounded(-(-shape.vocabulary // processes) * shape.hidden * width)
    # A guessed shape has about as many parameters as the model: the rest is scaled.
    scale = size.parameters / shape.parameters
    return scale * (shape.layers * layer + (1 if shape.tied else 2) * table)


def _rounded(size: int) -> int:
    return 1 << (size - 1).bit_length() if size > 1 else size


Parts = dict[str, float]


class PodMemory(NamedTuple):
    """GiB of each GPU of one pod at its peak, which is when a GPU holds most, and of its host, by what takes them.

    There are `nodes` such pods. A GPU offers `room`; `requested` is the pod's memory in the config.
    """

    pod: str
    gpus: int
    parts: Parts
    peak: str
    room: float
    host_parts: Parts
    requested: float
    advice: str
    nodes: int = 1

    @property
    def gib(self) -> float:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        # What fills the room exactly fits.
        return self.gib <= self.room + 1e-9

    @property
    def host_gib(self) -> float:
        return sum(self.host_parts.values())

    @property
    def host_fits(self) -> bool:
        return self.host_gib <= self.requested


class Trainer(NamedTuple):
    """One stage's training: `learnt` are its parameters with gradients, `size` those of the model.

    `processes` are those of one pod, each with a GPU.
    """

    model: ModelConfig
    settings: TrainConfig
    processes: int
    size: ModelSize
    assumptions: Assumptions
    under_fsdp: bool = False
    """FSDP wraps a process that trains alone, too; several always."""
    nodes: int = 1
    sharding: Sharding = "full"

    @property
    def sharers(self) -> int:
        """GPUs that hold one copy of weights, gradients and optimizer between them."""
        one_node = self.sharding == "hybrid" and self.processes > 1
        return self.processes if one_node else self.processes * self.nodes

    @property
    def sharded(self) -> bool:
        return self.under_fsdp or self.sharers > 1

    @property
    def adapter(self) -> int:
        return self.size.shape.adapted(self.model.lora_rank)

    @property
    def learnt(self) -> float:
        return self.adapter or self.size.parameters

    @property
    def has_reference(self) -> bool:
        """Without its adapter a model is its own reference."""
        return bool(self.settings.kl_beta) and not self.adapter


def pod_memory(config: RunConfig, size: ModelSize, assumptions: Assumptions) -> tuple[PodMemory, ...]:
    """Of the pods of the cluster's run that have GPUs."""
    cluster, pods = config.cluster, []
    for stage, settings, pod in (
        ("challenger", config.challenger, cluster.train_challenger),
        ("solver", config.solver, cluster.train_solver),
    ):
        if pod.gpus:
            trainer = Trainer(config.model, settings, pod.gpus, size, assumptions)
            trainer = trainer._replace(nodes=pod.nodes, sharding=pod.sharding)
            pods.append(_trainer(f"{stage} trainer", trainer, amount(pod.amounts()["memory"]) / GIB))
    judge = judge_size(cluster.judge.model, size)
    for name, server in (
        ("challenger", cluster.challenger),
        ("solver", cluster.solver),
        ("judge", cluster.judge),
    ):
        if server.serve and server.gpus:
            served = judge if name == "judge" else size
            pods.append(_server(name, server, served, config.model.max_length, assumptions))
    return tuple(pods)


def most_gpus(cluster: ClusterConfig) -> int:
    """GPUs of the stage that has the most, its servers included."""
    challenger, solver, judge = (
        server.serve * server.replicas * server.gpus
        for server in (cluster.challenger, cluster.solver, cluster.judge)
    )
    first, last = (pod.nodes * pod.gpus for pod in (cluster.train_challenger, cluster.train_solver))
    return judge + max(first + solver, challenger + solver, last)


def _trainer(pod: str, trainer: Trainer, requested: float) -> PodMemory:
    peaks = gpu_peaks(trainer, offloaded=trainer.sharers in OFFLOADED)
    peak = max(peaks, key=lambda name: sum(peaks[name].values()))
    room, host, nodes = trainer.assumptions.gpu_gib, host_memory(trainer), trainer.nodes
    found = PodMemory(pod, trainer.processes, peaks[peak], peak, room, host, requested, "", nodes)
    advice = [] if found.fits else [_gpu_advice(trainer)]
    if not found.host_fits:
        advice.append(f"a pod of at least {found.host_gib:.0f} GiB (it has {requested:.0f})")
    return found._replace(advice="; ".join(advice))


def gpu_peaks(trainer: Trainer, *, offloaded: bool) -> dict[str, Parts]:
    """GiB of one GPU while it samples and while it updates."""
    assumptions, learnt = trainer.assumptions, trainer.learnt / trainer.sharers
    whole = trainer.size.parameters / trainer.sharers
    on_gpu = 0.0 if offloaded else 1 / GIB
    # One process alone runs its reference under autocast, from float32.
    reference = HALF if trainer.sharded else FULL
    resident = {
        "weights": FULL * (whole + (learnt if trainer.adapter else 0.0)) * on_gpu,
        "optimizer": 2 * FULL * learnt * on_gpu,
        "reference": reference * whole * trainer.has_reference * on_gpu,
        "context": assumptions.context_gib,
    }
    share = _engine(trainer)
    return {
        # Whole weights go into the engine one by one, before its cache takes its room.
        "sampling": {**resident, "engine": share},
        "updating": {
            **resident,
            "gradients": FULL * learnt * on_gpu,
            **_update(trainer),
            "engine": 0.0 if trainer.model.engine == "vllm_colocated" else share,
        },
    }


def _update(trainer: Trainer) -> Parts:
    """GiB that a forward and backward pass takes beside shards, at the moment that takes most: the end of the forward
    pass, the output layer's backward pass, or that of a decoder layer.

    Gathered are unsharded bf16 units, and a gradient on its way to the shards: bf16, and float32 to reduce. The output
    layer is TRL's fused one: gradients in float32, and a tile of its logits. Activations are those under gradient
    checkpointing: the input of every layer, and all of the layer that is worked on. On an H200 the peaks of updates of
    0.6B (sharded, offloaded), 1.7B and 8B with an adapter were .98 to 1.01 of this.
    """
    settings, size, shape = trainer.settings, trainer.size, trainer.size.shape
    # Of a micro batch, padding included.
    tokens = max(settings.micro_tokens, settings.max_prompt + settings.max_response)
    trained = trainer.learnt / size.parameters if trainer.adapter else 1.0
    table = 0 if trainer.adapter else FULL * shape.table
    tile = HALF * HEAD_TILE[1] * (HEAD_TILE[0] + shape.hidden)
    # Gradients of the last hidden states are float32, too.
    head = table + tile + FULL * tokens * shape.hidden
    layer = tokens * layer_activations(shape)
    if trainer.sharded:
        kept = HALF * tokens * shape.hidden * shape.layers
        tail, embedding = shape.table + shape.hidden, 0 if shape.tied else shape.table
        gathered = HALF * (tail + size.layer + max(size.layer, embedding))
        gathered += trained * (HALF * max(tail, size.layer) + FULL * size.layer)
        moments = [(HALF * tail, head + table / 2, kept), (gathered, 0, kept + layer)]
    else:
        # Autocast leaves in float32 what layers hand on. It keeps bf16 copies of trained weights until the forward pass
        # ends, and those of one layer in the backward pass; a gradient of a tied table waits for the embedding's.
        kept = FULL * tokens * shape.hidden * shape.layers
        copies = HALF * size.layer * (1 if trainer.adapter else shape.layers)
        gathered = HALF * size.layer + trained * FULL * size.layer
        if trainer.adapter:
            # peft casts the inputs of all seven linear layers, and keeps them in bf16.
            layer += tokens * (HALF * (5 * shape.hidden + shape.queries) + (HALF + FULL) * shape.between)
        moments = [
            (copies, tile, kept),
            (0, head, kept),
            (gathered, table if shape.tied else 0, kept + layer),
        ]
    most = max(moments, key=sum)
    return {
        name: size / GIB for name, size in zip(("gathered", "output layer", "activations"), most, strict=True)
    }


def _engine(trainer: Trainer) -> float:
    """GiB of what samples on the trainer's GPU."""
    model, settings, size = trainer.model, trainer.settings, trainer.size
    match model.engine:
        case "vllm_colocated":
            return model.vllm_memory * trainer.assumptions.gpu_gib
        case "vllm_server":
            return 0.0
        case "in_process":
            # A whole copy of the weights and every slot at its full length, in float32.
            length = min(model.max_length, settings.max_prompt + settings.max_response)
            per_token = 2 * (size.cache_bytes or size.shape.cache_bytes)
            return (FULL * size.parameters + model.slots * length * per_token) / GIB


def host_memory(trainer: Trainer) -> Parts:
    """GiB of the pod's memory: processes, shards that are kept there, and what loading or exporting adds.

    A sharded checkpoint is written tensor by tensor. The export gathers the weights on the first process, and one file
    of them; at the start that process reads them in float32, when there are no shards yet, so the larger counts.
    """
    processes, sharers, size = trainer.processes, trainer.sharers, trainer.size
    parts = {"processes": processes * trainer.assumptions.process_gib}
    loading = FULL * size.parameters / GIB
    if sharers in OFFLOADED:
        # Adam's moments are ordinary tensors; what travels to the GPU and back is pinned.
        pinned = processes * pinned_bytes(size, sharers, FULL) / GIB
        share = trainer.learnt / size.parameters
        parts["weights"] = pinned
        parts["gradients"] = pinned * share
        parts["optimizer"] = 2 * FULL * trainer.learnt / GIB * processes / sharers
        parts["reference"] = processes * pinned_bytes(size, sharers, HALF) / GIB * trainer.has_reference
        loading = 0.0
    export = (export_bytes(trainer.model, size) + EXPORT_FILE) / GIB
    parts["loading or export"] = max(export, loading)
    return parts


def _gpu_advice(trainer: Trainer) -> str:
    assumptions, settings = trainer.assumptions, trainer.settings
    others = [*_smaller_engine(trainer), "more GPUs"]
    if trainer.sharers not in OFFLOADED:
        offloaded = max(sum(parts.values()) for parts in gpu_peaks(trainer, offloaded=True).values())
        enough = "fits" if offloaded <= assumptions.gpu_gib else "still does not fit"
        others.insert(0, f"FSDP's offload to the host ({offloaded:.0f} GiB, which {enough})")
    if settings.micro_tokens > settings.max_prompt + settings.max_response:
        others.append(f"micro_tokens {settings.micro_tokens // 2}")
    if not trainer.adapter:
        others.append("model.lora_rank")
    if trainer.model.engine == "in_process":
        others.append("fewer model.slots, or vLLM")
    return ", ".join(others[:-1]) + f" or {others[-1]}" if len(others) > 1 else others[0]


def _smaller_engine(trainer: Trainer) -> list[str]:
    """The share that a colocated engine can have, where that is less than it would take."""
    peaks, gpu = gpu_peaks(trainer, offloaded=trainer.sharers in OFFLOADED), trainer.assumptions.gpu_gib
    sampling = peaks["sampling"]
    share = int(100 * (gpu - sum(sampling.values()) + sampling["engine"]) / gpu) / 100
    if sum(peaks["updating"].values()) > gpu or not 0 < share < trainer.model.vllm_memory:
        return []
    return [f"model.vllm_memory {share:g}"] if trainer.model.engine == "vllm_colocated" else []


def _server(
    name: str, settings: PolicyServerConfig, size: ModelSize, max_length: int, assumptions: Assumptions
) -> PodMemory:
    """Weights in bf16, a copy on each GPU where it leaves room, else shared by all; what is left holds the cache."""
    gpus, requested = settings.gpus, amount(settings.amounts()["memory"]) / GIB
    width = settings.tensor_parallel or (1 if size.parameters <= ON_ONE_GPU else gpus)
    weights = HALF * size.parameters / GIB / width
    room = 0.9 * assumptions.gpu_gib - weights
    advice = "" if room > 0 else "more GPUs, or a smaller model"
    if room > 0 and size.cache_bytes:
        sequences = int(room * GIB * gpus // (size.cache_bytes * max_length))
        advice = f"room for {sequences} sequences of {max_length} tokens"
    parts = {"weights": weights, "cache": max(room, 0.0)}
    # Files of weights are mapped, so that the host holds one at a time.
    loading = min(HALF * size.parameters, EXPORT_FILE) / GIB
    host = {"processes": gpus * assumptions.process_gib, "loading or export": loading}
    offered = 0.9 * assumptions.gpu_gib
    return PodMemory(name, gpus, parts, "serving", offered, host, requested, advice, settings.replicas)
