"""Run the parts of a GPU proof one after the other, and write a line a part.

    python -m benchmarks.gpu.prove [--tiny] [--results FILE] [--parts NAME,...] [--minutes N] [--folder FOLDER]

Each part is a process with a time limit of its own, and all of them together have `--minutes` (9.5: ten with what is
around them); those that find none left are skipped. A part that fails ends no other. `--folder` is for weights and
checkpoints, and emptied at the end. Without a GPU nothing is run and the exit code is 0; `--tiny` runs every part that
a CPU can run, in tiny shapes, and its figures say nothing of a GPU. Exit code 1: a part failed.
"""

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from benchmarks.gpu.part import BY_NAME, Found, Part
from benchmarks.gpu.scales import PAPER, TINY, Scale
from benchmarks.options import read_options
from benchmarks.scope_command import ROOT
from scope_selfplay.store.files import Appender

SHOWN = ("trained_per_second", "sampled_per_second", "peak_gib", "planned_gib")
SHOWN += ("sampling_drift", "outside_share")
PACKAGES = ("torch", "transformers", "trl", "accelerate", "peft", "datasets", "vllm", "scope-selfplay")
# A CUDA context would take memory from the parts, so another process looks.
LOOK = """import torch; gpu = torch.cuda.is_available() and torch.cuda.get_device_properties(0)
print(f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB" if gpu else "", torch.version.cuda, sep="\\n")"""


class Status(StrEnum):
    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


class PartLine(BaseModel):
    """One part on one machine. `reason` says why it failed or was skipped; `at`, when it ended, in UTC."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    part: str
    status: Status
    reason: str | None
    seconds: float
    figures: Mapping[str, float | str]
    scale: str
    machine: str
    versions: Mapping[str, str]
    at: str


class Machine(NamedTuple):
    """What figures are from. `gpu` is empty where torch sees none; `fault` says why torch cannot be asked."""

    gpu: str
    versions: Mapping[str, str]
    fault: str = ""

    @property
    def name(self) -> str:
        return self.gpu or f"{platform.machine()} CPU"


def main() -> None:
    # The part at work and all weights on disk go with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given = {"results": Path("build/gpu-results.jsonl"), "parts": ",".join(BY_NAME), "minutes": 9.5}
    options = read_options(__doc__, tiny=False, folder=None, **given)
    if unknown := set(options.parts.split(",")) - set(BY_NAME):
        sys.exit(f"no part {', '.join(sorted(unknown))}; parts are {', '.join(BY_NAME)}")
    scale = TINY if options.tiny else PAPER
    machine = this_machine(environment_of(scale))
    if machine.fault:
        sys.exit(f"failed: torch cannot be asked for its GPU ({machine.fault})")
    if scale.on_gpu and not machine.gpu:
        _say("skipped: torch sees no NVIDIA GPU here, and every part needs one; --tiny runs in tiny shapes")
        return
    counts, end = Counter[Status](), time.monotonic() + 60 * options.minutes
    with working_folder(options.folder) as name:
        for part in map(BY_NAME.__getitem__, options.parts.split(",")):
            _say(f"{part.name}: {part.proves}")
            left = end - time.monotonic()
            if left < 1:
                over = Found(skipped=f"{options.minutes:g} minutes are over")
                line = _line(part, scale, machine, 0.0, "", over)
            else:
                line = run_part(
                    part, scale, machine, Path(name), min(part.seconds, left) if scale.on_gpu else left
                )
            append(line, options.results)
            _say(said(line))
            counts[line.status] += 1
    _say(f"{', '.join(f'{counts[status]} {status}' for status in Status)}: {options.results}")
    sys.exit(1 if counts[Status.FAILED] else 0)


def this_machine(environment: Mapping[str, str]) -> Machine:
    found = subprocess.run(
        [sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=False
    )
    if found.returncode:
        return Machine("", {}, (found.stderr.strip().splitlines() or ["no message"])[-1])
    gpu, cuda = found.stdout.splitlines()[-2:]
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return Machine(gpu, versions | ({"cuda": cuda} if gpu else {}))


def run_part(part: Part, scale: Scale, machine: Machine, folder: Path, seconds: float) -> PartLine:
    """Run a part in a process of its own, which is killed with all that it started after so many seconds."""
    command = [sys.executable, "-m", "benchmarks.gpu.part", part.name, scale.name, str(folder)]
    log, begun = folder / f"{part.name}.log", time.monotonic()
    with log.open("wb") as output:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(
            command, env=environment_of(scale), cwd=ROOT, start_new_session=True, **streams
        )
        try:
            process.wait(seconds)
            fault = f"ended with {process.returncode}: {_last_line(log)}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            fault = f"took longer than {seconds:.0f} s; last: {_last_line(log)}"
        finally:
            # vLLM leaves processes behind where it is killed.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    shutil.rmtree(folder / part.name, ignore_errors=True)
    file = folder / f"{part.name}.json"
    found = Found.model_validate_json(file.read_bytes()) if file.is_file() else Found()
    return _line(part, scale, machine, time.monotonic() - begun, fault, found)


def environment_of(scale: Scale) -> dict[str, str]:
    """A part's variables: nothing is asked of a hub, and a tiny proof is one of the CPU."""
    own = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    own["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # The optimizer of offloaded weights runs on the host.
    own["OMP_NUM_THREADS"] = str(os.cpu_count() or 1) if scale.on_gpu else "1"
    return {**os.environ, **own, **({} if scale.on_gpu else {"CUDA_VISIBLE_DEVICES": ""})}


def working_folder(parent: Path | None) -> "tempfile.TemporaryDirectory[str]":
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="prove-gpu-", dir=parent)


def append(line: PartLine, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with Appender(file) as lines:
        lines.append(line)


def said(line: PartLine) -> str:
    """A line for a person: how the part ended, and the figures that tell most."""
    figures = {name: value for name, value in line.figures.items() if name in SHOWN}
    told = [f"{name} {value:,.4g}" for name, value in figures.items() if isinstance(value, int | float)]
    ended = f"{line.status} after {line.seconds:.0f} s" + (f" ({line.reason})" if line.reason else "")
    return f"  {line.part}: {'; '.join([ended, *told])}"


def _line(part: Part, scale: Scale, machine: Machine, seconds: float, fault: str, found: Found) -> PartLine:
    """`fault` says how its process ended, and is empty where it ended well."""
    reasons = [*found.broken, *filter(None, [fault])]
    status = Status.FAILED if reasons else Status.SKIPPED if found.skipped else Status.OK
    return PartLine(
        part=part.name,
        status=status,
        reason="; ".join(reasons) or found.skipped,
        seconds=round(seconds, 2),
        figures=found.figures,
        scale=scale.name,
        machine=machine.name,
        versions=machine.versions,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _last_line(log: Path) -> str:
    """What the part wrote last that says something."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "it wrote nothing")[:400]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
