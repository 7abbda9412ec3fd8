"""`scope tasks show`: one candidate with everything that was kept of it, as lines of text."""

from collections.abc import Iterator, Sequence

from scope_selfplay.inspection.text import printable
from scope_selfplay.schemas import Candidate, Grade, Rollout, Rubric, Verdict
from scope_selfplay.store.query import AnswerComparison, GradedRollout, Judgements, TaskRecord

_MARKS = {True: "yes", False: "no", None: "?"}


def describe(
    record: TaskRecord,
    others: Sequence[GradedRollout],
    matches: Sequence[AnswerComparison],
    judgements: Judgements,
    *,
    passages: bool,
) -> Iterator[str]:
    """Sections in the order in which they came about. `others` are attempts of training and comparison."""
    candidate = record.candidate
    yield f"{candidate.id}  iteration {record.iteration}, {record.stage.value}"
    yield f"status     {candidate.status.value}: {candidate.reason.value}"
    if candidate.mean is not None:
        yield f"mean score {candidate.mean:.3f} over {len(candidate.rollout_ids)} rollouts"
    yield from _task(candidate)
    if record.document is not None:
        yield from _section(
            f"Source document {record.document.id}: {record.document.title}", record.document.text
        )
    if record.written_by is not None:
        yield from _rollout("Challenger", record.written_by, None, None, passages=passages)
    for gate, verdict in candidate.gates.items():
        yield from _section(f"Gate {gate.value}: {_said(verdict)}", verdict.reasoning)
    if candidate.rubric is not None:
        yield "\n== Rubric"
        for row, criterion in enumerate(candidate.rubric.criteria, start=1):
            yield f"  {row}. [{criterion.priority.value}] {printable(criterion.text)}"
    for row, attempt in enumerate(record.attempts, start=1):
        yield from _rollout(
            f"Attempt {row}", attempt.rollout, attempt.grade, candidate.rubric, passages=passages
        )
    for attempt in others:
        title = f"Iteration {attempt.iteration}, {attempt.stage.value}"
        yield from _rollout(title, attempt.rollout, attempt.grade, candidate.rubric, passages=passages)
    for match in matches:
        outcome = match.comparison.outcome
        result = "no verdict" if outcome is None else f"{outcome.first:g} : {outcome.second:g}"
        yield from _section(
            f"{match.first} against {match.second}: {result}", match.comparison.verdict.reasoning
        )
    yield from _judgements(judgements)
    yield from _provenance(candidate)


def _task(candidate: Candidate) -> Iterator[str]:
    task = candidate.task
    if task is None:
        yield "\n(no task was written)"
        return
    yield from _section(f"Task {task.id} ({task.type}, {task.search_turns} search turns)", task.text)
    if task.reference is not None:
        yield from _section("Reference answer", task.reference)


def _rollout(
    title: str, rollout: Rollout, grade: Grade | None, rubric: Rubric | None, *, passages: bool
) -> Iterator[str]:
    score = "" if grade is None or grade.score is None else f", score {grade.score:.3f}"
    yield f"\n== {title}: {rollout.checkpoint}, {rollout.status.value}, {rollout.searches} searches{score}"
    if rollout.error:
        yield f"  failed: {printable(rollout.error)}"
    for turn in rollout.turns:
        if turn.thinking:
            yield from _indented("think", turn.thinking)
        if turn.query is not None:
            yield from _indented("search", turn.query)
            for passage in turn.passages:
                text = f"{passage.title} ({passage.id})" + (f"\n{passage.text}" if passages else "")
                yield from _indented("found", text)
    if rollout.answer is not None:
        yield from _indented("answer", rollout.answer)
    if grade is not None:
        criteria = [criterion.text for criterion in rubric.criteria] if rubric else []
        for row, verdict in enumerate(grade.verdicts):
            text = criteria[row] if row < len(criteria) else f"criterion {row + 1}"
            yield from _indented(_said(verdict), f"{text}\n{verdict.reasoning}".strip())


def _judgements(judgements: Judgements) -> Iterator[str]:
    for picking in judgements.selections:
        picked = picking.selection
        winners = "no verdict" if picked.winner_ids is None else ", ".join(picked.winner_ids)
        yield f"\n== Picked in iteration {picking.iteration}, {picking.stage.value}: {printable(winners)}"
        yield from _indented("shown", "\n".join(picked.candidate_ids))
        yield from _account(picked.verdict)
    if judgements.scores:
        yield "\n== Scores"
    for rating in judgements.scores:
        score = rating.score
        number = "no verdict" if score.value is None else f"{score.value:g}"
        scale = score.scale if score.criterion is None else f"{score.scale}, criterion {score.criterion + 1}"
        where = f"iteration {rating.iteration}, {rating.stage.value}"
        yield from _indented(number, f"{score.rollout_id} ({scale}; {where})")
        yield from _account(score.verdict)


def _account(verdict: Verdict | None) -> Iterator[str]:
    """The judge's reasoning, or why there is none."""
    if verdict is not None and (verdict.reasoning or verdict.fault):
        yield from _indented(verdict.fault.value if verdict.fault else "judge", verdict.reasoning)


def _said(verdict: Verdict) -> str:
    return verdict.fault.value if verdict.fault is not None else _MARKS[verdict.value]


def _section(title: str, text: str) -> Iterator[str]:
    yield f"\n== {printable(title)}"
    if text:
        yield from (f"  {line}" for line in printable(text).splitlines())


def _indented(name: str, text: str) -> Iterator[str]:
    first, *rest = printable(text).splitlines() or [""]
    yield f"  {name:10} {first}"
    yield from (f"  {'':10} {line}" for line in rest)


def _provenance(candidate: Candidate) -> Iterator[str]:
    yield "\n== Provenance"
    for name, value in candidate.provenance.model_dump().items():
        if value not in ("", None):
            yield f"  {name:12} {value}"
