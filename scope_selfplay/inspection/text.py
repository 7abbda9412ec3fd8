"""Runs and tasks as text: what `scope tasks ls`, `show` and `stats` print.

What a model wrote is made safe to print: it cannot move the cursor, recolour or reverse what we print.
"""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from scope_selfplay.health.signals import Checkup, HealthWarning, Signal
from scope_selfplay.inspection.judge_checks import check_lines
from scope_selfplay.inspection.overview import IterationOverview, Overview, TaskGroup, searches_of
from scope_selfplay.inspection.people import People
from scope_selfplay.schemas import Candidate, CandidateStatus, Grade, Rollout, Rubric, ToolCall, Verdict
from scope_selfplay.store.human import HUMAN, HumanVerdict
from scope_selfplay.store.query import AnswerComparison, GradedRollout, Judgements, TaskPage, TaskRecord
from scope_selfplay.untrusted_text import Suspicion, one_line, printable

_COLUMNS = {
    **{name: name for name in ("id", "iteration", "stage", "status", "reason", "mean", "type")},
    "searches": "search_turns",
    "document": "document_id",
    "text": "text",
}
"""The columns of a list and the fields of `TaskLine` in them."""
_COLOURS = {
    CandidateStatus.ACCEPTED: "green",
    CandidateStatus.REJECTED: "yellow",
    CandidateStatus.UNRESOLVED: "red",
}
_BAR = 30
_TASKS_A_WARNING = 2


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
    last = page.offset + len(page.lines)
    if last < page.total:
        console.print(
            f"{page.offset + 1:,} to {last:,} of {page.total:,}; --offset {last} shows the next", style="dim"
        )
    else:
        console.print(f"{page.total:,} in all", style="dim")


def describe_overview(page: Overview) -> Iterator[str]:
    """Iteration by iteration, then the held-out table, then what health warns of."""
    yield f"run {page.run}  config {page.config_hash or 'several'}  prompts {page.prompt_hash or 'several'}"
    if page.shared:
        yield printable(page.shared)
    checkups = {checkup.iteration: checkup for checkup in page.health}
    for iteration in page.iterations:
        yield from _iteration_lines(iteration)
        if iteration.iteration in checkups:
            yield from _health_lines(checkups[iteration.iteration])
    if page.held_out:
        yield "\n== Held-out tasks: mean share of the rubric met, 95 % interval"
        for score in page.held_out:
            rating = "" if score.rating is None else f"  rating {score.rating:.3f}"
            known = score.low is not None and score.high is not None
            interval = f" [{score.low:.3f}, {score.high:.3f}]" if known else ""
            yield f"  {score.checkpoint:8} {score.mean_score:.3f}{interval} over {score.tasks} tasks{rating}"
    if page.kept:
        yield f"  kept     {one_line(page.kept.words)}  ({page.kept.checkpoint or 'the base model'}, best/)"
    yield from people_lines(page.people)
    yield from check_lines(page.judge)
    warnings = [found for checkup in page.health for found in checkup.warnings]
    if warnings:
        yield "\n== Warnings"
        yield from warning_lines(warnings)


def people_lines(found: People | None) -> Iterator[str]:
    """What people did in the run, and how far the judge agrees with them."""
    if found is None:
        return
    yield "\n== People"
    score = "" if found.mean_score is None else f", mean score {found.mean_score:.3f}"
    tasks = f"{found.written} tasks written, {found.accepted} accepted"
    yield f"  {found.answers} answers{score}; {tasks}"
    if found.agreement:
        yield "  judge and person: questions, share agreed, Cohen's kappa with 95 % interval over tasks"
    for row in found.agreement:
        kappa = "kappa -" if row.kappa is None else f"kappa {row.kappa:.3f}"
        interval = "" if row.low is None or row.high is None else f" [{row.low:.3f}, {row.high:.3f}]"
        alone = f"judge alone yes {row.judge_alone}, person alone yes {row.person_alone}"
        agreed = f"{row.questions:>5}  {row.agreed / row.questions:.3f}"
        yield f"    {one_line(row.name):22} {agreed}  {kappa}{interval}  ({alone})"
    for duel in found.duels:
        names = f"{one_line(duel.newer)} against {one_line(duel.older)}"
        yield f"  {names}, blind: won {duel.wins}, equal {duel.ties}, lost {duel.losses}"


def warning_lines(warnings: Iterable[HealthWarning]) -> Iterator[str]:
    """Each warning of health on one line, then the first tasks behind it with what they were asked or answered."""
    for found in warnings:
        yield f"  iteration {found.iteration}: {one_line(found.text)}"
        for task in found.behind[:_TASKS_A_WARNING]:
            yield f"    {one_line(task.task_id)}  {one_line(task.task)}"
            if task.shown:
                yield f"      {one_line(task.shown)}"


def _iteration_lines(found: IterationOverview) -> Iterator[str]:
    held_out = " (held-out tasks)" if found.iteration == 0 else ""
    if not found.funnel:
        return
    yield f"\n== Iteration {found.iteration}{held_out}"
    most = max(step.count for step in found.funnel)
    for step in found.funnel:
        yield f"  {step.name:22} {step.count:>9,}  {_bar(step.count, most)}"
    ended = ", ".join(f"{reason} {count:,}" for reason, count in found.reasons.items())
    yield f"  ended as: {ended}"
    if found.histogram:
        yield "  tried tasks by mean score:"
        most = max(found.histogram)
        for number, count in enumerate(found.histogram):
            low, high = number / len(found.histogram), (number + 1) / len(found.histogram)
            yield f"    {low:.1f}-{high:.1f} {count:>9,}  {_bar(count, most)}"
    yield from _group_lines("by type", found.by_type)
    yield from _group_lines("by searches made", found.by_search_turns)
    if found.ruling:
        yield f"  ruling: {one_line(found.ruling)}"


def _group_lines(title: str, groups: Sequence[TaskGroup]) -> Iterator[str]:
    if not groups:
        return
    yield f"  {title}:"
    for group in groups:
        score = "" if group.mean_score is None else f", mean score {group.mean_score:.3f}"
        yield f"    {printable(group.name):20} {group.accepted:,} of {group.candidates:,} kept{score}"


def _health_lines(checkup: Checkup) -> Iterator[str]:
    """Every value with its verdict and where it is healthy; `!` marks those that are warned of."""
    known = [signal for signal in checkup.signals if signal.value is not None]
    warned = sum(bool(signal.warning) for signal in known)
    yield f"  health: {warned} of {len(known)} signals warn" if known else "  health: nothing to measure yet"
    width = max((len(signal.title) for signal in known), default=0)
    for signal in known:
        flag = "!" if signal.warning else " "
        value = f"{signal.value:>10.3f}  {signal.verdict:9}  {_bounds(signal):14} {signal.unit}"
        yield f"   {flag}{signal.title:{width}} {value}".rstrip()


def _bounds(signal: Signal) -> str:
    """Where the signal is healthy; "" where nothing is known to be unhealthy."""
    match signal.low, signal.high:
        case None, None:
            return ""
        case low, None:
            return f"at least {low:g}"
        case None, high:
            return f"at most {high:g}"
        case low, high:
            return f"{low:g} to {high:g}"


def _bar(count: int, most: int) -> str:
    return "#" * round(_BAR * count / most) if most else ""


def describe_task(
    record: TaskRecord,
    others: Sequence[GradedRollout],
    matches: Sequence[AnswerComparison],
    judgements: Judgements,
    *,
    passages: bool,
) -> Iterator[str]:
    """Sections in the order in which they were made. `others` are attempts of training, comparison and people."""
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
            yield from _section("Reference answer", task.reference)
    if record.document is not None:
        title = f"Source document {record.document.id}: {record.document.title}"
        yield from _section(title, record.document.text, candidate.document_suspect)
    if record.written_by is not None:
        yield from _rollout("Challenger", record.written_by, None, None, passages=passages)
    for gate, verdict in candidate.gates.items():
        yield from _section(f"Gate {gate.value}: {verdict_word(verdict)}", verdict.reasoning)
    if candidate.rubric is not None:
        yield from _rubric(candidate.rubric)
    for row, attempt in enumerate(record.attempts, start=1):
        yield from _rollout(
            f"Attempt {row}", attempt.rollout, attempt.grade, candidate.rubric, passages=passages
        )
    for attempt in others:
        by_person = attempt.rollout.checkpoint == HUMAN
        title = "A person" if by_person else f"Iteration {attempt.iteration}, {attempt.stage.value}"
        yield from _rollout(title, attempt.rollout, attempt.grade, candidate.rubric, passages=passages)
    for match in matches:
        outcome = match.comparison.outcome
        result = "no verdict" if outcome is None else f"{outcome.first:g} : {outcome.second:g}"
        yield from _section(
            f"{match.first} against {match.second}: {result}", match.comparison.verdict.reasoning
        )
    yield from _judgements(judgements)
    yield from _provenance(candidate)


def _rubric(rubric: Rubric) -> Iterator[str]:
    yield "\n== Rubric"
    for row, criterion in enumerate(rubric.criteria, start=1):
        lacks = "" if criterion.evidence is None or criterion.evidence else "  (no evidence)"
        yield f"  {row}. [{criterion.priority.value}] {printable(criterion.text)}{lacks}"
    yield from (f"  no criterion for: {printable(demand)}" for demand in rubric.unmet or ())


def verdicts_of_people(verdicts: Iterable[HumanVerdict]) -> Iterator[str]:
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
    if rollout.error:
        yield f"  failed: {printable(rollout.error)}"
    for turn in rollout.turns:
        if turn.thinking:
            yield from _indented("think", turn.thinking)
        if turn.query is None and turn.call is not None:
            yield from _call(turn.call)
        if turn.query is not None:
            yield from _indented("search", turn.query)
            for passage in turn.passages:
                text = f"{passage.title} ({passage.id})" + (f"\n{passage.text}" if passages else "")
                yield from _indented("found", text)
    if rollout.answer is not None:
        yield from _indented("answer", rollout.answer)
    yield from _suspect(rollout.injection_suspect)
    if grade is not None:
        criteria = [criterion.text for criterion in rubric.criteria] if rubric else []
        for row, verdict in enumerate(grade.verdicts):
            text = criteria[row] if row < len(criteria) else f"criterion {row + 1}"
            yield from _indented(verdict_word(verdict), f"{text}\n{verdict.reasoning}".strip())


def _suspect(signs: Iterable[Suspicion] | None) -> Iterator[str]:
    if signs:
        yield from _indented("suspect", "; ".join(sign.meaning for sign in signs))


def _call(call: ToolCall) -> Iterator[str]:
    fault = f", {call.fault.value}" if call.fault else ""
    yield from _indented("call", f"{call.tool} {call.arguments} ({call.seconds:.3f} s{fault})")
    yield from _indented("result", call.result)


def _judgements(judgements: Judgements) -> Iterator[str]:
    for made in judgements.selections:
        selection = made.selection
        winners = "no verdict" if selection.winner_ids is None else ", ".join(selection.winner_ids)
        yield f"\n== Picked in iteration {made.iteration}, {made.stage.value}: {printable(winners)}"
        yield from _indented("shown", "\n".join(selection.candidate_ids))
        yield from _account(selection.verdict)
    if judgements.scores:
        yield "\n== Scores"
    for given in judgements.scores:
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
