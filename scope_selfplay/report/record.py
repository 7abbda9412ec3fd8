"""Tasks, answers and items, whole and as text; and what changed from one checkpoint or iteration to another.

What a model wrote is made safe to print: it cannot move the cursor, recolour or reverse what we print.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from scope_selfplay.base.errors import RecordError
from scope_selfplay.base.intervals import DIFFERENCES, Estimate, estimate_mean, shown
from scope_selfplay.base.suspicions import Suspicion
from scope_selfplay.base.text import named_in, one_line, printable, words_of
from scope_selfplay.base.values import (
    Candidate,
    CandidateStatus,
    Document,
    Grade,
    Rollout,
    Rubric,
    Task,
    Value,
    Verdict,
)
from scope_selfplay.evaluation.folder import ItemRecord, TaskChange
from scope_selfplay.report.signals import SENTENCE_END
from scope_selfplay.store.folder import Stage
from scope_selfplay.store.query import HeldOutScore, HumanFolder, HumanVerdict, TaskPage, TaskRecord
from scope_selfplay.store.reader import RunReader

_COLUMNS = {
    **{name: name for name in ("id", "iteration", "stage", "status", "reason", "mean", "type")},
    "searches": "search_turns",
    "document": "document_id",
    "text": "text",
    "answer": "reference",
    "span": "span",
}
"""The columns of a list and the fields of `TaskLine` in them."""
_COLOURS = {
    CandidateStatus.ACCEPTED: "green",
    CandidateStatus.REJECTED: "yellow",
    CandidateStatus.UNRESOLVED: "red",
}


def tab_lines(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterable[str]:
    """A header and rows as lines with tabs between cells; None is an empty cell, a float has three decimals."""
    yield "\t".join(header)
    for row in rows:
        cells = (f"{cell:.3f}" if isinstance(cell, float) else cell for cell in row)
        yield "\t".join("" if cell is None else one_line(str(cell)) for cell in cells)


def plain_list(page: TaskPage) -> Iterator[str]:
    """Lines for a pipe: every cell whole."""
    rows = (line.model_dump(mode="json") for line in page.lines)
    yield from tab_lines(tuple(_COLUMNS), ([row[field] for field in _COLUMNS.values()] for row in rows))


def show_list(page: TaskPage, console: Console) -> None:
    """For a terminal of any width: a line about each candidate, and under it its whole task."""
    for line in page.lines:
        parts = [f"iteration {line.iteration}", printable(line.type or "no type")]
        parts += [] if line.mean is None else [f"mean score {line.mean:.2f}"]
        about = Text.assemble(
            (line.id, "bold"), "  ", (line.reason.value, _COLOURS[line.status]), "  ", ", ".join(parts)
        )
        console.print(about)
        console.print(Padding(Text(one_line(line.text or "(no task was written)")), (0, 0, 0, 4)))
        if line.reference is not None:
            where = f" ({place_of(line.span)} of {line.document_id})" if line.span else ""
            console.print(Padding(Text(one_line(line.reference + where), "dim"), (0, 0, 0, 4)))
    last = page.offset + len(page.lines)
    if last < page.total:
        console.print(
            f"{page.offset + 1:,} to {last:,} of {page.total:,}; --offset {last} shows the next", style="dim"
        )
    else:
        console.print(f"{page.total:,} in all", style="dim")


def whole_task(
    reader: RunReader, name: str, *, iteration: int | None = None, stage: Stage | None = None
) -> TaskRecord:
    """By the candidate's id, its task's, or the beginning of either. Raises UnknownTaskError."""
    record = reader.task(name, iteration=iteration, stage=stage)
    task, own = record.candidate.task, record.candidate.rollout_ids
    if task is None:
        return record
    later = [attempt for attempt in reader.attempts_on(task.id) if attempt.rollout.id not in own]
    return record.model_copy(
        update={
            "other_attempts": tuple(later),
            "comparisons": tuple(reader.comparisons_on(task.id)),
            "selections": tuple(reader.selections_on(task.id)),
            "scores": tuple(reader.scores_on(task.id)),
            "by_people": tuple(
                each for each in HumanFolder(reader.folder).verdicts() if each.task_id == task.id
            ),
        }
    )


def describe_task(record: TaskRecord, *, passages: bool = False) -> Iterator[str]:
    """Sections in the order in which they were made."""
    candidate = record.candidate
    yield f"{candidate.id}  iteration {record.iteration}, {record.stage.value}"
    yield f"status     {candidate.status.value}: {candidate.reason.value}"
    if candidate.mean is not None:
        yield f"mean score {candidate.mean:.3f} over {len(candidate.rollout_ids)} rollouts"
    if candidate.task is None:
        yield "\n(no task was written)"
    else:
        task = candidate.task
        title = f"Task {task.id} ({task.type}, {searches_of(task)})"
        yield from _section(title, task.text, candidate.injection_suspect)
        if task.reference is not None:
            place = f", {place_of(task.span)} of its document" if task.span else ""
            yield from _section(f"Reference answer{place}", task.reference)
        for reading in candidate.readings:
            how = "with passages open" if reading.is_open else "from memory"
            yield from _section(f"Reader {how}: F1 {reading.f1:.2f}", reading.answer or "(no answer)")
    if record.document is not None:
        title = f"Source document {record.document.id}: {record.document.title}"
        yield from _section(title, record.document.text, candidate.document_suspect)
    if record.written_by is not None:
        yield from _rollout("Challenger", record.written_by, None, None, passages=passages)
    for gate, verdict in candidate.gates.items():
        yield from _section(f"Gate {gate.value}: {verdict_word(verdict)}", verdict.reasoning)
    if candidate.rubric is not None:
        yield from _rubric(candidate.rubric)
    elif candidate.no_rubric:
        yield from _section("Rubric: none", candidate.no_rubric)
    for row, attempt in enumerate(record.attempts, start=1):
        yield from _rollout(
            f"Attempt {row}", attempt.rollout, attempt.grade, candidate.rubric, passages=passages
        )
    for attempt in record.other_attempts:
        title = f"Iteration {attempt.iteration}, {attempt.stage.value}"
        yield from _rollout(title, attempt.rollout, attempt.grade, candidate.rubric, passages=passages)
    for match in record.comparisons:
        outcome = match.comparison.outcome
        result = "no verdict" if outcome is None else f"{outcome.first:g} : {outcome.second:g}"
        yield from _section(
            f"{match.first} against {match.second}: {result}", match.comparison.verdict.reasoning
        )
    yield from _judgements(record)
    yield from _provenance(candidate)
    yield from _said_by_people(record.by_people)


def place_of(span: Sequence[int]) -> str:
    return f"characters {span[0]:,} to {span[1]:,}"


def searches_of(task: Task) -> str:
    """How many searches it was written with, and how many were asked for where that is another number."""
    made = f"{task.search_turns} search{'' if task.search_turns == 1 else 'es'}"
    return made if task.assigned_turns in (None, task.search_turns) else f"{made} of {task.assigned_turns}"


Pieces = Iterator[tuple[str, list[int]]]


def sources_in(document: Document, made: Sequence[tuple[Candidate, Rollout | None]]) -> Pieces:
    """A document's text in pieces, each with the candidates (from 1) that it went into: where the answer stands, else
    sentences that share a name or a number with the task, its rubric or the Challenger's searches.
    """
    text, title, places = document.text, words_of([document.title]), list[list[tuple[int, int]]]()
    ends = [0, *(found.end() for found in SENTENCE_END.finditer(text)), len(text)]
    parts = [(begin + text.startswith(" ", begin), end) for begin, end in pairwise(ends)]
    sentences = [(begin, end, words_of([text[begin:end]])) for begin, end in parts]
    for candidate, rollout in made:
        task, criteria = candidate.task, candidate.rubric.criteria if candidate.rubric else ()
        # No word of a search begins a sentence.
        searches = [f"for {turn.query}" for turn in rollout.turns if turn.query] if rollout else []
        texts = [task.text if task else "", *(each.text for each in criteria), *searches]
        names = {name.removesuffix("'s") for name in named_in(".\n".join(texts))} - title
        shared = [(begin, end) for begin, end, words in sentences if words & names]
        places.append([(task.span[0], task.span[1])] if task and task.span else shared)
    cuts = sorted({0, len(text), *chain.from_iterable(chain.from_iterable(places))})
    for begin, end in pairwise(cuts):
        rows = [row for row, own in enumerate(places, 1) if any(a <= begin and end <= b for a, b in own)]
        yield text[begin:end], rows


def _rubric(rubric: Rubric) -> Iterator[str]:
    yield "\n== Rubric"
    for row, criterion in enumerate(rubric.criteria, start=1):
        lacks = "" if criterion.evidence is None or criterion.evidence else "  (no evidence)"
        yield f"  {row}. [{criterion.priority.value}] {printable(criterion.text)}{lacks}"
    yield from (f"  no criterion for: {printable(demand)}" for demand in rubric.unmet or ())


def _said_by_people(verdicts: Iterable[HumanVerdict]) -> Iterator[str]:
    """What people said where the judge was asked."""
    for row, verdict in enumerate(verdicts):
        if not row:
            yield "\n== What people said to the judge's questions"
        asked = (
            verdict.gate.label
            if verdict.gate
            else f"criterion {(verdict.criterion or 0) + 1} of {verdict.rollout_id}"
        )
        word = {True: "yes", False: "no", None: "?"}[verdict.value]
        yield from _indented(word, f"{asked}, {verdict.person}\n{verdict.reasoning}".strip())


def _rollout(
    title: str, rollout: Rollout, grade: Grade | None, rubric: Rubric | None, *, passages: bool
) -> Iterator[str]:
    score = "" if grade is None or grade.score is None else f", score {grade.score:.3f}"
    yield f"\n== {title}: {rollout.checkpoint}, {rollout.status.value}, {rollout.searches} searches{score}"
    yield from _turns(rollout, passages=passages)
    if grade is not None:
        criteria = [criterion.text for criterion in rubric.criteria] if rubric else []
        for row, verdict in enumerate(grade.verdicts):
            text = criteria[row] if row < len(criteria) else f"criterion {row + 1}"
            yield from _indented(verdict_word(verdict), f"{text}\n{verdict.reasoning}".strip())


def _turns(rollout: Rollout, *, passages: bool) -> Iterator[str]:
    """What it thought, searched, found, called and answered; without `passages` the titles of what it found."""
    if rollout.error:
        yield from _indented("failed", rollout.error)
    for turn in rollout.turns:
        if turn.thinking:
            yield from _indented("think", turn.thinking)
        if turn.query is not None:
            yield from _indented("search", turn.query)
            for passage in turn.passages:
                text = f"{passage.title} ({passage.id})" + (f"\n{passage.text}" if passages else "")
                yield from _indented("found", text)
        elif turn.call is not None:
            fault = f", {turn.call.fault.value}" if turn.call.fault else ""
            call = f"{turn.call.tool} {turn.call.arguments} ({turn.call.seconds:.3f} s{fault})"
            yield from _indented("call", call)
            yield from _indented("result", turn.call.result)
    if rollout.answer is not None:
        yield from _indented("answer", rollout.answer)
    yield from _suspect(rollout.injection_suspect)


def _suspect(signs: Iterable[Suspicion] | None) -> Iterator[str]:
    if signs:
        yield from _indented("suspect", "; ".join(sign.meaning for sign in signs))


def _judgements(record: TaskRecord) -> Iterator[str]:
    for made in record.selections:
        selection = made.selection
        winners = "no verdict" if selection.winner_ids is None else ", ".join(selection.winner_ids)
        yield f"\n== Picked in iteration {made.iteration}, {made.stage.value}: {printable(winners)}"
        yield from _indented("shown", "\n".join(selection.candidate_ids))
        yield from _account(selection.verdict)
    if record.scores:
        yield "\n== Scores"
    for given in record.scores:
        score = given.score
        number = "no verdict" if score.value is None else f"{score.value:g}"
        scale = score.scale if score.criterion is None else f"{score.scale}, criterion {score.criterion + 1}"
        where = f"iteration {given.iteration}, {given.stage.value}"
        yield from _indented(number, f"{score.rollout_id} ({scale}; {where})")
        yield from _account(score.verdict)


def _account(verdict: Verdict | None) -> Iterator[str]:
    """The judge's reasoning, or why there is none."""
    if verdict is not None and (verdict.reasoning or verdict.fault):
        yield from _indented(verdict.fault.value if verdict.fault else "judge", verdict.reasoning)


def verdict_word(verdict: Verdict, unknown: str = "?") -> str:
    """A verdict as one word."""
    if verdict.fault is not None:
        return verdict.fault.value
    return {True: "yes", False: "no", None: unknown}[verdict.value]


def _section(title: str, text: str, signs: Iterable[Suspicion] | None = None) -> Iterator[str]:
    yield f"\n== {printable(title)}"
    if text:
        yield from (f"  {line}" for line in printable(text).splitlines())
    yield from _suspect(signs)


def _indented(name: str, text: str) -> Iterator[str]:
    first, *rest = printable(text).splitlines() or [""]
    yield f"  {name:10} {first}"
    yield from (f"  {'':10} {line}" for line in rest)


def _provenance(candidate: Candidate) -> Iterator[str]:
    yield "\n== Provenance"
    for name, value in candidate.provenance.model_dump().items():
        if value not in ("", None):
            yield f"  {name:12} {one_line(str(value))}"


def describe_item(record: ItemRecord, *, passages: bool = False) -> Iterator[str]:
    """The question, what a good answer holds, then every answer with its verdicts."""
    item = record.item
    yield f"{item.id}  {printable(item.group)}".rstrip()
    yield from (f"  {line}" for line in printable(item.question).splitlines())
    for title, lines in (
        ("right", item.answers),
        ("asked", [f"{each.text} ({each.points:g})" for each in item.criteria]),
        ("given", [item.given] if item.given else []),
    ):
        for line in lines:
            yield from _indented(title, line)
    for scored in record.answers:
        answer, rollout = scored.answer, scored.answer.rollout
        title = f"{answer.checkpoint}, answer {answer.sample + 1}: {rollout.status.value}"
        yield f"\n== {printable(title)}, {rollout.searches} searches, {answer.tokens:,} tokens"
        yield from _turns(rollout, passages=passages)
        for score in scored.scores:
            value = "no score" if score.value is None else f"{score.value:.3f}"
            judge = f"by {score.judge}" if score.judge else ""
            yield from _indented(value, " ".join(filter(None, (score.scorer, score.label, judge))))
            for number, verdict in enumerate(score.verdicts, start=1):
                yield from _indented("", f"{number}. {verdict_word(verdict):6} {one_line(verdict.reasoning)}")
    for met in record.comparisons:
        outcome = "no verdict" if met.outcome is None else f"{met.outcome.first:g} : {met.outcome.second:g}"
        by = "" if met.criterion is None else f", by {item.criteria[met.criterion].text}"
        yield from _section(f"{met.first} against {met.second}{by}: {outcome}", met.verdict.reasoning)


class CheckpointDiff(Value):
    """`gain` is the mean of after minus before over tasks, with its 95 % interval, as in `ratings.json`."""

    before: str
    after: str
    better: int
    worse: int
    gain: Estimate
    changes: tuple[TaskChange, ...]
    """Tasks with two different scores, the most changed first."""


def short_name(checkpoint: str) -> str:
    """`S_1` of `S_1-0badcafe`: what a person calls a checkpoint."""
    return checkpoint.partition("-")[0]


def checkpoint_names(scores: Iterable[HeldOutScore]) -> list[str]:
    """The checkpoints that answered held-out tasks, oldest first."""
    return list(dict.fromkeys(short_name(score.checkpoint) for score in scores))


def scores_of(scores: Sequence[HeldOutScore], name: str) -> dict[str, HeldOutScore]:
    """Of the scores of all (`RunReader.scores`) those of one checkpoint, by task. Raises RecordError without any."""
    own = [score for score in scores if name in (score.checkpoint, short_name(score.checkpoint))]
    if not own:
        known = ", ".join(checkpoint_names(scores)) or "none"
        raise RecordError(f"{name}: has no held-out answers; checkpoints that have: {known}")
    return {score.task_id: score for score in own}


def task_changes(
    reader: RunReader, scores: Sequence[HeldOutScore], before: str, after: str
) -> list[TaskChange]:
    """The held-out tasks that both checkpoints answered.

    Checkpoints by name (S_0, S_1, ...). Raises RecordError for one that has no held-out answers.
    """
    one, two = scores_of(scores, before), scores_of(scores, after)
    rows = reader.sql(
        "SELECT task.id AS id, task.text AS text FROM candidates "
        "WHERE iteration = 0 AND stage = 'tasks' AND task IS NOT NULL"
    )
    texts = {row["id"]: row["text"] for row in rows}
    return [
        TaskChange(task_id=task, text=texts.get(task, ""), before=own.score, after=two[task].score)
        for task, own in one.items()
        if task in two
    ]


def in_order(changes: Iterable[TaskChange], sort: str = "change") -> list[TaskChange]:
    """By `change` (most changed first), `gain` or `loss`; what has not two scores last."""

    def key(change: TaskChange) -> tuple[bool, float, str]:
        gain = change.gain or 0.0
        rank = {"change": -abs(gain), "gain": -gain, "loss": gain}[sort]
        return change.gain is None, rank, change.task_id

    return sorted(changes, key=key)


def diff_checkpoints(before: str, after: str, changes: Sequence[TaskChange]) -> CheckpointDiff:
    """What the changes from one checkpoint to another come to. Raises RecordError where no task has two scores."""
    gains = [change.gain for change in changes if change.gain is not None]
    found = estimate_mean(gains, seed=0, bounds=DIFFERENCES)
    if found is None:
        raise RecordError(f"{before} and {after} have no scored task in common; let both be compared first")
    return CheckpointDiff(
        before=before,
        after=after,
        better=sum(gain > 0 for gain in gains),
        worse=sum(gain < 0 for gain in gains),
        gain=found,
        changes=tuple(change for change in in_order(changes) if change.gain),
    )


def diff_lines(diff: CheckpointDiff, limit: int) -> Iterator[str]:
    """For a terminal: the gain, then the tasks that changed most, a line each with tabs between cells."""
    yield (
        f"{diff.after} minus {diff.before}: {shown(diff.gain, sign=True)} over {diff.gain.items} tasks, "
        f"better on {diff.better}, worse on {diff.worse}"
    )
    rows = ((change.task_id, change.before, change.after, change.text) for change in diff.changes[:limit])
    yield from tab_lines(("task", diff.before, diff.after, "text"), rows)
