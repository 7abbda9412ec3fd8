"""How much memory an engine's cache takes, and how much there is: a cache that cannot fit is refused at the start."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scope_selfplay.container import memory_left
from scope_selfplay.errors import ConfigError

_GIB = 2.0**30


@dataclass(frozen=True)
class CacheSize:
    """Keys and values of `slots` sequences of `max_length` tokens; one position more takes the writes of padding."""

    per_token: int
    slots: int
    max_length: int

    @property
    def bytes(self) -> int:
        return self.per_token * self.slots * (self.max_length + 1)


def cache_size(config: Any, item_bytes: int, *, slots: int, max_length: int) -> CacheSize:
    """For a model's config as transformers has it."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * head * item_bytes
    return CacheSize(per_token, slots, max_length)


def check_room(size: CacheSize, free: int | None, where: str) -> None:
    """Raises ConfigError, with what would fit, where the cache is larger than the `free` bytes (None: not known)."""
    if free is None or size.bytes <= free:
        return
    slots = max(1, free // (size.per_token * (size.max_length + 1)))
    length = max(1, free // (size.per_token * size.slots) - 1)
    raise ConfigError(
        f"the in-process engine's cache takes {size.bytes / _GIB:,.1f} GiB ({size.slots} slots x {size.max_length:,} "
        f"tokens x {size.per_token:,} bytes), {free / _GIB:,.1f} GiB are free on {where}; lower slots to {slots} "
        f"(model.slots, --slots) or max_length to {length:,} (model.max_length, --max-length), or sample with vLLM"
    )


def free_bytes(device: Any) -> int | None:
    """Memory that a torch device can still give; None where it is not known."""
    if device.type == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        # What torch holds without using it is free, too.
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free) + held
    known = [each for each in (_available(), memory_left()) if each is not None]
    return min(known, default=None)


def sees_gpu() -> bool:
    """Whether torch computes on a GPU here."""
    import torch

    return bool(torch.cuda.is_available())


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = next(line for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError):
            return None
    return int(found.split()[1]) * 1024
