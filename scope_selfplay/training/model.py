"""The model that is trained, and M0 beside it: where they lie, who shares them, and what they say of a batch.

By itself every rank holds the whole model, and gradients are added up once an update. On GPUs the launcher has it
sharded with FSDP2 (SCOPE_FSDP_SHARERS): a rank holds its share of each layer, of its gradients and of the optimizer in
float32; a layer is gathered in bf16 while it computes, and gradients are reduced in float32 after every pass, since
those that are not are whole (16 GB for 8B parameters). With several copies (hybrid sharding over nodes) the same
shares of all copies add up in the last pass of an update.

The reference of the KL is always M0. An adapter is trained on through all iterations, over M0: without it the model
*is* M0, so the reference costs no memory. Where a start has no adapter (it was trained in full), a new one is put over
its weights and M0 is loaded beside it, as beside a model without an adapter. Without a KL there is no reference.

While rollouts are sampled, weights, moments and M0 lie beside the engine; gradients and activations only in an update.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from scope_selfplay.inference.checkpoints import load_model, load_with_adapter
from scope_selfplay.inference.slots import can_pack
from scope_selfplay.training.passes import Batch
from scope_selfplay.training.ranks import Ranks

_ADAPTED = "default"


class Scores(NamedTuple):
    """Log-probabilities of a batch's sampled tokens and the entropies before them, 0 elsewhere; a router's loss."""

    logps: Any
    entropies: Any
    router: Any


@dataclass(frozen=True)
class Placement:
    """`compute`: in what passes are computed; `sharers`: ranks that hold one copy between them, 1 for whole copies.

    `offload`: weights and optimizer lie in the host's memory.
    """

    device: torch.device
    compute: torch.dtype
    sharers: int = 1
    sharded: bool = False
    offload: bool = False

    @classmethod
    def of_this_process(cls, *, exact: bool) -> "Placement":
        """As the launcher says; a CPU with matrix units computes in bf16 where what is sampled need not be `exact`."""
        sharers = int(os.environ.get("SCOPE_FSDP_SHARERS", "0"))
        offload = os.environ.get("SCOPE_FSDP_OFFLOAD") == "1"
        if torch.cuda.is_available():
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            return cls(device, torch.bfloat16, max(1, sharers), sharers > 0, offload)
        device = torch.device("cpu")
        half = sharers > 0 or (not exact and can_pack(device))
        return cls(device, torch.bfloat16 if half else torch.float32, max(1, sharers), sharers > 0, offload)


class TrainedModel:
    """A model in training with its reference; `under` are the weights below its adapter, None without one."""

    def __init__(
        self,
        start: Path,
        base: Path,
        rank: int,
        ranks: Ranks,
        placement: Placement,
        *,
        refers: bool = True,
        temperature: float = 1.0,
        attention: str = "sdpa",
    ) -> None:
        """`rank`: of an adapter that is trained, 0 for all weights. `refers`: M0 is asked, too. `temperature`: at which
        rollouts are sampled, and so scored.

        Raises CheckpointError, ConfigError.
        """
        self.ranks, self.placement, self.base = ranks, placement, base
        self._temperature = temperature
        whole = ranks.leads or not placement.sharded
        load = partial(load_model, attention=attention, whole=whole)
        self.model: Any
        self.under: Path | None = None
        if rank:
            self.model, self.under = load_with_adapter(start, base, rank, load, whole=whole)
        else:
            self.model = load(start)
        self.network = self.model.get_base_model() if rank else self.model
        """The transformers model, inside of an adapter or not; what an engine in this process copies."""
        if placement.device.type == "cuda" or placement.sharded:
            # Activations do not fit beside weights on a GPU.
            self.network.gradient_checkpointing_enable({"use_reentrant": False})
        self.packed = str(self.network.config._attn_implementation).startswith("flash_attention")
        self._add_head(self.network)
        self._place(self.model)
        self._reference = None
        if refers and self.under != base:
            kind = str(placement.compute).removeprefix("torch.") if placement.sharded else "float32"
            self._reference = load(base, precision=kind)
            self._reference.eval().requires_grad_(False)
            self._add_head(self._reference)
            self._place(self._reference)
        elif refers and placement.sharded:
            # FSDP decides in the first pass what it will reduce, by the weights that are trainable then: none without
            # the adapter.
            with torch.no_grad(), self._evaluating():
                self.model(input_ids=torch.zeros((1, 2), dtype=torch.long, device=placement.device))
        self.model.train()

    @cached_property
    def trained(self) -> dict[str, Any]:
        """The weights that are trained, by name; shares of them where they are sharded."""
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    @cached_property
    def router_weight(self) -> float:
        """What the loss of a router (mixture of experts) weighs; 0 for models without one."""
        config = self.network.config.get_text_config()
        has_router = hasattr(config, "output_router_logits")
        return float(getattr(config, "router_aux_loss_coef", 0.0)) if has_router else 0.0

    def score(self, batch: Batch) -> Scores:
        """What the model in training says, with gradients where they are enabled."""
        return self._scores(self.model, batch, router=self.router_weight > 0)

    @torch.no_grad()
    def refer(self, batch: Batch) -> Any:
        """What M0 says: log-probabilities, (rows, tokens)."""
        with self._evaluating():
            if self._reference is not None:
                return self._scores(self._reference, batch).logps
            with self.model.disable_adapter():
                return self._scores(self.model, batch).logps

    @torch.no_grad()
    def logps(self, batch: Batch) -> Any:
        with self._evaluating():
            return self._scores(self.model, batch).logps

    def backward(self, loss: Any, *, last: bool) -> None:
        """Adds a pass's gradients; those of other copies in the `last` pass of an update."""
        if (
            self.ranks.processes > self.placement.sharers
            and self.placement.sharded
            and not self.placement.offload
        ):
            # They wait on the GPU; where shares lie in host memory there is no room for it.
            self.model.set_requires_all_reduce(last)
        loss.backward()

    def gradients(self) -> list[Any]:
        """This rank's own gradients of the trained weights, summed over ranks where these hold whole ones."""
        found = []
        for weight in self.trained.values():
            if weight.grad is None and not self.placement.sharded:
                weight.grad = torch.zeros_like(weight)
            if weight.grad is not None:
                found.append(weight.grad.to_local() if self.placement.sharded else weight.grad)
        if not self.placement.sharded:
            self.ranks.add_up(found)
        return found

    def clip(self, norm: float, limit: float) -> None:
        """Scale the gradients, whose norm over all ranks is `norm`, down to `limit`."""
        factor = min(1.0, limit / (norm + 1e-6))
        if factor < 1.0:
            found = [weight.grad for weight in self.trained.values() if weight.grad is not None]
            torch._foreach_mul_(found, factor)

    def whole_weights(self, dtype: torch.dtype, *, trained_only: bool = False) -> Iterator[tuple[str, Any]]:
        """Every weight by its name in a plain model, whole and with its adapter's part added. A collective call: all
        ranks go to the end. Tied weights come once. `trained_only`: those of the adapter, by their own names.
        """
        if trained_only:
            for name, weight in self.trained.items():
                yield name, self._whole(weight).to(dtype)
            return
        adapters = {name: part for name, part in self.network.named_modules() if hasattr(part, "lora_A")}
        for name, weight in self.network.named_parameters():
            owner = name.removesuffix(".weight").removesuffix(".base_layer")
            if ".lora_" in name:
                continue
            whole = self._whole(weight)
            if name == f"{owner}.base_layer.weight":
                layer = adapters[owner]
                parts = (layer.lora_B, layer.lora_A)
                up, down = (self._whole(part[_ADAPTED].weight).float() for part in parts)
                # Not in place: frozen weights are not in a checkpoint, and must be the same after it.
                whole = whole.float() + layer.scaling[_ADAPTED] * (up @ down)
            kind = dtype if whole.is_floating_point() else whole.dtype
            yield name.replace(".base_layer", ""), whole.to(kind)

    def shapes(self) -> list[tuple[str, list[int]]]:
        """Of what `whole_weights` gives, without gathering anything."""
        known = ((name, weight) for name, weight in self.network.named_parameters() if ".lora_" not in name)
        return [(name.replace(".base_layer", ""), list(weight.shape)) for name, weight in known]

    def _whole(self, weight: Any) -> Any:
        weight = weight.detach()
        if not self.placement.sharded:
            return weight
        # Offloaded parts lie in host memory, where NCCL gathers nothing.
        return weight.to(self.placement.device).full_tensor()

    def _scores(self, model: Any, batch: Batch, *, router: bool = False) -> Scores:
        labels = batch.ids.masked_fill(~batch.sampled, -100)
        # Without a cache: it would hold the keys and values of all layers, and hide from some kernels where rows end.
        options: dict[str, Any] = {"use_cache": False, **(_places(batch) if batch.packed else {})}
        if router:
            options["output_router_logits"] = True
            # The router's loss tells padding from tokens.
            lengths = torch.tensor(batch.lengths, device=batch.ids.device)
            columns = torch.arange(batch.ids.shape[1], device=batch.ids.device)
            options |= {} if batch.packed else {"attention_mask": (columns < lengths[:, None]).long()}
        autocast = not self.placement.sharded and self.placement.compute is not torch.float32
        with torch.autocast(batch.ids.device.type, self.placement.compute, enabled=autocast):
            if batch.ids.device.type == "cuda":
                found = model(input_ids=batch.ids, labels=labels, fused_lm_head=True, **options)
                scores = found.log_probs, found.entropy
            else:
                found = model(input_ids=batch.ids, logits_to_keep=_before_labels(labels), **options)
                scores = _of_logits(found.logits, labels, self._temperature)
        logps, entropies = (nn.functional.pad(each.float(), (1, 0)) for each in scores)
        return Scores(logps, entropies, found.aux_loss if router else None)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Nothing is recomputed where nothing is differentiated, and FSDP keeps nothing whole for a backward pass."""
        self.model.eval()
        try:
            yield
        finally:
            self.model.train()
            for model in (self.model, self._reference) if self.placement.sharded else ():
                if model is not None:
                    model.reshard()

    def _add_head(self, network: Any) -> None:
        """TRL's output layer, which gives log-probabilities without the logits of all words, in its own kernels."""
        if self.placement.device.type == "cuda":
            from trl.trainer.utils import add_fused_lm_head

            add_fused_lm_head(network, temperature=self._temperature, outputs=("log_probs", "entropy"))

    def _place(self, model: Any) -> None:
        """On its device, or as this rank's share of it."""
        if not self.placement.sharded:
            model.to(self.placement.device)
            return
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        weights = model.state_dict() if self.ranks.leads else {}
        # What is not saved with a model, such as the frequencies of rotary positions: small, and made when it is read.
        buffers = dict(model.named_buffers())
        network = model.get_base_model() if hasattr(model, "get_base_model") else model
        model.to("meta")
        # torch moves an embedding and the output layer that is tied to it one by one, which unties them.
        network.tie_weights()
        shard(model, self.placement, self.ranks.processes)
        model.to_empty(device="cpu" if self.placement.offload else self.placement.device)
        network.tie_weights()
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model, weights, options=options)
        known = self.ranks.leader("buffers", lambda: {name: each.cpu() for name, each in buffers.items()})
        for name, buffer in known.items():
            owner, _, own = name.rpartition(".")
            setattr(model.get_submodule(owner), own, buffer.to(self.placement.device))


def shard(model: Any, placement: Placement, processes: int) -> None:
    """Every decoder layer, the embedding, and the rest (last norm and output layer) are gathered one by one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    kind, copies = placement.device.type, processes // placement.sharers
    sizes = (copies, placement.sharers) if copies > 1 else (placement.sharers,)
    names = ("copies", "sharers")[-len(sizes) :]
    options: dict[str, Any] = {"mesh": init_device_mesh(kind, sizes, mesh_dim_names=names)}
    if placement.compute is not torch.float32:
        # Log-probabilities keep the precision in which they were computed.
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=placement.compute, reduce_dtype=torch.float32)
    if placement.offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=kind == "cuda")
    network = model.get_base_model() if hasattr(model, "get_base_model") else model
    layers = set(network._no_split_modules or ())
    units = [part for part in network.modules() if type(part).__name__ in layers]
    if not network.config.get_text_config().tie_word_embeddings:
        units.append(network.get_input_embeddings())
    for unit in [*units, model]:
        fully_shard(unit, **options)
        # The loss of a rank is its share of the whole step's: gradients are added up, and not averaged.
        unit.set_force_sum_reduction_for_comms(True)
        unit.set_gradient_divide_factor(1.0)


def _before_labels(labels: Any) -> Any:
    """The columns whose logits say something of a token that has a label."""
    return (labels[:, 1:] != -100).any(dim=0).nonzero().flatten()


def _of_logits(logits: Any, labels: Any, temperature: float) -> tuple[Any, Any]:
    """Log-probabilities and entropies, (rows, tokens - 1), from the logits of the columns of `_before_labels`.

    On a CPU TRL's fused head takes a dozen passes over words times tokens, two thirds of an update of 135M parameters.
    """
    targets = labels[:, 1:]
    said = targets != -100
    found = (logits[said[:, _before_labels(labels)]].float() / temperature).log_softmax(dim=-1)
    log_probs = found.gather(-1, targets[said][:, None])[:, 0]
    with torch.no_grad():
        entropies = -(found.exp() * found).sum(dim=-1)
    zeros = logits.new_zeros(said.shape, dtype=torch.float32)
    return zeros.masked_scatter(said, log_probs), zeros.masked_scatter(said, entropies)


def _places(batch: Batch) -> dict[str, Any]:
    """Positions of packed rows, and where these begin and end, for kernels that take it: found once, not per layer."""
    lengths: Sequence[int] = batch.lengths
    device = batch.ids.device
    ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=device)
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])[None]
    most = max(lengths)
    boundaries = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": most, "max_length_k": most}
    return {"position_ids": positions, **boundaries}
