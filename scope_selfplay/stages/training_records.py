"""What the processes of a training recorded, each in files of its own, as one: the newest record of every id."""

from pathlib import Path

from scope_selfplay.schemas import Candidate, Comparison, Grade, Rollout, Rubric, Score, Selection, Value
from scope_selfplay.store import StageFolder, read_records, write_atomic, write_records


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
    kinds: tuple[tuple[Path, type[Value], tuple[str, ...]], ...] = (
        (folder.candidates, Candidate, ("id",)),
        (folder.rollouts, Rollout, ("id",)),
        (folder.grades, Grade, ("rollout_id",)),
        (folder.comparisons, Comparison, ("first_id", "second_id", "repeat")),
        (folder.selections, Selection, ("candidate_ids", "repeat")),
        (folder.scores, Score, ("rollout_id", "scale", "criterion")),
        (folder.rubrics, Rubric, ("task_id",)),
    )
    for file, model, names in kinds:
        # The leader's own records first: they may hold what earlier starts of others have left.
        paths = [file, *(other.path / file.name for other in others)]
        if any(path.exists() for path in paths):
            records = {
                tuple(getattr(record, name) for name in names): record
                for path in paths
                for record in read_records(path, model)
            }
            judged = model not in (Candidate, Rollout)
            kept = sorted(records, key=str) if judged else list(records)
            write_records(file, [records[each] for each in kept])
