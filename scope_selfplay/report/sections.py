"""What is shown of a run and of an evaluation: sections of text, tables, curves and folded texts, made once.

`text_of` prints them in a terminal; templates/page.html shows them on a page of the site and in the saved report.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scope_selfplay.base.intervals import Estimate, shown
from scope_selfplay.base.terminal import Table
from scope_selfplay.base.text import one_line, printable
from scope_selfplay.evaluation.folder import EvaluationReader, tables_of
from scope_selfplay.report.charts import Line, few
from scope_selfplay.report.overview import BINS, IterationOverview, Overview, TaskGroup
from scope_selfplay.report.people import People
from scope_selfplay.report.record import short_name, task_changes
from scope_selfplay.report.signals import Checkup, Signal
from scope_selfplay.run.run import Run
from scope_selfplay.store.folder import Stage
from scope_selfplay.store.reader import RunReader

FIRST_CURVES = "reward difficulty rubric non_zero_advantage mean_score format search kl entropy".split()
"""What a reader of a training wants to see first; the rest follows as it was logged."""
_BARS = "▁▂▃▄▅▆▇█"
_BAR = 30
"""Letters of a whole bar."""
_SCORES, _GROUPS = "Tried tasks by mean score", "By task type and searches made"
_SIGNALS = "Every signal"
_DETAILS = (_SCORES, _GROUPS, _SIGNALS)
"""Tables that the end of a run leaves out."""
_LONGEST = 400
"""Characters of an answer that the end of a run shows."""


class Link(str):
    """A cell or a line that leads to a page of the site: segments of its path, and its query."""

    path: tuple[object, ...]
    query: dict[str, object]

    def __new__(cls, text: object, *path: object, **query: object) -> "Link":
        made = super().__new__(cls, text)
        made.path, made.query = path, query
        return made


class Bar(str):
    """A cell that draws a share of 0 to 1."""

    share: float

    def __new__(cls, share: float) -> "Bar":
        made = super().__new__(cls, "#" * round(_BAR * share))
        made.share = share
        return made


@dataclass(frozen=True)
class Figure:
    """Curves over the same steps; `is_first` where they are what one wants to see first."""

    title: str
    lines: tuple[Line, ...]
    is_first: bool


@dataclass(frozen=True)
class Folded:
    """A line with more behind it."""

    title: str
    lines: tuple[str, ...]
    is_warning: bool = False


Part = str | Table | Figure | Folded


class Section(NamedTuple):
    title: str
    parts: Sequence[Part]


def text_of(sections: Sequence[Section]) -> Iterator[str]:
    """Lines for a terminal; of a training the first figures."""
    for section in sections:
        yield f"\n== {printable(section.title)}"
        for part in section.parts:
            yield from (f"  {line}".rstrip() for line in _lines(part))


def _lines(part: Part) -> Iterator[str]:
    match part:
        case str():
            yield from printable(part).splitlines()
        case Table():
            yield from part.text()
        case Figure() if part.is_first:
            for line in few(part.lines):
                scale = (min(line.values), max(line.values))
                ends = f"{line.values[0]:.2f} -> {line.values[-1]:.2f}"
                yield f"{part.title:20} {line.name:14} {ends:16} {sparkline(line.values, *scale)}".rstrip()
        case Folded():
            yield one_line(part.title)
            yield from (f"  {one_line(line)}" for line in part.lines)


def sparkline(values: Sequence[float], low: float = 0.0, high: float = 1.0) -> str:
    """One bar a value, from `low` to `high`."""
    if high <= low:
        return ""
    steps = [int((value - low) / (high - low) * len(_BARS)) for value in values]
    return "".join(_BARS[max(0, min(step, len(_BARS) - 1))] for step in steps)


def run_sections(page: Overview, checkups: Sequence[Checkup] | None) -> list[Section]:
    """Held-out tasks, every iteration, people, the judge, health. `checkups` is None while they are measured."""
    origin = f"config {page.config_hash or 'several'}, prompts {page.prompt_hash or 'several'}"
    facts = [origin, f"{page.shared[:1].upper()}{page.shared[1:]}." if page.shared else ""]
    if page.judge_noise:
        facts.append(
            f"The judge errs on purpose: {page.judge_noise}; scores are by such verdicts (judge.noise)."
        )
    if page.unfinished:
        facts.append(f"Not finished: {', '.join(page.unfinished)}.")
    found = [Section(f"Run {page.run}", [*filter(None, facts)]), _held_out(page)]
    found += [_iteration(each) for each in page.iterations if each.funnel or each.seconds]
    if page.people:
        found.append(Section("People", [_people(page.people)]))
    if page.judge:
        found.append(Section("The judge", [judge_table(page.judge)]))
    return [*found, _health(checkups)]


def judge_table(checks: Mapping[str, Estimate]) -> Table:
    """Canaries have known verdicts; an audit asks again; people judge without knowing what the judge said."""
    rows = ((name, shown(each), f"{each.items:,}", each.note) for name, each in checks.items())
    return Table("", ("", "share or difference", "judgements", ""), tuple(rows))


def _held_out(page: Overview) -> Section:
    title, ratings = "Held-out tasks: mean share of the rubric met, 95 % interval", page.ratings
    if ratings is None or not ratings.held_out:
        return Section("Held-out tasks", ["No checkpoint has been compared yet."])
    names = list(dict.fromkeys(name for groups in ratings.held_out.values() for name in groups))
    rows = []
    for solver, groups in ratings.held_out.items():
        whole, rating = groups.get("all"), ratings.ratings.get(solver)
        interval = ratings.intervals.get(solver)
        rows.append(
            (
                solver + (" (kept)" if page.kept and page.kept.solver == solver else ""),
                *(shown(groups.get(name)) for name in names),
                f"{whole.items:,}" if whole else "",
                Bar(whole.value) if whole else "",
                "" if rating is None else f"{rating:.3f}",
                "[{:.3f}, {:.3f}]".format(*interval) if interval else "",
            )
        )
    head = ("Solver", *names, "tasks", "", "rating", "in units of the judge's margin")
    parts: list[Part] = [Table("", head, tuple(rows))]
    if page.kept:
        parts.append(f"Kept: {page.kept.words} ({page.kept.checkpoint or 'the base model'}, best/)")
    return Section(title, parts)


def _iteration(found: IterationOverview) -> Section:
    number, parts = found.iteration, list[Part]()
    if found.funnel:
        most = max(found.funnel.values())
        steps = [(name, f"{count:,}", Bar(count / most)) for name, count in found.funnel.items()]
        reasons = [
            (Link(reason, "tasks", iteration=number, reason=reason), f"{count:,}")
            for reason, count in found.reasons.items()
        ]
        parts += [
            Table("From document to task", ("", "", ""), tuple(steps)),
            Table("Ended as", ("", "candidates"), tuple(reasons)),
        ]
    if found.histogram:
        most, rows = max(found.histogram), []
        for row, count in enumerate(found.histogram):
            low, high = row / BINS, (row + 1) / BINS
            below = high if row < BINS - 1 else None
            bin_name = Link(f"{low:.1f}-{high:.1f}", "tasks", iteration=number, low=low, below=below)
            rows.append((bin_name, f"{count:,}", Bar(count / most)))
        parts.append(Table(_SCORES, ("mean score", "tasks", ""), tuple(rows)))
    groups = [
        _group(group, Link(group.name, "tasks", iteration=number, type=group.name)) for group in found.by_type
    ]
    for group in found.by_search_turns:
        words = f"{group.name} search{'' if group.name == '1' else 'es'}"
        groups.append(_group(group, Link(words, "tasks", iteration=number, searches=group.name)))
    if groups:
        head = ("", "kept", "of", "mean score")
        parts.append(Table(_GROUPS, head, tuple(groups)))
    took = [(f"seconds of {stage}", f"{seconds:,.0f}") for stage, seconds in found.seconds.items()]
    if found.judge["calls"]:
        verdicts = f"{found.judge['calls']:,}, {found.judge['failed']:,} failed"
        took.append(("verdicts of the judge", verdicts))
    if took:
        parts.append(Table("Its stages", ("", ""), tuple(took)))
    if found.ruling:
        parts.append(f"Ruling: {found.ruling}")
    return Section(f"Iteration {number}{' (held-out tasks)' if number == 0 else ''}", parts)


def _group(group: TaskGroup, name: Link) -> tuple[str, ...]:
    score = "" if group.mean_score is None else f"{group.mean_score:.3f}"
    return (name, f"{group.accepted:,}", f"{group.candidates:,}", score)


def _people(found: People) -> str:
    """What they did; how far the judge agrees with them stands in the judge's table."""
    score = "" if found.mean_score is None else f", mean score {found.mean_score:.3f}"
    duels = [
        f"{duel.newer} against {duel.older}, blind: won {duel.wins}, equal {duel.ties}, lost {duel.losses}"
        for duel in found.duels
    ]
    done = f"{found.answers} answers{score}; {found.written} tasks written, {found.accepted} accepted"
    return "\n".join([done, *duels])


def _health(checkups: Sequence[Checkup] | None) -> Section:
    """What is warned of, with the tasks behind it; then every signal, `!` where it warns."""
    if not checkups:
        said = "Nothing to measure before iteration 1 has made tasks."
        return Section("Health", ["Being measured." if checkups is None else said])
    parts: list[Part] = []
    for found in (found for checkup in checkups for found in checkup.warnings):
        lines: list[str] = []
        for task in found.behind:
            place = ("tasks", task.iteration, "tasks") if task.iteration else ("compare",)
            lines.append(Link(f"{task.task_id}  {task.task}", *place, task.task_id))
            lines += [f"  {task.shown}"] if task.shown else []
        parts.append(Folded(f"Iteration {found.iteration}: {found.text}", tuple(lines), is_warning=True))
    rows = [
        (signals[0].title, *map(_value, signals), signals[0].unit, _bounds(signals[0]))
        for signals in zip(*(checkup.signals for checkup in checkups), strict=True)
        if any(signal.value is not None for signal in signals)
    ]
    numbers = [f"iteration {checkup.iteration}" for checkup in checkups]
    costs = [
        (name, *(f"{checkup.costs[name]:,.3g}" if name in checkup.costs else "" for checkup in checkups))
        for name in dict.fromkeys(name for checkup in checkups for name in checkup.costs)
    ]
    title = f"Health: {len(parts) or 'no'} warnings"
    parts.append(Table(_SIGNALS, ("signal", *numbers, "unit", "healthy"), tuple(rows)))
    return Section(title, [*parts, Table("What it took", ("", *numbers), tuple(costs))] if costs else parts)


def _value(signal: Signal) -> str:
    if signal.value is None:
        return ""
    return f"{signal.value:.3f} {signal.verdict}{' !' if signal.warning else ''}"


def _bounds(signal: Signal) -> str:
    """Where the signal is healthy."""
    match signal.low, signal.high:
        case low, None:
            return f"at least {low:g}"
        case None, high:
            return f"at most {high:g}"
        case low, high:
            return f"{low:g} to {high:g}"


def training_sections(page: Overview) -> list[Section]:
    """Curves of every iteration over each other, and how the checkpoints met."""
    found = []
    if page.ratings and page.ratings.edges:
        edges = [
            (
                Link(f"{edge.newer} against {edge.older}", "compare", a=edge.older, b=edge.newer),
                *(f"{count:,}" for count in (edge.wins, edge.ties, edge.losses, edge.equal, edge.failed)),
                "" if edge.mean_margin is None else f"{edge.mean_margin:.3f}",
            )
            for edge in page.ratings.edges
        ]
        head = ("", "wins", "ties", "losses", "equal answers", "no verdict", "mean margin")
        found.append(Section(f"Comparisons up to iteration {page.rated}", [Table("", head, tuple(edges))]))
    for stage in (Stage.CHALLENGER, Stage.SOLVER):
        curves: dict[str, list[Line]] = {}
        for iteration in page.iterations:
            for line in iteration.curves[stage]:
                if len(line.values) > 1:
                    named = replace(line, name=f"iteration {iteration.iteration}")
                    curves.setdefault(line.name, []).append(named)
        names = sorted(curves, key=lambda name: (*FIRST_CURVES, name).index(name))
        figures = [Figure(name, tuple(curves[name]), name in FIRST_CURVES) for name in names]
        if figures:
            found.append(Section(f"Training of the {stage.capitalize()}", figures))
    return found or [Section("Training", ["No curve has two points yet."])]


def evaluation_sections(reader: EvaluationReader) -> list[Section]:
    """Leaderboard and tables. Raises RecordError where the evaluation has not ended."""
    result, spec = reader.result(), reader.spec
    about = (
        f"{result.items:,} items, {result.samples} answer{'' if result.samples == 1 else 's'} each; prompts "
        f"{spec.prompts}, judges {', '.join(spec.judges) or 'none'}, seed {spec.seed}"
    )
    first, *others = tables_of(result)
    tables = [Section(table.title, [replace(table, title="")]) for table in others]
    return [Section(result.title, [about, first]), *tables]


def ending_sections(run: Run, page: Overview) -> list[Section]:
    """What a person reads when `scope run` ends: the run, one held-out task, where things are, what to do next."""
    last, folder = page.rated, run.folder
    example = _example(run, list(page.ratings.held_out) if page.ratings else [])
    places = [("corpus.jsonl", "the documents of this run"), ("summary.json", "these numbers")]
    if last:
        places.append(
            (f"iteration-{last:02d}/tasks/", "candidates, rollouts and grades, one JSON object a line")
        )
    if page.kept:
        places.append(("best/", f"the Solver that was kept, {page.kept.solver}"))
    again = f"scope run --config {folder.config} --root {folder.path.parent} --set iterations={last + 1}"
    # What in the run's own config would end the command at once.
    if run.config.stop_after is not None:
        again += " --set stop_after=null"
    if last and run.stop_reason(last):
        again += " --set compare.stop=never"
    following = [
        (again, "one more iteration"),
        ("scope run --name other --seed 1", "another seed, another run"),
        ("scope config", "every setting and its value"),
    ]
    return [
        *_brief([*run_sections(page, page.health), *training_sections(page)]),
        *([Section("One held-out task (`scope tasks show` has them all)", example)] if example else []),
        Section(f"Where things are: {folder.path}/", [Table("", ("", ""), tuple(places))]),
        Section("What next", [f"{command}   {why}" for command, why in following]),
    ]


def _brief(sections: Sequence[Section]) -> list[Section]:
    return [
        Section(title, [part for part in parts if not (isinstance(part, Table) and part.title in _DETAILS)])
        for title, parts in sections
    ]


def _example(run: Run, names: Sequence[str]) -> list[Part]:
    """A held-out task, and what the first and the last Solver said to it: the one whose score changed most."""
    with RunReader(run.folder.path) as reader:
        scores = reader.scores()
        answered = {short_name(score.checkpoint) for score in scores}
        if len(names) < 2 or not {names[0], names[-1]} <= answered:
            return []
        changes = task_changes(reader, scores, names[0], names[-1])
        if not changes:
            return []
        told = max(changes, key=lambda change: abs(change.gain or 0.0))
        answers = {
            short_name(attempt.rollout.checkpoint): attempt.rollout.answer
            for attempt in reader.attempts_on(told.task_id)
            if attempt.stage is Stage.COMPARE
        }
    parts: list[Part] = [_shortened(told.text)]
    for name, score in ((names[0], told.before), (names[-1], told.after)):
        met = "not graded" if score is None else f"{score:.2f}"
        parts.append(f"{name} ({met}): {_shortened(answers.get(name) or 'no answer')}")
    return parts


def _shortened(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
