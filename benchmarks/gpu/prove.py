"""Run the parts of a GPU proof one after the other, and write a line a part.

    python -m benchmarks.gpu.prove [--tiny] [--results FILE] [--parts NAME,...] [--minutes N] [--folder FOLDER]

Each part is a process with a time limit of its own, and all of them together have `--minutes` (9.5: ten with what is
around them); those that find none left are skipped. A part that fails ends no other. `--folder` is for weights and
checkpoints, and emptied at the end. Without a GPU nothing is run and the exit code is 0; `--tiny` runs every part that
a CPU can run, in tiny shapes, and its figures say nothing of a GPU. Exit code 1: a part failed.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.findings import Found, PartLine, Status, append, read_found
from benchmarks.gpu.machine import Machine, this_machine
from benchmarks.gpu.part import BY_NAME, Part
from benchmarks.gpu.scales import PAPER, TINY, Scale
from benchmarks.options import read_options

REPOSITORY = Path(__file__).parents[2]
MINUTES = 9.5
RESULTS = Path("build/gpu-results.jsonl")
SHOWN = (
    "trained_per_second",
    "sampled_per_second",
    "peak_gib",
    "planned_gib",
    "sampling_drift",
    "outside_share",
)


class Ending(NamedTuple):
    """How a part's process ended; `fault` is empty where it ended well."""

    seconds: float
    fault: str


def main() -> None:
    # The part at work and all weights on disk go with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given = {"results": RESULTS, "parts": ",".join(BY_NAME), "minutes": MINUTES, "folder": None}
    options = read_options(__doc__, tiny=False, **given)
    parts = parts_of(options.parts)
    scale = TINY if options.tiny else PAPER
    machine = this_machine(environment_of(scale))
    if machine.fault:
        sys.exit(f"failed: torch cannot be asked for its GPU ({machine.fault})")
    if scale.on_gpu and not machine.gpu:
        print(
            "skipped: torch sees no NVIDIA GPU here, and every part needs one; "
            "--tiny runs in tiny shapes what a CPU can run",
            file=sys.stderr,
        )
        return
    counts: Counter[Status] = Counter()
    with working_folder(options.folder) as folder:
        for line in prove(parts, scale, machine, folder, options.minutes):
            append(line, options.results)
            print(said(line), file=sys.stderr, flush=True)
            counts[line.status] += 1
    print(
        f"{', '.join(f'{counts[status]} {status}' for status in Status)}: {options.results}", file=sys.stderr
    )
    sys.exit(1 if counts[Status.FAILED] else 0)


def prove(
    parts: Sequence[Part], scale: Scale, machine: Machine, folder: Path, minutes: float
) -> Iterator[PartLine]:
    """The line of every part, as soon as it has ended."""
    end = time.monotonic() + 60 * minutes
    for part in parts:
        print(f"{part.name}: {part.proves}", file=sys.stderr, flush=True)
        left = end - time.monotonic()
        if left < 1:
            yield _line(part, scale, machine, Ending(0.0, ""), Found(skipped=f"{minutes:g} minutes are over"))
            continue
        yield run_part(part, scale, machine, folder, min(part.seconds, left))


def run_part(part: Part, scale: Scale, machine: Machine, folder: Path, seconds: float) -> PartLine:
    """Run a part in a process of its own, which is killed with all that it started after so many seconds."""
    command = [sys.executable, "-m", "benchmarks.gpu.part", part.name, scale.name, str(folder)]
    log = folder / f"{part.name}.log"
    with log.open("wb") as output:
        begun = time.monotonic()
        process = subprocess.Popen(
            command,
            env=environment_of(scale),
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
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
    ending = Ending(time.monotonic() - begun, fault)
    return _line(part, scale, machine, ending, read_found(folder / f"{part.name}.json"))


def environment_of(scale: Scale) -> dict[str, str]:
    """A part's variables: nothing is asked of a hub, and a tiny proof is one of the CPU."""
    own = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    own["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    # The optimizer of offloaded weights runs on the host.
    own["OMP_NUM_THREADS"] = str(os.cpu_count() or 1) if scale.on_gpu else "1"
    if not scale.on_gpu:
        own["CUDA_VISIBLE_DEVICES"] = ""
    return {**os.environ, **own}


@contextmanager
def working_folder(parent: Path | None) -> Iterator[Path]:
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="prove-gpu-", dir=parent) as folder:
        yield Path(folder)


def said(line: PartLine) -> str:
    """A line for a person: how the part ended, and the figures that tell most."""
    told = [
        f"{name} {value:,.4g}" for name, value in line.figures.items() if name in SHOWN and _is_number(value)
    ]
    ended = f"{line.status} after {line.seconds:.0f} s" + (f" ({line.reason})" if line.reason else "")
    return f"  {line.part}: {'; '.join([ended, *told])}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _line(part: Part, scale: Scale, machine: Machine, ending: Ending, found: Found) -> PartLine:
    reasons = [*found.broken, *([ending.fault] if ending.fault else [])]
    status = Status.FAILED if reasons else Status.OK
    if found.skipped and not reasons:
        status, reasons = Status.SKIPPED, [found.skipped]
    return PartLine(
        part=part.name,
        status=status,
        reason="; ".join(reasons) or None,
        seconds=round(ending.seconds, 2),
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


def parts_of(names: str) -> list[Part]:
    """By their names, between commas."""
    unknown = set(names.split(",")) - set(BY_NAME)
    if unknown:
        sys.exit(f"no part {', '.join(sorted(unknown))}; parts are {', '.join(BY_NAME)}")
    return [BY_NAME[name] for name in names.split(",")]


if __name__ == "__main__":
    main()
