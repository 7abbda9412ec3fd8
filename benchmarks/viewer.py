"""How fast `scope view` answers, and what it holds in memory, at the paper's size and at a million candidates.

    python -m benchmarks.viewer [--paper FOLDER] [--million FOLDER] [--rounds N]

`--paper` is a run of `benchmarks.corpus_of_size` (made where it is absent: 5,120 tasks, 4 rollouts each); `--million`
another one, of a million candidates without rollouts (made too, in about a minute). The real command is started as
a process of its own and requested over loopback. Wall times suffer from whatever else the machine does, so each page
also gets the server's own CPU time, which hardly does, and its ratio to reading that run's JSON lines in this process,
which suffers alike. Times are medians over the rounds, each with different questions, so that no answer is a
repetition. The last lines say which goals are held; the exit code is 1 when one is missed.
"""

import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.corpus_of_size import SYLLABLES, write_corpus, write_list
from benchmarks.markdown import markdown
from benchmarks.options import read_options
from scope_selfplay.store.columns import RecordKind
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import RunFolder, Stage

GOALS = {"list": 0.15, "filter": 0.15, "task": 0.25}
"""Median seconds of a page at the paper's size."""
MILLION_GOAL = 0.5
START_GOAL = 3.0
MEMORY_GOAL = 250.0
"""MB resident at most, from the start on, at the paper's size."""
OTHERS = ("/", "/rejected", "/compare", "/training", "/prompts")


class Timing(NamedTuple):
    page: str
    wall: float
    cpu: float
    """Seconds: the median, and the mean of the server's CPU time."""
    bytes: int


class Report(NamedTuple):
    """Seconds, and MB resident."""

    start: float
    peak: float
    timings: list[Timing]


class Server:
    """`scope view` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        began = time.perf_counter()
        command = [sys.executable, "-m", "scope_selfplay.cli", "view", str(folder), "--port", "0"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        announcement = self._process.stderr.readline()
        self.address = announcement.rsplit(" ", 1)[-1].strip().rstrip("/")
        self._watched = psutil.Process(self._process.pid)
        self.get("/healthz")
        self.start = time.perf_counter() - began

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.address + path) as answer:
            return str(answer.read(), "utf-8")

    def cpu(self) -> float:
        used = self._watched.cpu_times()
        return used.user + used.system

    def peak(self) -> float:
        """Most that was ever resident, MB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        return int(found[1]) / 1e3 if found else float("nan")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)


def measure(server: Server, page: str, questions: Iterator[str], rounds: int) -> Timing:
    walls, cpus, size = [], [], 0
    for path, _ in zip(questions, range(rounds), strict=False):
        cpu, began = server.cpu(), time.perf_counter()
        size = len(server.get(path))
        walls.append(time.perf_counter() - began)
        cpus.append(server.cpu() - cpu)
    # The clock of a process ticks in hundredths: the mean is more exact than the median there.
    return Timing(page, statistics.median(walls), statistics.fmean(cpus), size)


def questions_of(server: Server, total: int) -> dict[str, Callable[[], Iterator[str]]]:
    """By kind of page, questions without end or repetition."""

    def lists() -> Iterator[str]:
        return (f"/tasks?page={1 + number * 7 % max(1, total // 50)}" for number in range(10**6))

    def filters() -> Iterator[str]:
        for number in range(10**6):
            yield f"/tasks?text={SYLLABLES[number % 18]}{SYLLABLES[number // 18 % 18]}&page=2"
            yield f"/tasks?status=accepted&low=0.{number % 9}&sort=mean&desc={number % 2}"
            yield f"/tasks?type=planning&reason=gate_source&sort=length&page={1 + number}"

    def tasks() -> Iterator[str]:
        for page in range(max(1, total // 15)):
            listed = server.get(f"/tasks?status=accepted&size=5&page={1 + page * 3}")
            yield from (
                found.replace("&amp;", "&") for found in re.findall(r'class="open" href="([^"]*)"', listed)
            )

    return {"list": lists, "filter": filters, "task": tasks}


def time_run(folder: Path, rounds: int, others: tuple[str, ...] = ()) -> Report:
    server = Server(folder)
    try:
        total = re.search(r'<h1>Tasks <span class="dim">([\d,]+)', server.get("/tasks"))
        assert total is not None
        kinds = questions_of(server, int(total[1].replace(",", "")))
        timings = [measure(server, page, make(), rounds) for page, make in kinds.items()]
        timings += [measure(server, path, iter([path] * 3), 3) for path in others]
        return Report(server.start, server.peak(), timings)
    finally:
        server.stop()


class Goal(NamedTuple):
    """One number that has to stay under another, in `unit`."""

    name: str
    found: float
    most: float
    unit: str


def goals_of(report: Report) -> list[Goal]:
    """At the paper's size."""
    medians = {timing.page: timing.wall for timing in report.timings}
    pages = [Goal(page, medians[page] * 1e3, most * 1e3, "ms") for page, most in GOALS.items()]
    memory = Goal("memory", report.peak, MEMORY_GOAL, "MB")
    return [*pages, memory, Goal("start", report.start, START_GOAL, "s")]


def time_reading(folder: Path) -> float:
    """Seconds in which this process reads the lines of every stage, as one without columns or an index would."""
    run = RunFolder(folder)
    files = [
        (path / f"{kind}.jsonl", kind.model)
        for iteration in (0, 1)
        for path in (run.stage(iteration, stage).path for stage in Stage)
        for kind in RecordKind
    ]
    began = time.perf_counter()
    for file, model in files:
        read_records(file, model)
    return time.perf_counter() - began


def show(report: Report, reading: float) -> None:
    print(f"start {report.start:.1f} s, memory {report.peak:.0f} MB at most\n")
    rows = [["page", "median ms", "of reading", "CPU ms", "kB"]]
    for page, wall, cpu, size in report.timings:
        figures = [f"{wall * 1e3:.0f}", f"{wall / reading:.4f}", f"{cpu * 1e3:.0f}", f"{size / 1e3:.0f}"]
        rows.append([page, *figures])
    print(markdown(rows))


def made(folder: Path, write: Callable[[Path], object]) -> Path:
    """The folder, written where it is absent; a half-written one keeps another name."""
    if not folder.exists():
        part = folder.with_name(f"{folder.name}-{int(time.time())}.part")
        write(part)
        part.rename(folder)
    return folder


def main() -> int:
    places = {"paper": Path("bench-out/corpus-5120"), "million": Path("bench-out/corpus-million")}
    arguments = read_options(__doc__, rounds=30, **places)
    folder = made(arguments.paper, lambda path: write_corpus(path, tasks=5120, rollouts=4))
    million = made(arguments.million, lambda path: write_list(path, tasks=1_000_000))
    before = time_reading(folder)
    reports = [time_run(folder, arguments.rounds, OTHERS), time_run(million, max(3, arguments.rounds // 3))]
    reading = statistics.fmean([before, time_reading(folder)])
    print(f"reading the JSON lines of {folder}: {reading:.2f} s")
    for name, report in zip((folder, million), reports, strict=True):
        print(f"\n{name}")
        show(report, reading)
    goals = goals_of(reports[0])
    for page, wall, *_ in reports[1].timings:
        goals.append(Goal(f"{page} of a million", wall * 1e3, MILLION_GOAL * 1e3, "ms"))
    rows = [["goal", "measured", "at most", "held"]]
    for goal, found, most, unit in goals:
        rows.append([goal, f"{found:.4g} {unit}", f"{most:g} {unit}", "yes" if found < most else "no"])
    print(markdown(rows))
    return 0 if all(each.found < each.most for each in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
