"""The records of a training, a file for each kind; what its processes recorded apart becomes one."""

from collections.abc import Iterable, Mapping
from itertools import groupby

from scope_selfplay.schemas import Candidate, Comparison, Grade, Rollout, Rubric, Score, Selection, Value
from scope_selfplay.store.files import Appender, read_records, write_atomic, write_records
from scope_selfplay.store.folders import StageFolder

_KINDS: Mapping[type[Value], tuple[str, tuple[str, ...]]] = {
    Candidate: ("candidates.jsonl", ("id",)),
    Rollout: ("rollouts.jsonl", ("id",)),
    Grade: ("grades.jsonl", ("rollout_id",)),
    Comparison: ("comparisons.jsonl", ("first_id", "second_id", "repeat")),
    Selection: ("selections.jsonl", ("candidate_ids", "repeat")),
    Score: ("scores.jsonl", ("rollout_id", "scale", "criterion")),
    Rubric: ("rubrics.jsonl", ("task_id",)),
}
"""The file of each kind, and what tells its records apart."""


def append_records(folder: StageFolder, records: Iterable[Value]) -> None:
    """Add records of any kinds, each to its file; rollouts without their token ids."""
    texts = [each.without_ids() if isinstance(each, Rollout) else each for each in records]
    for kind, of_kind in groupby(sorted(texts, key=_file_of), key=_file_of):
        with Appender(folder.path / kind) as file:
            file.append(*of_kind)


def _file_of(record: Value) -> str:
    return _KINDS[type(record)][0]


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
    for model, (file, names) in _KINDS.items():
        # The leader's own records first: they may hold what earlier starts of others have left.
        paths = [each.path / file for each in (folder, *others)]
        if any(path.exists() for path in paths):
            records = {
                tuple(getattr(record, name) for name in names): record
                for path in paths
                for record in read_records(path, model)
            }
            judged = model not in (Candidate, Rollout)
            kept = sorted(records, key=str) if judged else list(records)
            write_records(folder.path / file, [records[each] for each in kept])
