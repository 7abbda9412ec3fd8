"""Memory of each pod: what each of its GPUs holds at its peak, and the pod's own memory beside them.

A training step has two peaks on a GPU. While it samples, the colocated engine has its share, of which it gives back all
before the update; then there are gradients, gathered units and activations. What is the same in both is sharded
(`sharding`).
"""

from typing import NamedTuple

from scope_selfplay.config import ModelConfig, RunConfig, TrainConfig
from scope_selfplay.config.cluster import OFFLOADED, ClusterConfig, PolicyServerConfig, Sharding
from scope_selfplay.planning.assumptions import Assumptions
from scope_selfplay.planning.model_size import ModelSize, judge_size
from scope_selfplay.planning.sharding import (
    EXPORT_FILE,
    FULL,
    HALF,
    UpdateBytes,
    export_bytes,
    pinned_bytes,
    update_bytes,
)

GIB = 2.0**30
ON_ONE_GPU = 18e9
"""Up to so many parameters each GPU of a server has a copy of its own, as the controller starts it."""
Parts = dict[str, float]


class PodMemory(NamedTuple):
    """GiB per GPU of one pod at its peak, and GiB of its host; `parts` and `host_parts` add up to them.

    There are `nodes` of them. `peak` is when a GPU holds most. `requested` is the pod's memory in the config, of
    which `host_gib` must fit.
    """

    pod: str
    gpus: int
    gib: float
    parts: Parts
    peak: str
    fits: bool
    host_gib: float
    host_parts: Parts
    requested: float
    host_fits: bool
    advice: str
    nodes: int = 1


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
        lora = self.model.lora
        return lora.rank * self.size.shape.adapted(lora.target_modules)

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
            pods.append(_trainer(f"{stage} trainer", trainer, gib_of(pod.memory)))
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


def gib_of(quantity: str) -> float:
    """GiB of a Kubernetes quantity such as `192Gi`."""
    powers = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    number = quantity.rstrip("kMGTi")
    return float(number) * powers.get(quantity.removeprefix(number), 1.0) / GIB


def _trainer(pod: str, trainer: Trainer, requested: float) -> PodMemory:
    peaks = gpu_peaks(trainer, offloaded=trainer.sharers in OFFLOADED)
    peak = max(peaks, key=lambda name: sum(peaks[name].values()))
    parts, host = peaks[peak], _host(trainer)
    total, host_total = sum(parts.values()), sum(host.values())
    fits = total <= trainer.assumptions.gpu_gib
    advice = [] if fits else [_gpu_advice(trainer)]
    host_fits = host_total <= requested
    if not host_fits:
        advice.append(f"a pod of at least {host_total:.0f} GiB (it has {requested:.0f})")
    return PodMemory(
        pod=pod,
        gpus=trainer.processes,
        gib=total,
        parts=parts,
        peak=peak,
        fits=fits,
        host_gib=host_total,
        host_parts=host,
        requested=requested,
        host_fits=host_fits,
        advice="; ".join(advice),
        nodes=trainer.nodes,
    )


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
    update, share = _update(trainer), _engine(trainer)
    return {
        # Whole weights go into the engine one by one, before its cache takes its room.
        "sampling": {**resident, "engine": share},
        "updating": {
            **resident,
            "gradients": FULL * learnt * on_gpu,
            "gathered": update.gathered / GIB,
            "output layer": update.head / GIB,
            "activations": update.activations / GIB,
            "engine": 0.0 if trainer.model.engine == "vllm_colocated" else share,
        },
    }


def _update(trainer: Trainer) -> UpdateBytes:
    settings = trainer.settings
    tokens = max(settings.micro_tokens, settings.max_prompt + settings.max_response)
    trained = trainer.learnt / trainer.size.parameters if trainer.adapter else 1.0
    return update_bytes(trainer.size, tokens, sharded=trainer.sharded, trained=trained)


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


def _host(trainer: Trainer) -> Parts:
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
        others.append("model.lora")
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
    gpus, requested = settings.gpus, gib_of(settings.memory)
    width = settings.tensor_parallel or (1 if size.parameters <= ON_ONE_GPU else gpus)
    weights = HALF * size.parameters / GIB / width
    room = 0.9 * assumptions.gpu_gib - weights
    advice = "" if room > 0 else "more GPUs, or a smaller model"
    if room > 0 and size.cache_bytes:
        sequences = int(room * GIB * gpus // (size.cache_bytes * max_length))
        advice = f"room for {sequences} sequences of {max_length} tokens"
    parts = {"weights": weights, "cache": max(room, 0.0)}
    held = max(0.9 * assumptions.gpu_gib, weights)
    # Files of weights are mapped, so that the host holds one at a time.
    loading = min(HALF * size.parameters, EXPORT_FILE) / GIB
    host = {"processes": gpus * assumptions.process_gib, "loading or export": loading}
    host_gib = sum(host.values())
    return PodMemory(
        pod=name,
        gpus=gpus,
        gib=held,
        parts=parts,
        peak="serving",
        fits=room > 0,
        host_gib=host_gib,
        host_parts=host,
        requested=requested,
        host_fits=host_gib <= requested,
        advice=advice,
        nodes=settings.replicas,
    )
