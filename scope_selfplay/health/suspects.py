"""Texts that look like attacks on a judge or a policy: which share of answers and tasks."""

from scope_selfplay.health.signals import SHOWN, Evidence, Measured, evidence
from scope_selfplay.store.reader import RunReader

_ANSWERS = (
    "SELECT subject_id AS task_id, answer AS shown, injection_suspect AS signs, ordinal FROM rollouts "
    "WHERE iteration = $1 AND role = 'solver' AND answer IS NOT NULL"
)
_TASKS = (
    "SELECT coalesce(task.id, id) AS task_id, '' AS shown, injection_suspect AS signs, ordinal FROM candidates "
    "WHERE iteration = $1 AND stage = 'tasks'"
)


def suspect_texts(reader: RunReader, iteration: int) -> dict[str, Measured | None]:
    """By signal; None where no text of the kind was looked at."""
    return {
        "suspect_answers": _share(reader, iteration, _ANSWERS),
        "suspect_tasks": _share(reader, iteration, _TASKS),
    }


def _share(reader: RunReader, iteration: int, texts: str) -> Measured | None:
    (counts,) = reader.sql(
        f"SELECT count(signs) AS texts, count(*) FILTER (len(signs) > 0) AS suspect FROM ({texts})",
        [iteration],
    )
    if not counts["suspect"]:
        return Measured(0.0) if counts["texts"] else None
    signs = reader.sql(
        f"SELECT sign, count(*) AS texts FROM (SELECT unnest(signs) AS sign FROM ({texts})) "
        "GROUP BY sign ORDER BY texts DESC, sign",
        [iteration],
    )
    return Measured(
        counts["suspect"] / counts["texts"],
        about=", ".join(f"{row['sign']} {row['texts']}" for row in signs),
        behind=_first(reader, iteration, texts),
    )


def _first(reader: RunReader, iteration: int, texts: str) -> tuple[Evidence, ...]:
    """The tasks of the first suspect texts, which the iteration made, or another one for its held-out answers."""
    rows = reader.sql(
        f"SELECT task_id, shown FROM ({texts}) WHERE len(signs) > 0 ORDER BY ordinal LIMIT {SHOWN}",
        [iteration],
    )
    found = reader.sql(
        "SELECT task.id AS id, task.text AS text, iteration FROM candidates "
        "WHERE task.id IN (SELECT unnest($1::VARCHAR[])) ORDER BY iteration DESC",
        [[row["task_id"] for row in rows]],
    )
    tasks = {row["id"]: row for row in found}
    unknown = {"text": "", "iteration": iteration}
    return tuple(
        evidence(task["iteration"], row["task_id"], task["text"], row["shown"])
        for row in rows
        for task in [tasks.get(row["task_id"], unknown)]
    )
