"""The processes (ranks) of one training on this node: their environment, how they are stopped, how they end.

`accelerate launch` and `torchrun` end with 1 whatever their ranks end with, and kill them 30 s after a SIGTERM. Under
a controller a rank's exit code decides what happens next, and a rank that finishes a checkpoint needs the time that the
config gives it. So ranks are started here, with accelerate's own variables.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Self

from scope_selfplay.config.cluster import Sharding
from scope_selfplay.errors import ConfigError, ExitCode

# A rank that waits for its peers in a collective call does not notice that one has failed: the others then have this
# long to end by themselves.
_AFTER_FAILURE_SECONDS = 30.0
_POLL_SECONDS = 0.1
# A rank that such a signal has ended leaves the others without a peer: they get it too.
_SIGNALS: dict[int, signal.Signals] = {
    ExitCode.TERMINATED: signal.SIGTERM,
    ExitCode.INTERRUPTED: signal.SIGINT,
}
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


@dataclass(frozen=True)
class RankTimeouts:
    """Seconds."""

    grace: float
    """From SIGTERM to SIGKILL."""
    after_failure: float = _AFTER_FAILURE_SECONDS
    """From the first rank that failed to the end of those that wait for it."""


def node_of(environment: Mapping[str, str], processes: int) -> TrainingNode:
    """This node, from SCOPE_NODES, SCOPE_SHARDING, SCOPE_RENDEZVOUS and an Indexed Job's JOB_COMPLETION_INDEX.

    Raises ConfigError where these contradict each other.
    """
    nodes = _whole(environment, "SCOPE_NODES", "1")
    if nodes <= 1:
        return TrainingNode(processes)
    index = _whole(environment, "JOB_COMPLETION_INDEX", "")
    rendezvous = environment.get("SCOPE_RENDEZVOUS", "")
    host, _, port = rendezvous.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(
            f"SCOPE_NODES={nodes}, and SCOPE_RENDEZVOUS is {rendezvous!r}; expected HOST:PORT of the first node"
        )
    if index >= nodes:
        raise ConfigError(f"JOB_COMPLETION_INDEX={index}, and SCOPE_NODES={nodes}; expected 0 to {nodes - 1}")
    sharding = environment.get("SCOPE_SHARDING", "full")
    if sharding not in ("full", "hybrid"):
        raise ConfigError(f"SCOPE_SHARDING is {sharding!r}; expected full or hybrid")
    return TrainingNode(processes, nodes, index, rendezvous, "hybrid" if sharding == "hybrid" else "full")


def module_command(module: str, arguments: Sequence[str]) -> list[str]:
    """The same module again, in this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def rank_environments(node: TrainingNode) -> list[dict[str, str]]:
    """The environment variables of each rank of this node, as torch reads them."""
    host, _, port = node.rendezvous.rpartition(":")
    if not port:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            host, port = "127.0.0.1", str(listener.getsockname()[1])
    return [
        {
            "RANK": str(node.number * node.processes + local),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(node.world),
            "LOCAL_WORLD_SIZE": str(node.processes),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
        }
        for local in range(node.processes)
    ]


def sharding_file(world: int, folder: Path) -> Path:
    """accelerate's config for so many GPUs: the largest `fsdp2-N.yaml` in `folder` that they fill."""
    files = {int(path.stem.removeprefix("fsdp2-")): path for path in folder.glob("fsdp2-*.yaml")}
    fitting = [gpus for gpus in files if gpus <= world]
    if not fitting:
        raise ConfigError(f"{folder}: no fsdp2-N.yaml for {world} GPUs; expected one with N up to {world}")
    return files[max(fitting)]


def sharding_environment(node: TrainingNode, folder: Path) -> dict[str, str]:
    """accelerate's variables for this node: FSDP2 over its GPUs; none where there is no GPU (gloo on the CPU then).

    Raises ConfigError where the node has fewer GPUs than processes.
    """
    import torch

    gpus = torch.cuda.device_count()
    if not gpus:
        return {}
    if gpus < node.processes:
        raise ConfigError(
            f"{node.processes} processes, and {gpus} GPUs here; each process trains on one: start {gpus}"
        )
    return node_environment(node, folder)


def node_environment(node: TrainingNode, folder: Path) -> dict[str, str]:
    """The settings for as many GPUs as share one copy, and accelerate's mesh of copies where there are several."""
    known = accelerate_environment(sharding_file(node.sharers, folder), node.world)
    if node.sharers == node.world:
        return known
    return known | {
        "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": str(node.world // node.sharers),
        "PARALLELISM_CONFIG_DP_SHARD_SIZE": str(node.sharers),
    }


def accelerate_environment(file: Path, world: int) -> dict[str, str]:
    """The sharding variables that `accelerate launch --config_file FILE --num_processes WORLD` sets."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    known = ["--config_file", str(file), "--num_processes", str(world), "--main_process_port", "0"]
    arguments, *_ = _validate_launch_command(launch_command_parser().parse_args([*known, "training"]))
    variables: dict[str, str] = prepare_multi_gpu_env(arguments)
    return {name: value for name, value in variables.items() if name.startswith(("ACCELERATE_", "FSDP_"))}


def run_ranks(
    command: Sequence[str],
    environments: Sequence[Mapping[str, str]],
    limits: RankTimeouts,
    say: Callable[[str], None],
) -> RankEnding:
    """Start `command` once per environment, pass SIGTERM and SIGINT on, and wait; returns the ending that explains all.

    A signal that ended one rank is passed on to the others as if it had come to this process.

    Each line that a rank writes to stderr goes to `say`; lines of other ranks than the first begin with the rank.
    """
    with _ReceivedSignal() as received:
        ranks: list[_Rank] = []
        try:
            for variables in environments:
                ranks.append(_Rank(command, variables, say, quoted=bool(ranks)))
            return most_telling(_endings(ranks, received, limits))
        finally:
            for rank in ranks:
                rank.kill()


def most_telling(endings: Sequence[RankEnding]) -> RankEnding:
    """The ending that best explains the others; of equals the first. `endings` are in order of time."""

    def priority(ending: RankEnding) -> int:
        if ending.code in _EXPLAINING:
            return _EXPLAINING.index(ending.code)
        return len(_EXPLAINING) + (not ending.code)

    return min(endings, key=priority)


def _endings(ranks: Sequence["_Rank"], received: "_ReceivedSignal", limits: RankTimeouts) -> list[RankEnding]:
    """How the ranks ended, in order of time; those that had to be killed beside a failed one are left out."""
    ended: list[RankEnding] = []
    running = list(ranks)
    end, failed, forwarded = float("inf"), False, False
    while running:
        stop = received.signal or next((_SIGNALS[each.code] for each in ended if each.code in _SIGNALS), None)
        if stop is not None and not forwarded:
            forwarded, end = True, min(end, time.monotonic() + limits.grace)
            for rank in running:
                rank.process.send_signal(stop)
        for rank in [rank for rank in running if rank.process.poll() is not None]:
            running.remove(rank)
            ended.append(rank.ending())
            failed = failed or ended[-1].code not in (ExitCode.DONE, *_SIGNALS)
            if ended[-1].code != ExitCode.DONE:
                end = min(end, time.monotonic() + (limits.after_failure if failed else limits.grace))
        if running and time.monotonic() > end:
            for rank in running:
                rank.kill()
            return ended if failed else [*ended, *(rank.ending() for rank in running)]
        time.sleep(_POLL_SECONDS)
    return ended


class _Rank:
    """One process, in a group of its own: a terminal's Ctrl-C reaches it once, through us."""

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        say: Callable[[str], None],
        *,
        quoted: bool,
    ) -> None:
        self.number = int(variables["RANK"])
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
        )
        self._say, self._mark, self._last = say, f"[rank {self.number}] " if quoted else "", ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ending(self) -> RankEnding:
        code = self.process.wait()
        # A process that it left behind may hold the pipe open.
        self._reader.join(2.0)
        return RankEnding(self.number, code if code >= 0 else 128 - code, self._last)

    def kill(self) -> None:
        """Kill it with all processes that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._last = line.strip() or self._last
            self._say(f"{self._mark}{line.rstrip()}")


class _ReceivedSignal:
    """While entered, keeps the first SIGTERM or SIGINT for the ranks instead of ending this process."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> Self:
        self._before = {
            number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or number


def _whole(environment: Mapping[str, str], name: str, default: str) -> int:
    text = environment.get(name, default)
    if not text.isdigit():
        raise ConfigError(f"{name} is {text!r}; expected a whole number")
    return int(text)
