"""Rollouts from a transformers model in this process: continuous batching over a slotted key-value cache.

Every call is an independent sequence. A finished one frees its slot at once and a waiting one takes it, so
nothing waits for the slowest of a batch. A slot remembers what it holds: the next turn of an episode, or a
group member with the same beginning, starts from the longest common prefix instead of from scratch.

Each sequence draws its own noise (`draws`), so that what shares its batch does not matter but for the last bits of
its logits. With `deterministic` those bits never decide either: a close draw is decided again from a forward pass of
that sequence alone. (Sampling in float64 would do as well, at three to five times the cost.)
"""

import asyncio
import os
from bisect import insort
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from scope_selfplay.base.errors import ConfigError, InferenceError
from scope_selfplay.base.machine import memory_left
from scope_selfplay.base.sampling import Generate, Sample
from scope_selfplay.base.values import Finish, Key, seed_from
from scope_selfplay.inference.codec import ChatCodec, Sampling, SamplingEngine
from scope_selfplay.inference.draws import Draw, draw_tokens

# Prefilling a few late sequences at once costs one forward pass instead of several.
_ADMIT_AT_ONCE = 8
_ADMIT_EVERY = 4
# Padded tokens of a pass in which packed weights read prompts: what it computes stays in the processor's cache.
PROMPT_PASS = 1024
# Tokens; a prompt that begins like another one waits a pass for it where that saves so much.
_WORTH_A_PASS = 16
_Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(eq=False)
class _Sequence:
    request: Generate
    sampling: Sampling
    scored_at: float
    """The temperature of its log-probabilities, also where it is greedy."""
    noise: _Floats
    future: "asyncio.Future[Sample]"
    slot: int = -1
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def next_draw(self) -> Draw:
        position = len(self.ids)
        uniform, sampling = float(self.noise[position]), self.sampling
        return Draw(uniform, sampling.seed, position, self.scored_at, sampling.top_p, self.request.greedy)


class InProcessModel(SamplingEngine):
    """A `PolicyModel` over `model`, a causal language model that may keep training between calls.

    A `frozen` one never changes: it is used as it is, without a copy of its weights.
    """

    def __init__(
        self,
        model: Any,
        codec: ChatCodec,
        *,
        slots: int = 64,
        max_length: int = 1024,
        deterministic: bool = True,
        packed: bool = False,
        frozen: bool = False,
        share: int = 1,
        **common: Any,
    ) -> None:
        """`common`: as of SamplingEngine. `share`: processes that sample beside each other; each takes its part of the
        cores. `packed`: sample in bfloat16 where that is faster here, from a copy for that (`packed_weights`).
        """
        super().__init__(codec, max_length=max_length, **common)
        self._source = model
        self._frozen = frozen
        self._deterministic = deterministic
        self._packed = packed
        self._waiting: list[_Sequence] = []
        """Later turns before first ones, otherwise in the order of arrival."""
        self._active: dict[int, _Sequence] = {}
        self._share = share
        self._tokens = np.full((slots, max_length), -1, dtype=np.int64)
        self._lengths = np.zeros(slots, dtype=np.int64)
        self._last_used = np.zeros(slots, dtype=np.int64)
        self._clock = 0
        self._task: asyncio.Task[None] | None = None
        self.model: Any = None
        """What samples: the source itself where it is frozen, else a copy of its weights."""
        self.cache: Any = None
        # A policy in training may not be on its device yet; its weights are copied when it first samples.
        if frozen:
            self._take_over()

    @property
    def running(self) -> int:
        """Sequences that are being decoded."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """Sequences that have no slot yet."""
        return len(self._waiting)

    def refresh(self, identity: str) -> None:
        """Take over the weights of the source model as they are now; what was cached under the old ones is gone.

        Raises ConfigError where the slots do not fit into memory.
        """
        self._drop_cancelled()
        if self._active or self._waiting:
            raise InferenceError("weights cannot change while sequences are being generated")
        super().refresh(identity)
        self._take_over()

    def _take_over(self) -> None:
        from scope_selfplay.inference.slots import SlotCache, can_pack, frozen_copy, packed_copy

        # Gone before the new ones are made: a GPU need not hold both.
        self.model = self.cache = None
        source = self._source
        if self._packed and can_pack(source.device):
            self.model = packed_copy(source)
        else:
            self.model = source.eval().requires_grad_(False) if self._frozen else frozen_copy(source)
        shape, device = self.model.config, self.model.device
        size = {"slots": len(self._lengths), "max_length": self._max_length}
        check_room(shape, self.model.dtype.itemsize, **size, free=free_bytes(device), where=str(device))
        self.cache = SlotCache(self.model, slots=len(self._lengths), max_length=self._max_length)
        self._lengths[:] = 0

    async def generate(self, request: Generate, key: Key) -> Sample:
        return await self.sample(request, seed_from(*key))

    async def sample(self, request: Generate, seed: int, **told: Any) -> Sample:
        """`generate` by the seed that a key gives; `told`: what a server is asked for in place of its own Sampling."""
        if self.model is None:
            self._take_over()
        sampling = replace(self.sampling(request, seed), **told)
        loop = asyncio.get_running_loop()
        sequence = _Sequence(
            request,
            sampling,
            sampling.temperature or self._temperature,
            np.random.default_rng(seed).random(sampling.max_tokens),
            loop.create_future(),
        )
        insort(self._waiting, sequence, key=lambda each: not each.request.turn)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return await sequence.future

    async def _run(self) -> None:
        from scope_selfplay.inference.slots import threads

        try:
            with threads(self._share):
                await self._decode()
        except Exception as error:  # noqa: BLE001 - the wall between episodes and torch
            fault = InferenceError(f"the in-process engine failed: {type(error).__name__}: {error}")
            for sequence in [*self._active.values(), *self._waiting]:
                if not sequence.future.done():
                    sequence.future.set_exception(fault)
            self._active.clear()
            self._waiting.clear()

    async def _decode(self) -> None:
        step = 0
        while self._waiting or self._active:
            # Give finished episodes the chance to hand in their next turn before the next forward pass.
            await asyncio.sleep(0)
            self._drop_cancelled()
            few = len(self._waiting) < _ADMIT_AT_ONCE and step % _ADMIT_EVERY
            if self._waiting and (not self._active or not few):
                self._prefill()
            if self._active:
                # In the order of their slots, which are then read where they lie.
                batch = [self._active[slot] for slot in sorted(self._active)]
                starts = [len(sequence.request.prompt_ids) + len(sequence.ids) - 1 for sequence in batch]
                self._step(batch, [sequence.ids[-1:] for sequence in batch], starts)
            step += 1

    def _drop_cancelled(self) -> None:
        """A caller that went away takes no further steps; what its slot holds stays good for others."""
        for slot, sequence in list(self._active.items()):
            if sequence.future.cancelled():
                del self._active[slot]
        self._waiting = [sequence for sequence in self._waiting if not sequence.future.cancelled()]

    def _prefill(self) -> None:
        free = [slot for slot in range(len(self._lengths)) if slot not in self._active]
        coming, self._waiting = self._waiting[: len(free)], self._waiting[len(free) :]
        while coming:
            batch, coming = self._without_repeats(coming)
            starts = [self._take_slot(sequence, free) for sequence in batch]
            rows = [
                sequence.request.prompt_ids[start:] for sequence, start in zip(batch, starts, strict=True)
            ]
            for part in self._passes(rows):
                self._step(batch[part], rows[part], starts[part])

    def _passes(self, rows: Sequence[Sequence[int]]) -> Iterator[slice]:
        """Which prompts are read together: all, or as many as fit a pass of packed weights."""
        begin = 0
        for end in range(1, len(rows)):
            if self._packed and max(map(len, rows[begin : end + 1])) * (end + 1 - begin) > PROMPT_PASS:
                yield slice(begin, end)
                begin = end
        yield slice(begin, len(rows))

    def _without_repeats(self, coming: Sequence[_Sequence]) -> tuple[list[_Sequence], list[_Sequence]]:
        """Those to compute now, and those of their groups, which copy their beginning in the next pass."""
        now: list[_Sequence] = []
        later: list[_Sequence] = []
        for sequence in coming:
            prompt = sequence.request.prompt_ids
            shared = max((_common_length(prompt, other.request.prompt_ids) for other in now), default=0)
            repeats = shared >= _WORTH_A_PASS and shared - int(self._held(prompt).max()) >= _WORTH_A_PASS
            (later if repeats else now).append(sequence)
        return now, later

    def _held(self, prompt: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """How many tokens of the prompt's beginning each slot holds."""
        held = self._tokens[:, : len(prompt)] == np.asarray(prompt)
        common = np.where(held.all(axis=1), len(prompt), held.argmin(axis=1))
        # The last prompt token is always computed: its logits are what the first sample needs.
        return np.minimum(np.minimum(common, self._lengths), len(prompt) - 1)

    def _take_slot(self, sequence: _Sequence, free: list[int]) -> int:
        """Put the sequence into the free slot that already holds most of its prompt; returns how much it holds."""
        prompt = np.asarray(sequence.request.prompt_ids)
        common = self._held(sequence.request.prompt_ids)
        donor = int(common.argmax())
        start = int(common[donor])
        same = donor in free and common[donor] == self._lengths[donor]
        slot = donor if same else min(free, key=self._last_used.__getitem__)
        free.remove(slot)
        if slot != donor and start:
            self.cache.copy_prefix(donor, slot, start)
        # Only what is computed may be shared: the rest of the prompt counts once its forward pass is done.
        self._tokens[slot, :start] = prompt[:start]
        self._lengths[slot] = start
        sequence.slot = slot
        self._active[slot] = sequence
        return start

    def _step(self, batch: Sequence[_Sequence], rows: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
        """One forward pass that appends `rows` to the sequences, and one sampled token for every sequence."""
        logits = self.cache.forward(rows, [sequence.slot for sequence in batch], starts)
        for sequence, row, start in zip(batch, rows, starts, strict=True):
            self._tokens[sequence.slot, start : start + len(row)] = row
            self._lengths[sequence.slot] = start + len(row)
        self._sample(batch, logits)

    def _sample(self, batch: Sequence[_Sequence], logits: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        draws = [sequence.next_draw for sequence in batch]
        drawn = draw_tokens(logits, draws)
        if self._deterministic:
            for row in np.flatnonzero(drawn.close).tolist():
                alone = self.cache.logits_alone((*batch[row].request.prompt_ids, *batch[row].ids))
                drawn.tokens[row] = draw_tokens(alone, draws[row : row + 1]).tokens[0]
        self._clock += 1
        for row, sequence in enumerate(batch):
            token = int(drawn.tokens[row])
            sequence.ids.append(token)
            sequence.logprobs.append(drawn.logprob(row, token))
            self._advance(sequence, token)
        self.on_tokens(len(batch))

    def _advance(self, sequence: _Sequence, token: int) -> None:
        ids, texts = sequence.sampling.stops
        stopped = token in ids
        if texts and not stopped:
            # A stop string spans at most its own length in tokens; a few more cover a token that starts before it.
            tail = self.codec.decode(sequence.ids[-max(map(len, texts)) - 4 :])
            stopped = any(text in tail for text in texts)
        if not stopped and len(sequence.ids) < len(sequence.noise):
            return
        self._last_used[sequence.slot] = self._clock
        del self._active[sequence.slot]
        finish = Finish.STOP if stopped else Finish.LENGTH
        if not sequence.future.done():
            sequence.future.set_result(Sample(tuple(sequence.ids), tuple(sequence.logprobs), finish))


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two prompts begin with alike."""
    shortest = min(len(one), len(other))
    differs = np.asarray(one[:shortest]) != np.asarray(other[:shortest])
    return int(differs.argmax()) if differs.any() else shortest


def check_room(
    config: Any, item_bytes: int, *, slots: int, max_length: int, free: int | None, where: str
) -> None:
    """Raises ConfigError, with what would fit, where the keys and values of so many sequences take more than the `free`
    bytes (None: not known). `config` is a model's, as transformers has it.
    """
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * head * item_bytes
    # One position more takes the writes of padding.
    size = per_token * slots * (max_length + 1)
    if free is None or size <= free:
        return
    fewer = max(1, free // (per_token * (max_length + 1)))
    shorter = max(1, free // (per_token * slots) - 1)
    raise ConfigError(
        f"the in-process engine's cache takes {size / 2**30:,.1f} GiB ({slots} slots x {max_length:,} tokens x "
        f"{per_token:,} bytes), {free / 2**30:,.1f} GiB are free on {where}; lower model.slots to {fewer} "
        f"(`scope serve-model`: --slots) or, but for a benchmark, model.max_length to {shorter:,} (--max-length), or "
        "sample with vLLM"
    )


def free_bytes(device: Any) -> int | None:
    """Memory that a torch device can still give; None where it is not known."""
    if device.type == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        # What torch holds without using it is free, too.
        return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    available = None
    with suppress(OSError, ValueError):
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = next(line for line in lines if line.startswith("MemAvailable:"))
        available = int(found.split()[1]) * 1024
    known = [each for each in (available, memory_left()) if each is not None]
    return min(known, default=None)
