"""Which program of a run has which GPUs of one machine, stage by stage, by what `memory` says that they take. Pure.

In each stage the judge, frozen policies and a trainer are there at once. Layouts are tried in this order, and the first
one that fits is taken:

    each apart   GPUs of its own for everything: up to a third for the judge and for frozen policies, powers of two
    beside       the servers share the first GPUs, the trainer has the others
    together     all share all: servers take what they need, the trainer's engine what is left

Judge and frozen policies stay where they are for the whole run, so that none is moved between stages.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import NamedTuple

from retrieval.profiles import GIB
from scope_selfplay.base.errors import ConfigError
from scope_selfplay.config.cluster import OFFLOADED, PodConfig
from scope_selfplay.config.run import RunConfig
from scope_selfplay.config.training import TrainConfig
from scope_selfplay.plan.memory import HALF, Trainer, gpu_peaks, host_memory
from scope_selfplay.plan.size import Assumptions, ModelSize, judge_size, model_size
from scope_selfplay.store.folder import Stage

SEQUENCES = 4
"""Of the greatest length, for which an engine must have room in its cache."""
SERVED = 0.9
"""Share of a GPU that servers take where they have it for themselves, as vLLM does."""
COUNTS = (1, 2, 3, 4, 6, 8, 16)
"""Numbers of GPUs that are tried where those at hand do not do."""
_LARGE = Assumptions().gpu_gib
_SMALL_JUDGE = 1.7e9
_SHARES, _WIDTHS = (16, 8, 4, 2, 1), (1, 2, 4, 8)
_SERVERS = ("judge", "solver", "challenger")
_STAGES: Mapping[Stage, tuple[str, ...]] = {
    Stage.CHALLENGER: ("judge", "solver", "train_challenger"),
    Stage.TASKS: ("judge", "solver", "challenger"),
    Stage.SOLVER: ("judge", "train_solver"),
    Stage.COMPARE: ("judge", "solver"),
}
"""The programs of each stage that may have GPUs, as `cluster` names them."""
_Slots = tuple[int, ...]


class Slots(NamedTuple):
    """What a machine lends a run: GPUs of `gib` each, or shares of its CPUs (`gib` is 0)."""

    numbers: _Slots
    gib: float = 0.0
    host_gib: float = float("inf")

    def words(self, numbers: Sequence[int]) -> str:
        kind = "GPU" if self.gib else "slot"
        return f"{kind} {','.join(map(str, numbers))}" if numbers else "CPU"

    def __str__(self) -> str:
        kind, size = ("GPU", f" of {self.gib:.3g} GiB") if self.gib else ("CPU slot", "")
        many = "" if len(self.numbers) == 1 else "s"
        return f"{len(self.numbers)} {kind}{many}{size}"


class Part(NamedTuple):
    """One program of a stage, and the GiB that it takes of each of its slots and of the host."""

    stage: Stage
    name: str
    slots: _Slots
    gib: float
    host_gib: float

    @property
    def title(self) -> str:
        return "trainer" if self.name.startswith("train_") else self.name


class NodePlacement(NamedTuple):
    config: RunConfig
    """With the GPUs, copies and shares that follow: what it computes is the same."""
    slots: Slots
    layout: str
    parts: tuple[Part, ...]

    def slots_of(self, stage: Stage, name: str) -> _Slots:
        """Those of a program of a stage, `trainer` for the one that trains; none where it needs no GPU."""
        names = (name, f"train_{stage.value}" if name == "trainer" else name)
        return next((part.slots for part in self.parts if part.name in names), ())

    def text(self) -> Iterator[str]:
        yield f"{self.slots}, {self.layout}:"
        for stage in _STAGES:
            parts = [part for part in self.parts if part.stage is stage]
            gib = [f" ({part.gib:.1f} GiB)" if part.gib else "" for part in parts]
            shown = (
                f"{part.title} {self.slots.words(part.slots)}{size}"
                for part, size in zip(parts, gib, strict=True)
            )
            yield f"  {stage.job_name}: {', '.join(shown)}"


class _Sizes(NamedTuple):
    policy: ModelSize
    judge: ModelSize
    assumptions: Assumptions


def place(config: RunConfig, slots: Slots) -> NodePlacement:
    """Where everything goes. Raises ConfigError, in one line, where nothing fits, with what would."""
    if not slots.gib:
        # Without a GPU the library's own servers take vLLM's place.
        config = config.model_copy(update={"cluster": config.cluster.model_copy(update={"tiny": True})})
    policy = model_size(config.model.path)
    judge = judge_size(config.cluster.judge.model, policy)
    sizes = _Sizes(policy, judge, Assumptions(gpu_gib=slots.gib or _LARGE))
    found, lacking = _placed(config, slots, sizes)
    if found is None:
        fits = "; ".join(_what_fits(config, slots, sizes)) or "nothing that was tried; take a smaller model"
        raise ConfigError(f"{config.model.path} does not fit {slots}: {lacking}; what fits: {fits}")
    return found


def _placed(config: RunConfig, slots: Slots, sizes: _Sizes) -> tuple[NodePlacement | None, str]:
    """The first layout that fits; else what the one that lacks least lacks."""
    lacking: list[tuple[float, str]] = []
    # So few ranks keep in host memory what more have no room for.
    for ranks in (len(slots.numbers), max(OFFLOADED)):
        for name, servers, *rooms in _layouts(slots.numbers):
            every = zip(_SERVERS, servers, strict=True)
            on = {each: given for each, given in every if _has_slots(config, each)}
            for stage, room in zip((Stage.CHALLENGER, Stage.SOLVER), rooms, strict=True):
                on[f"train_{stage.value}"] = room[: _ranks(config, stage, min(ranks, len(room)))]
            for width in (each for each in _WIDTHS if each <= max(map(len, servers))):
                attempt = _Attempt(config, slots, sizes, name, on, width)
                over, why = attempt.excess()
                if over <= 1e-9:
                    return attempt.placement(), ""
                lacking.append((over, why))
    return None, min(lacking)[1]


def _layouts(numbers: _Slots) -> Iterator[tuple[str, Sequence[_Slots], _Slots, _Slots]]:
    """Its name, the slots of each server, and those that the Challenger's and the Solver's trainer may have."""
    count = len(numbers)
    for share in (each for each in _SHARES if each <= count // 3):
        rest = numbers[2 * share :]
        servers = (numbers[:share], numbers[share : 2 * share], rest[:share])
        yield "each apart", servers, rest, numbers[share:]
    for share in (each for each in _SHARES if each <= count // 2):
        rest = numbers[share:]
        yield "servers beside the trainer", (numbers[:share],) * 3, rest, rest
    even = numbers[: 1 << (count.bit_length() - 1)]
    yield "all together", (even,) * 3, numbers, numbers


def _has_slots(config: RunConfig, server: str) -> bool:
    """Not what runs elsewhere, or is to have no GPU."""
    settings = getattr(config.cluster, server)
    return bool(settings.serve and (config.cluster.tiny or settings.gpus))


def _ranks(config: RunConfig, stage: Stage, most: int) -> int:
    """As many as share a batch evenly; one where each would sample from the whole model, on its GPU."""
    settings: TrainConfig = getattr(config, stage.value)
    if config.model.engine == "in_process" and not config.cluster.tiny:
        return 1
    groups = settings.batch // settings.updates if settings.batch % settings.updates == 0 else settings.batch
    return next((each for each in range(most, 0, -1) if groups % each == 0), 1)


@dataclass(frozen=True)
class _Attempt:
    """One layout, and what each program takes there."""

    config: RunConfig
    slots: Slots
    sizes: _Sizes
    name: str
    on: Mapping[str, _Slots]
    """The slots of every program that has any."""
    width: int
    """GPUs that share a copy of a server's model, where it has as many."""

    def placement(self) -> NodePlacement:
        """With the config that says so."""
        changes: dict[str, PodConfig] = {}
        for name, on in self.on.items():
            update: dict[str, object] = {"gpus": len(on) if self.slots.gib else 0}
            update |= self._server_settings(name) if name in _SERVERS else {"nodes": 1}
            changes[name] = getattr(self.config.cluster, name).model_copy(update=update)
        # One machine is one disk.
        cluster = self.config.cluster.model_copy(update={**changes, "store": ""})
        model = self.config.model.model_copy(update={"vllm_memory": self.engine_share})
        config = self.config.model_copy(update={"cluster": cluster, "model": model})
        return NodePlacement(config, self.slots, self.name, self.parts)

    def excess(self) -> tuple[float, str]:
        """By how many GiB a stage takes too much of a GPU or of the host, and what takes it."""
        worst = (0.0, "")
        for stage in _STAGES:
            parts = [part for part in self.parts if part.stage is stage]
            for number in self.slots.numbers:
                here = [part for part in parts if number in part.slots]
                gib = sum(part.gib for part in here)
                named = " + ".join(f"{part.title} {part.gib:.1f}" for part in here)
                said = f"{stage.job_name} needs {gib:.1f} GiB of one ({named})"
                worst = max(worst, (gib - self.slots.gib, said))
            host = sum(part.host_gib for part in parts)
            said = f"{stage.job_name} needs {host:.0f} GiB of the host"
            worst = max(worst, (host - self.slots.host_gib, said))
        return worst

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        return tuple(
            self._part(stage, name) for stage, names in _STAGES.items() for name in names if name in self.on
        )

    def _part(self, stage: Stage, name: str) -> Part:
        on = self.on[name]
        if name in _SERVERS:
            return Part(stage, name, on, self._served[name], len(on) * self.sizes.assumptions.process_gib)
        trainer, engine = self._trainers[stage], self.slots.gib * self.engine_share
        gib = _trainer_gib(trainer, engine) if self.slots.gib else 0.0
        return Part(stage, name, on, gib, sum(host_memory(trainer).values()))

    @cached_property
    def _trainers(self) -> dict[Stage, Trainer]:
        ranks = {stage: len(self.on[f"train_{stage.value}"]) for stage in (Stage.CHALLENGER, Stage.SOLVER)}
        policy, assumptions = self.sizes.policy, self.sizes.assumptions
        return {
            stage: Trainer(self.config.model, getattr(self.config, stage.value), count, policy, assumptions)
            for stage, count in ranks.items()
        }

    @cached_property
    def _served(self) -> dict[str, float]:
        """Of each server the GiB of each of its GPUs: what it needs beside a trainer, else its share of all that
        servers may have there."""
        return {name: self._server_gib(name) for name in _SERVERS if name in self.on}

    def _server_gib(self, name: str) -> float:
        if not self.slots.gib:
            return 0.0
        sharing = {each for each, on in self.on.items() if {*self.on[name]} & {*on}}
        needed = self._needed(name)
        if any(name in names and {*names} & sharing - {*_SERVERS} for names in _STAGES.values()):
            return needed
        of_all = needed / sum(self._needed(each) for each in sharing if each in _SERVERS)
        # Rounded down to the hundredths that the engine is told.
        return max(needed, int(100 * SERVED * of_all + 1e-9) / 100 * self.slots.gib)

    def _needed(self, server: str) -> float:
        """GiB of one GPU for weights in bf16, a cache of a few sequences, and CUDA's context."""
        size = self.sizes.judge if server == "judge" else self.sizes.policy
        cached = SEQUENCES * self._longest(server) * _token_bytes(size)
        width = min(self.width, len(self.on[server]))
        return (HALF * size.parameters + cached) / GIB / width + self.sizes.assumptions.context_gib

    def _longest(self, server: str) -> int:
        """Tokens of the longest sequence that it is asked for."""
        asked = self.config.judge.endpoint.context if server == "judge" else None
        return asked or self.config.model.max_length

    @cached_property
    def engine_share(self) -> float:
        """The share of a card that a colocated engine is told: what the config gives it, or what the room of all
        trainings allows; at least the whole weights and the cache of a few sequences."""
        model, card = self.config.model, self.slots.gib
        share, least = model.vllm_memory, 0.0
        if model.engine != "vllm_colocated" or not card:
            return share
        for stage, trainer in self._trainers.items():
            ranks = {*self.on[f"train_{stage.value}"]}
            beside = (
                gib
                for name, gib in self._served.items()
                if name in _STAGES[stage] and ranks & {*self.on[name]}
            )
            room = card - sum(beside) - _trainer_gib(trainer, 0.0, "sampling")
            length = min(model.max_length, trainer.settings.max_prompt + trainer.settings.max_response)
            cached = SEQUENCES * length * _token_bytes(trainer.size)
            needs = (HALF * trainer.size.parameters + cached) / GIB
            share = min(share, int(100 * room / card + 1e-9) / 100)
            least = max(least, ceil(100 * needs / card) / 100)
        return max(share, least)

    def _server_settings(self, server: str) -> dict[str, object]:
        """What the config says of a server here; the library's own have no options of vLLM."""
        if not self.slots.gib or self.config.cluster.tiny:
            return {"replicas": 1}
        args, told = getattr(self.config.cluster, server).args, list[str]()
        if not any(argument.startswith("--max-model-len") for argument in args):
            # Of its own accord vLLM wants room for as many tokens as the model was made for.
            told += ["--max-model-len", str(self._longest(server))]
        if (share := int(100 * self._served[server] / self.slots.gib + 0.999) / 100) < SERVED:
            told += ["--gpu-memory-utilization", f"{share:.2f}"]
        width = min(self.width, len(self.on[server]))
        return {"replicas": 1, "tensor_parallel": width, "args": (*args, *told)}


def _token_bytes(size: ModelSize) -> int:
    return size.cache_bytes or size.shape.cache_bytes


def _trainer_gib(trainer: Trainer, engine: float, *moments: str) -> float:
    """What a rank takes of its card at its peak, of these moments or of all; a colocated engine has so many GiB."""
    peaks = gpu_peaks(trainer, offloaded=trainer.sharers in OFFLOADED)
    if trainer.model.engine == "vllm_colocated":
        peaks["sampling"]["engine"] = engine
    return max(sum(peaks[moment].values()) for moment in moments or peaks)


def _what_fits(config: RunConfig, slots: Slots, sizes: _Sizes) -> Iterator[str]:
    """Ways out, the cheapest first."""
    adapted = config.model_copy(update={"model": config.model.model_copy(update={"lora_rank": 16})})
    small = sizes._replace(judge=model_size("judge", _SMALL_JUDGE))
    judge = f"a judge of {_SMALL_JUDGE / 1e9:g} billion parameters"
    ways = {
        "model.lora_rank 16": (adapted, slots, sizes),
        judge: (config, slots, small),
        f"model.lora_rank 16 with {judge}": (adapted, slots, small),
    }
    found = [way for way, given in ways.items() if _placed(*given)[0]]
    # Two changes are no advice where one does.
    yield from found[:2] if len(found) == 3 else found
    for count in (each for each in COUNTS if each > len(slots.numbers)):
        host = slots.host_gib / len(slots.numbers) * count
        if _placed(config, Slots(tuple(range(count)), slots.gib, host), sizes)[0]:
            yield f"{count} such GPUs"
            break
    large = sizes._replace(assumptions=Assumptions(gpu_gib=_LARGE))
    if slots.gib < _LARGE and _placed(config, slots._replace(gib=_LARGE), large)[0]:
        yield "GPUs of 80 GB"
