"""The records of a training, a file for each kind; what its processes recorded apart becomes one."""

from collections.abc import Iterable
from itertools import groupby

from scope_selfplay.base.values import Rollout, Value
from scope_selfplay.store.columns import KIND_OF, RecordKind
from scope_selfplay.store.files import Appender, read_records, read_value, write_atomic, write_records
from scope_selfplay.store.folder import RunFolder, Stage, StageFolder


def append_records(folder: StageFolder, records: Iterable[Value]) -> None:
    """Add records of any kinds, each to its file; rollouts without their token ids."""
    texts = [each.without_ids() if isinstance(each, Rollout) else each for each in records]
    for kind, of_kind in groupby(sorted(texts, key=_kind_of), key=_kind_of):
        with Appender(folder.path / f"{kind}.jsonl") as file:
            file.append(*of_kind)


def _kind_of(record: Value) -> RecordKind:
    return KIND_OF[type(record)]


def begin_records(folder: StageFolder, processes: int) -> None:
    """Called by the first process before any other records something.

    Another number of processes divides the tasks anew. What the processes before recorded is merged then, so that it
    is older than whatever follows, whoever records it.
    """
    noted = folder.work / "processes"
    before = int(noted.read_text()) if noted.exists() else processes
    if before != processes:
        merge_records(folder)
        for path in folder.work.glob("rank-*/*.jsonl"):
            path.unlink()
    folder.work.mkdir(parents=True, exist_ok=True)
    write_atomic(noted, f"{processes}\n")


def merge_records(folder: StageFolder) -> None:
    """Keep the newest record of every id, from all processes: a resumed training repeats some steps.

    Judgements come as rollouts end, so they are put into an order that no timing changes.
    """
    others = [StageFolder(path) for path in sorted(folder.work.glob("rank-*"))]
    for kind in RecordKind:
        # The leader's own records first: they may hold what earlier starts of others have left.
        paths = [each.path / f"{kind}.jsonl" for each in (folder, *others)]
        if any(path.exists() for path in paths):
            records = {
                tuple(getattr(record, name) for name in kind.key): record
                for path in paths
                for record in read_records(path, kind.model)
            }
            judged = kind not in (RecordKind.CANDIDATES, RecordKind.ROLLOUTS)
            kept = sorted(records, key=str) if judged else list(records)
            write_records(folder.path / f"{kind}.jsonl", [records[each] for each in kept])


class TaskTarget(Value):
    accepted: int
    target: int

    @property
    def missed(self) -> bool:
        return self.accepted < self.target


def read_task_target(folder: RunFolder, iteration: int) -> TaskTarget | None:
    """None where the stage has not ended. Raises RecordError where the file is damaged."""
    file = folder.stage(iteration, Stage.TASKS).target
    return read_value(file, TaskTarget, "restore it, or remove the stage folder")
