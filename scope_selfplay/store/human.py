"""What people said in a run, in the folder `human/` beside its iterations.

    human/verdicts.jsonl       to a judge's questions, one by one
    human/comparisons.jsonl    which of two answers they found better

The loop reads none of it; a person may work while it runs.
"""

from scope_selfplay.base.machine import folder_lock
from scope_selfplay.base.values import Comparison, Gate, Value
from scope_selfplay.store.files import Appender, disk_faults, read_records
from scope_selfplay.store.folder import RunFolder

# Seconds. A person's session holds the lock for as long as it takes to write a few records.
_LOCK_TIMEOUT = 60.0


class HumanVerdict(Value):
    """A person's verdict where a judge has given one: of a gate on a task, or of a criterion on an answer to it."""

    person: str
    task_id: str
    gate: Gate | None = None
    rollout_id: str = ""
    criterion: int | None = None
    """Its row in the rubric."""
    value: bool | None
    """None where the person could not say."""
    reasoning: str = ""

    @property
    def question(self) -> tuple[str, ...]:
        """Names what was asked, whoever answered."""
        return (self.task_id, str(self.gate or ""), self.rollout_id, str(self.criterion))


class HumanComparison(Value):
    """Two answers to one task in the order in which a person saw them, without knowing whose they are."""

    person: str
    task_id: str
    first: str
    """The checkpoint that gave the first answer."""
    second: str
    comparison: Comparison


class HumanFolder:
    """The people's part of a run folder."""

    def __init__(self, run: RunFolder) -> None:
        self.path = run.path / "human"
        self._verdicts = self.path / "verdicts.jsonl"
        self._comparisons = self.path / "comparisons.jsonl"

    def verdicts(self) -> list[HumanVerdict]:
        return read_records(self._verdicts, HumanVerdict)

    def comparisons(self) -> list[HumanComparison]:
        return read_records(self._comparisons, HumanComparison)

    def keep(self, said: HumanVerdict | HumanComparison) -> None:
        """One process writes at a time."""
        file = self._verdicts if isinstance(said, HumanVerdict) else self._comparisons
        with disk_faults(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = self.path / ".lock"
            with (
                folder_lock(self.path, lock, work="writing", say=lambda text: None, timeout=_LOCK_TIMEOUT),
                Appender(file) as kept,
            ):
                kept.append(said)
