"""What people did in a run, in the folder `human/` beside its iterations.

    human/run.yaml, human/iteration-NN/tasks/    their answers and tasks: readable as a run of its own
    human/verdicts.jsonl                         what they said to a judge's questions, one by one
    human/comparisons.jsonl                      which of two answers they found better

The loop reads none of it; a person may work while it runs.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TypeVar

from scope_selfplay.base.gates import Gate
from scope_selfplay.base.machine import folder_lock
from scope_selfplay.base.values import Candidate, Comparison, Grade, Rollout, Value
from scope_selfplay.store.files import Appender, disk_faults, read_records, write_atomic, write_records
from scope_selfplay.store.folder import RunFolder, Stage, StageFolder

Kind = TypeVar("Kind", Candidate, Rollout, Grade)

HUMAN = "human"
"""The checkpoint of what a person wrote."""
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


class HumanFolder(RunFolder):
    """The people's part of a run folder, laid out as a run."""

    def __init__(self, run: RunFolder) -> None:
        super().__init__(run.path / HUMAN)
        self.run = run
        self._verdicts = self.path / "verdicts.jsonl"
        self._comparisons = self.path / "comparisons.jsonl"

    def tasks(self, iteration: int) -> StageFolder:
        """Tasks that people answered or wrote, with their answers; 0 for held-out tasks."""
        return self.stage(iteration, Stage.TASKS)

    def candidates(self) -> list[Candidate]:
        return self._each("candidates.jsonl", Candidate)

    def rollouts(self) -> list[Rollout]:
        """Their own and those of Solvers that tried their tasks."""
        return self._each("rollouts.jsonl", Rollout)

    def grades(self) -> dict[str, Grade]:
        """The judge's grades of their answers, by rollout."""
        return {grade.rollout_id: grade for grade in self._each("grades.jsonl", Grade)}

    def _each(self, name: str, kind: type[Kind]) -> list[Kind]:
        """The records of all iterations."""
        return [
            made for each in self.iterations() for made in read_records(self.tasks(each).path / name, kind)
        ]

    def answers_to(self, task_id: str, iteration: int) -> list[Rollout]:
        """What people answered to a task of an iteration."""
        made = read_records(self.tasks(iteration).rollouts, Rollout)
        return [each for each in made if each.subject_id == task_id and each.checkpoint == HUMAN]

    def verdicts(self) -> list[HumanVerdict]:
        return read_records(self._verdicts, HumanVerdict)

    def comparisons(self) -> list[HumanComparison]:
        return read_records(self._comparisons, HumanComparison)

    def keep(self, said: HumanVerdict | HumanComparison) -> None:
        file = self._verdicts if isinstance(said, HumanVerdict) else self._comparisons
        with self.opened(), Appender(file) as kept:
            kept.append(said)

    def add(
        self, iteration: int, candidate: Candidate, rollouts: Sequence[Rollout], grades: Sequence[Grade]
    ) -> None:
        """Keep what was written; a candidate that is there already is replaced by this one."""
        with self.opened():
            stage = self.tasks(iteration)
            with disk_faults(stage.path):
                stage.path.mkdir(parents=True, exist_ok=True)
            with Appender(stage.rollouts) as kept, Appender(stage.grades) as graded:
                kept.append(*(rollout.without_ids() for rollout in rollouts))
                graded.append(*grades)
            before = read_records(stage.candidates, Candidate)
            others = [made for made in before if made.id != candidate.id]
            write_records(stage.candidates, [*others, candidate])

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """One process writes at a time; the first one makes the folder a run folder for whoever reads it."""
        with disk_faults(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            with folder_lock(
                self.path, self.path / ".lock", work="writing", say=lambda text: None, timeout=_LOCK_TIMEOUT
            ):
                if not self.config.exists():
                    # Another name for the file; on a volume that has no such names documents are not shown.
                    with contextlib.suppress(OSError):
                        os.link(self.run.corpus, self.corpus)
                    write_atomic(self.config, self.run.config.read_bytes())
                yield
