"""Whether rubrics measure their tasks: every demand has a criterion, every criterion evidence, as the judge says."""

from collections.abc import Sequence

from scope_selfplay.health.signals import Measured, evidence
from scope_selfplay.store.reader import RunReader


def unmet_demands(reader: RunReader, iteration: int) -> Measured | None:
    """The share of accepted tasks that demand what no criterion asks for; None where no judge says."""
    return _share(reader, iteration, "rubric.unmet IS NOT NULL", "rubric.unmet", "no criterion asks for: {}")


def unfounded_criteria(reader: RunReader, iteration: int) -> Measured | None:
    """The share of accepted tasks with a criterion that nothing that was found holds; None where no judge says."""
    lacking = "list_transform(list_filter(rubric.criteria, lambda c: len(c.evidence) = 0), lambda c: c.text)"
    known = "len(list_filter(rubric.criteria, lambda c: c.evidence IS NOT NULL)) > 0"
    return _share(reader, iteration, known, lacking, "without evidence: {}")


def _share(reader: RunReader, iteration: int, known: str, lacking: str, words: str) -> Measured | None:
    """Over the accepted tasks of which something is `known`: those for which the list `lacking` is not empty."""
    rows = reader.sql(
        f"SELECT task.id AS id, task.text AS text, {lacking} AS lacking FROM candidates WHERE iteration = ? "
        f"AND stage = 'tasks' AND status = 'accepted' AND {known} ORDER BY ordinal",
        [iteration],
    )
    if not rows:
        return None
    found = [row for row in rows if row["lacking"]]
    behind = tuple(
        evidence(iteration, row["id"], row["text"], words.format(_listed(row["lacking"]))) for row in found
    )
    return Measured(len(found) / len(rows), behind=behind)


def _listed(texts: Sequence[str]) -> str:
    return "; ".join(texts)
