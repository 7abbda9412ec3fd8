"""How long a stage took, over all of its attempts: a kill ends an attempt without a word.

When an attempt began is the time of a file that it writes first; when it ended, that of the last file it wrote. Both
are the volume's clock, so that pods on nodes with different clocks agree.
"""

from pathlib import Path

from scope_selfplay.store import write_atomic

_SPENT = "seconds"


def begin_attempt(stage: Path, work: Path) -> float:
    """Note in a stage's work folder that an attempt begins; the seconds that all earlier ones took."""
    file = work / _SPENT
    spent = float(file.read_text()) + _since(file, stage) if file.exists() else 0.0
    write_atomic(file, f"{spent:.2f}\n")
    return spent


def time_of_attempts(folders: list[Path]) -> float:
    """Seconds of attempts that have each had a folder of their own, marked by `begin_attempt(folder, folder)`."""
    marks = [folder / _SPENT for folder in folders]
    return sum(_since(mark, mark.parent) for mark in marks if mark.exists())


def _since(mark: Path, folder: Path) -> float:
    """From when the mark was written until something below the folder was for the last time."""
    last = max((path.stat().st_mtime for path in folder.rglob("*") if path.is_file()), default=0.0)
    return max(0.0, last - mark.stat().st_mtime)
