"""The command `scope`, or a job, in a process of its own, as a user gives it."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_scope(arguments: Sequence[str], log: Path) -> None:
    """Raises SystemExit, which ends a benchmark with one line, where the command fails; its words go to `log`."""
    run_python(["-m", "scope_selfplay.cli", *arguments], log, shown=["scope", *arguments])


def run_python(arguments: Sequence[str], log: Path, *, shown: Sequence[str] = ()) -> None:
    """`shown` is the command as it is named to people. Raises SystemExit where it fails; its words go to `log`."""
    shown = shown or ["python", *arguments]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as lines:
        print("$", *shown, file=lines, flush=True)
        done = subprocess.run([sys.executable, *arguments], cwd=ROOT, stdout=lines, stderr=lines, check=False)
    if done.returncode:
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1]
        raise SystemExit(f"{' '.join(shown[:2])} ended with {done.returncode}: {last} ({log})")
