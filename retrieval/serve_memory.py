"""Whether a container can hold what serves an index: refused at the start, instead of killed in the middle of a run.

Each search process holds an encoder of its own; index and passages are mapped files, which all of them share and which
the kernel drops where memory is short, so that searches then wait for the disk.
"""

import sys
from typing import NamedTuple

from retrieval.index_folder import ENCODER, PASSAGES, IndexManifest
from retrieval.profiles import PROFILES, ProfileName
from scope_selfplay.errors import ConfigError

GIB = 2**30
PROCESS_BYTES = 400 << 20
"""Libraries of one process, without its encoder."""
ENCODER_SHARE = 1.5
"""What an encoder takes over the size of its files: packed weights, and a batch at work."""


class ServeMemory(NamedTuple):
    """Bytes: `held` by processes, and `mapped` by a busy server."""

    held: int
    mapped: int

    @property
    def total(self) -> int:
        return self.held + self.mapped


def serve_memory(manifest: IndexManifest, workers: int) -> ServeMemory:
    """What an index takes that is served by so many search processes, beside the process that answers requests."""
    sizes = {name: file.size for name, file in manifest.files.items()}
    encoder = sum(size for name, size in sizes.items() if name.startswith(f"{ENCODER}/"))
    passages = sizes.get(PASSAGES, 0)
    resident = PROFILES[ProfileName(manifest.profile)].resident
    mapped = round((manifest.size - encoder - passages) * resident) + passages // 4
    return ServeMemory(held_bytes(encoder, workers), mapped)


def held_bytes(encoder: int, workers: int) -> int:
    """By the processes; `encoder` has the bytes of its files."""
    return PROCESS_BYTES + max(1, workers) * (PROCESS_BYTES + round(ENCODER_SHARE * encoder))


def check_memory(needed: ServeMemory, workers: int, limit: int | None) -> None:
    """Raises ConfigError where the processes alone need more than the container's limit; warns where the index does."""
    if limit is None:
        return
    has = f"the container has {limit / GIB:.1f} GiB"
    if needed.held > limit:
        raise ConfigError(
            f"{max(1, workers)} search processes hold {needed.held / GIB:.1f} GiB and {has}: give it "
            f"{needed.total / GIB:.0f}Gi (cluster.retriever.memory), or fewer processes (--workers)"
        )
    if needed.total > limit:
        print(
            f"warning: processes hold {needed.held / GIB:.1f} GiB, the index takes {needed.mapped / GIB:.1f} more and "
            f"{has}: searches will wait for the disk; {needed.total / GIB:.0f}Gi would hold it",
            file=sys.stderr,
            flush=True,
        )
