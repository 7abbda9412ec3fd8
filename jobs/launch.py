"""The processes (ranks) of one training on this node: what they are told, how they are stopped, how they end.

`torchrun` ends with 1 whatever its ranks end with, and kills them 30 s after a SIGTERM. Under a controller a rank's
exit code decides what happens next, and a rank that finishes a checkpoint needs the time that the config gives it.
"""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import NoReturn

import click

from scope_selfplay.base.errors import ConfigError, ExitCode
from scope_selfplay.base.machine import free_port
from scope_selfplay.base.terminal import received_signals
from scope_selfplay.config.cluster import GRACE, OFFLOADED, Sharding

_Say = Callable[[str], None]
_POLL_SECONDS = 0.1
# The last resort: a rank that failed tells the others, which end within `ranks.ENDING_SECONDS`, unless it died hard.
_AFTER_FAILURE_SECONDS = 8.0
# A rank that such a signal has ended leaves the others without a peer: they get it too.
_SIGNALS: dict[int, int] = {code: code - 128 for code in (ExitCode.TERMINATED, ExitCode.INTERRUPTED)}
_KILLED = 128 + signal.SIGKILL
# The most telling code first. A rank whose peers are gone fails in a collective call and ends with 1 or an abort, so
# those tell least; the controller orders the pods of a Job in the same way.
_EXPLAINING = (ExitCode.USER, ExitCode.OUTSIDE, _KILLED, ExitCode.TERMINATED, ExitCode.INTERRUPTED)


@dataclass(frozen=True)
class TrainingNode:
    """This machine among those that train together."""

    processes: int = 1
    """Ranks on each node."""
    nodes: int = 1
    number: int = 0
    rendezvous: str = ""
    """HOST:PORT of the first rank; a free port of this machine when empty."""
    sharding: Sharding = "full"

    @property
    def world(self) -> int:
        return self.processes * self.nodes

    @property
    def sharers(self) -> int:
        """Ranks that hold one copy of weights, gradients and optimizer between them."""
        return self.processes if self.sharding == "hybrid" and self.processes > 1 else self.world


@dataclass(frozen=True)
class RankEnding:
    """How one rank ended."""

    rank: int
    code: int
    """As a shell gives it: 128 + the number of the signal that ended it."""
    last_line: str = ""
    """What it wrote to stderr last."""
    held: int = 0
    """Bytes of memory that it had shortly before others than its launcher killed it; 0: it was not, or is not known."""
    last_line_at: float = field(default=0.0, compare=False)
    """When it wrote that line, by the monotonic clock of the launcher."""

    def describe(self, world: int) -> str:
        killed = f" (killed; it held {self.held / 1e9:.1f} GB, see the memory limit)" if self.held else ""
        said = f": {self.last_line}" if self.last_line else ""
        return f"rank {self.rank} of {world} ended with {self.code}{killed}{said}"


def ranks_here(processes: int) -> TrainingNode | None:
    """The ranks that this process is to start; None where it trains itself, alone or as one of those that were."""
    node = None if "RANK" in os.environ else node_of(os.environ, processes)
    return node if node is not None and node.world > 1 else None


def node_of(environment: Mapping[str, str], processes: int) -> TrainingNode:
    """This node, from SCOPE_NODES, SCOPE_SHARDING, SCOPE_RENDEZVOUS and an Indexed Job's JOB_COMPLETION_INDEX.

    Raises ConfigError where these contradict each other.
    """
    names = ("SCOPE_NODES", "JOB_COMPLETION_INDEX", "SCOPE_RENDEZVOUS", "SCOPE_SHARDING")
    nodes, index, rendezvous, sharding = (environment.get(name, "") for name in names)
    if nodes in ("", "1"):
        return TrainingNode(processes)
    is_node = nodes.isdigit() and index.isdigit() and int(index) < int(nodes)
    if not is_node or not re.fullmatch(r".+:\d+", rendezvous) or sharding not in ("", "full", "hybrid"):
        found = ", ".join(f"{name}={environment.get(name)!r}" for name in names)
        raise ConfigError(
            f"{found}: expected a number of nodes, that of this node, from 0 (an Indexed Job tells it, from Kubernetes "
            "1.24 on), HOST:PORT of the first node, and full or hybrid"
        )
    kept: Sharding = "hybrid" if sharding == "hybrid" else "full"
    return TrainingNode(processes, int(nodes), int(index), rendezvous, kept)


def rank_environments(node: TrainingNode) -> list[dict[str, str]]:
    """The environment variables of each rank of this node, as torch reads them."""
    host, _, port = node.rendezvous.rpartition(":")
    if not port:
        host, port = "127.0.0.1", str(free_port())
    common = {"WORLD_SIZE": str(node.world), "LOCAL_WORLD_SIZE": str(node.processes)}
    common |= {"MASTER_ADDR": host, "MASTER_PORT": port}
    first = node.number * node.processes
    return [{"RANK": str(first + each), "LOCAL_RANK": str(each), **common} for each in range(node.processes)]


def sharding_environment(node: TrainingNode) -> dict[str, str]:
    """What each rank is told of FSDP2: how many share one copy, and whether they keep it in host memory.

    Nothing where torch sees no GPU: there every rank trains a whole copy, over gloo. Raises ConfigError where the node
    has fewer GPUs than processes.
    """
    import torch

    gpus = torch.cuda.device_count()
    if not gpus:
        return {}
    if gpus < node.processes:
        raise ConfigError(
            f"{node.processes} processes, and {gpus} GPUs here; each process trains on one: start {gpus}"
        )
    return {"SCOPE_FSDP_SHARERS": f"{node.sharers}", "SCOPE_FSDP_OFFLOAD": f"{node.sharers in OFFLOADED:d}"}


def run_as_ranks(node: TrainingNode) -> NoReturn:
    """Starts this command line once for each rank of this node, sharded over its GPUs, and ends as they ended."""
    environments = [sharding_environment(node) | rank for rank in rank_environments(node)]
    report = partial(click.echo, err=True)
    ending = run_ranks([sys.executable, "-m", "jobs", *sys.argv[1:]], environments, report, grace=GRACE)
    if ending.code:
        # The last line of a log is what the controller shows; other ranks may have said theirs later.
        report(f"python -m jobs {sys.argv[1]}: {ending.describe(node.world)}")
    sys.exit(ending.code)


def run_ranks(
    command: Sequence[str],
    environments: Sequence[Mapping[str, str]],
    say: _Say,
    *,
    grace: float,
    after_failure: float = _AFTER_FAILURE_SECONDS,
) -> RankEnding:
    """Start `command` once per environment, pass SIGTERM and SIGINT on, and wait; returns the ending that explains all.

    A signal that ended one rank is passed on to the others. They have `grace` seconds from then on, and `after_failure`
    from a rank that failed: those that had to be killed then explain nothing. Each line that a rank writes to stderr
    goes to `say`; lines of other ranks than the first begin with the rank.
    """
    running: list[_Rank] = []
    ended: list[RankEnding] = []
    end, failed, forwarded = float("inf"), False, False
    with received_signals(_SIGNALS.values()) as received, ExitStack() as to_kill:
        for variables in environments:
            running.append(_Rank(command, variables, say))
            to_kill.callback(running[-1].kill)
        while running:
            stops = [*received, *(_SIGNALS[each.code] for each in ended if each.code in _SIGNALS)]
            if stops and not forwarded:
                forwarded, end = True, min(end, time.monotonic() + grace)
                for rank in running:
                    rank.process.send_signal(stops[0])
            for rank in [rank for rank in running if not rank.is_running()]:
                running.remove(rank)
                ended.append(rank.ending())
                failed = failed or ended[-1].code not in (ExitCode.DONE, *_SIGNALS)
                if ended[-1].code != ExitCode.DONE:
                    end = min(end, time.monotonic() + (after_failure if failed else grace))
            if running and time.monotonic() > end:
                for rank in running:
                    rank.kill()
                ended += [] if failed else [rank.ending() for rank in running]
                break
            time.sleep(_POLL_SECONDS)
    return most_telling(ended)


def most_telling(endings: Sequence[RankEnding]) -> RankEnding:
    """The ending that best explains the others; of equal codes the rank whose last line is the newest, since ranks that
    end because of another one write nothing.
    """
    order = {int(code): place for place, code in enumerate(_EXPLAINING)}
    return min(
        endings, key=lambda each: (order.get(each.code, len(order) + (not each.code)), -each.last_line_at)
    )


class _Rank:
    """One process, in a group of its own: a terminal's Ctrl-C reaches it once, through us."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], say: _Say) -> None:
        self.number, self._say, self._last, self._held = int(variables["RANK"]), say, "", 0
        self._last_line_at = 0.0
        self._mark = f"[rank {self.number}] " if int(variables["LOCAL_RANK"]) else ""
        # torch warns, with a stack, of a peer that is gone; the rank says it itself.
        told = {"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ, **variables}
        self.process = Popen(command, env=told, stdin=DEVNULL, stderr=PIPE, errors="replace", process_group=0)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def is_running(self) -> bool:
        """Reads its memory, too, where there is /proc; that of a dead process is 0 there."""
        with suppress(OSError):
            pages = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1]
            self._held = int(pages) * os.sysconf("SC_PAGE_SIZE") or self._held
        return self.process.poll() is None

    def ending(self) -> RankEnding:
        code = self.process.wait()
        # A process that it left behind may hold the pipe open.
        self._reader.join(2.0)
        held = self._held if code == -signal.SIGKILL else 0
        return RankEnding(
            self.number, code if code >= 0 else 128 - code, self._last, held, self._last_line_at
        )

    def kill(self) -> None:
        """Kill it with all processes that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._held = 0

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.strip():
                self._last, self._last_line_at = line.strip(), time.monotonic()
            # A disk that is full holds up no rank that writes.
            with suppress(OSError):
                self._say(f"{self._mark}{line.rstrip()}")
