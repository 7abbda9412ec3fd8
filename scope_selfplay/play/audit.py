"""An audit of a run's judge: judgements that the run has paid for are asked again, in several ways, and compared.

What is sampled follows from the run's seed alone: every iteration gives equally many judgements, as far as it has them,
and an audit that goes on, or one of more calls, asks again what another one asked. Answers are kept as they come.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from scope_selfplay.base.errors import ConfigError, RecordError
from scope_selfplay.base.intervals import DIFFERENCES, SHARES, Estimate, estimate_mean, mean_by_item
from scope_selfplay.base.machine import folder_lock
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import (
    Candidate,
    Comparison,
    Fault,
    Gate,
    Outcome,
    Rollout,
    Verdict,
    content_id,
    rng_from,
    seed_from,
)
from scope_selfplay.config.judge import JudgeConfig
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.designs.design import ComparisonDesign
from scope_selfplay.designs.step import open_design
from scope_selfplay.evaluation.evaluate import complete
from scope_selfplay.evaluation.pairs import Labels, kappa_over_tasks
from scope_selfplay.judge.cases import padded
from scope_selfplay.judge.checks import (
    AGREE,
    DRIFT,
    FIRST_PLACE,
    LENGTH,
    UNREAD,
    AskedAgain,
    AuditReport,
    AuditWay,
    JudgementKind,
    read_asked,
)
from scope_selfplay.judge.model import open_model_judge
from scope_selfplay.judge.protocol import GateQuestion, GradeQuestion, Judge, PairQuestion, Question, Style
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.run.begin import with_judge_prompts
from scope_selfplay.run.run import Run
from scope_selfplay.store.columns import RecordKind
from scope_selfplay.store.files import Appender, disk_faults, write_atomic
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.reader import RunReader

_PAID = "v.value IS NOT NULL AND v.attempts > 0"
_UNITS = {
    JudgementKind.GATE: " UNION ALL ".join(
        f"SELECT iteration, stage, id AS one, '{gate}' AS other, gates.{gate} AS v FROM candidates"
        for gate in Gate
    ),
    JudgementKind.GRADE: "SELECT iteration, stage, rollout_id AS one, "
    "unnest(range(len(verdicts)))::VARCHAR AS other, unnest(verdicts) AS v FROM grades",
    JudgementKind.COMPARISON: "SELECT iteration, stage, first_id AS one, second_id AS other, verdict AS v "
    "FROM comparisons WHERE outcome IS NOT NULL AND repeat = 0",
}
"""Where judgements of each kind are: `one` and `other` name the candidate and gate, answer and criterion, or pair."""
WAYS_OF = {
    JudgementKind.GATE: (AuditWay.AGAIN,),
    JudgementKind.GRADE: (AuditWay.AGAIN, AuditWay.LONGER),
    JudgementKind.COMPARISON: tuple(AuditWay),
}
"""In which ways a judgement of each kind can be asked again."""
_PARTS = {JudgementKind.GRADE: 0.6, JudgementKind.GATE: 0.2, JudgementKind.COMPARISON: 0.2}
"""How the calls of one way are shared."""
_MOST = 600
# Five intervals of 95 % that hold all at once are 99 % each, as those of the other signals of health.
_LOOKS = 5
_AT_ONCE = 64
_LOCK_TIMEOUT = 5.0


class Judgement(NamedTuple):
    """A question that was asked, and what is kept of it when it is asked again, so far without an answer of now."""

    question: GateQuestion | GradeQuestion | PairQuestion
    kept: AskedAgain


def audit_judge(path: Path, overrides: Sequence[str], progress: Progress, *, sample: int) -> AuditReport:
    """At most `sample` calls.

    Goes on where an earlier audit was stopped, and pays for no answer twice. Raises JudgeError, ConfigError.
    """
    with RunReader(path) as reader:
        folder = reader.folder
        run = Run(load_config(folder.config, overrides), folder, load_pack(folder.prompts), progress)
        if run.config.judge.kind == "verifier":
            raise ConfigError(
                "judge.kind is verifier: it compares answers by rule, so there is nothing to ask again"
            )
        pools = {kind: sample_judgements(reader, run.config, kind, sample) for kind in JudgementKind}
    planned = _planned(pools, sample)
    if not planned:
        raise RecordError(
            f"{path}: holds no judgement that could be asked again; audit a run that has made tasks or answers"
        )
    own, deciding = _open_judge(run, run.config.judge), run.config.judge.deciding[0]
    judges = dict.fromkeys((judgement.kept.stage for judgement, _ in planned), own)
    if Stage.COMPARE in judges and deciding is not run.config.judge:
        judges[Stage.COMPARE] = _open_judge(run, deciding)
    asked = [(judgement, way, judges[judgement.kept.stage]) for judgement, way in planned]
    with disk_faults(folder.audit):
        folder.audit.mkdir(parents=True, exist_ok=True)
    lock = folder.audit / ".lock"
    with folder_lock(folder.audit, lock, work="auditing", say=progress.say, timeout=_LOCK_TIMEOUT):
        _ask_all(folder, asked, progress)
        # One answer of each judge to each question, in an order that no timing changes.
        found = {(each.id, each.way, each.by): each for each in read_asked(folder)}
        report = report_of([found[key] for key in sorted(found)], own.identity)
        write_atomic(folder.audit / "audit.json", report.model_dump_json(indent=1) + "\n")
    return report


def sample_judgements(
    reader: RunReader, config: RunConfig, kind: JudgementKind, number: int
) -> list[Judgement]:
    """At most so many, of those whose task the run has: as many of each iteration, in an order that the seed gives."""
    rows = reader.sql(
        f"SELECT iteration, stage, one, other FROM (SELECT iteration, stage, one, other, row_number() OVER "
        f"(PARTITION BY iteration ORDER BY md5(concat_ws('/', $1, stage, one, other))) AS place "
        f"FROM ({_UNITS[kind]}) WHERE {_PAID}) ORDER BY place, iteration LIMIT $2",
        [str(config.seed), number],
    )
    match kind:
        case JudgementKind.GATE:
            return list(_gates(reader, rows))
        case JudgementKind.GRADE:
            return list(_grades(reader, rows))
        case JudgementKind.COMPARISON:
            # Of the Solver's comparisons, where the rubric of the task plays no part in them.
            design = open_design(config.solver.reward, config.solver, len)
            style = design.style if isinstance(design, ComparisonDesign) else None
            return list(_comparisons(reader, rows, style if style is Style.PREFERENCE else None))


def _gates(reader: RunReader, rows: Sequence[dict[str, Any]]) -> Iterator[Judgement]:
    names = [row["one"] for row in rows]
    by_id = {made.id: made for made in reader.with_ids(RecordKind.CANDIDATES, "id", names)}
    documents = reader.documents({made.provenance.document_id for made in by_id.values()})
    for row in rows:
        made, gate = by_id[row["one"]], Gate(row["other"])
        if made.task is not None:
            question = GateQuestion(made.task, gate, documents.get(made.provenance.document_id))
            yield _judgement(row, question, made.gates[gate])


def _grades(reader: RunReader, rows: Sequence[dict[str, Any]]) -> Iterator[Judgement]:
    names = [row["one"] for row in rows]
    grades = {each.rollout_id: each for each in reader.with_ids(RecordKind.GRADES, "rollout_id", names)}
    rollouts = {each.id: each for each in reader.with_ids(RecordKind.ROLLOUTS, "id", names)}
    tasks = _tasks(reader, [each.subject_id for each in rollouts.values()])
    for row in rows:
        rollout, number = rollouts.get(row["one"]), int(row["other"])
        made = tasks.get(rollout.subject_id) if rollout else None
        criteria = made.rubric.criteria if made and made.rubric else ()
        if rollout and made and made.task and number < len(criteria) and criteria[number].check is None:
            question = GradeQuestion(made.task, criteria[number], rollout.answer or "")
            yield _judgement(row, question, grades[row["one"]].verdicts[number], rollout)


def _comparisons(
    reader: RunReader, rows: Sequence[dict[str, Any]], in_training: Style | None
) -> Iterator[Judgement]:
    names = [row[side] for row in rows for side in ("one", "other")]
    rollouts = {each.id: each for each in reader.with_ids(RecordKind.ROLLOUTS, "id", names)}
    met = reader.with_ids(RecordKind.COMPARISONS, "first_id", [row["one"] for row in rows])
    compared: dict[tuple[str, str], Comparison] = {(each.first_id, each.second_id): each for each in met}
    tasks = _tasks(reader, [each.subject_id for each in rollouts.values()])
    for row in rows:
        style = Style.SCORES if row["stage"] == Stage.COMPARE else in_training
        pair = tuple(rollouts[row[side]] for side in ("one", "other") if row[side] in rollouts)
        made = tasks.get(pair[0].subject_id) if pair else None
        found = compared[row["one"], row["other"]]
        if style and len(pair) == 2 and made and made.task and found.outcome:
            question = PairQuestion(made.task, *pair, style=style, rubric=made.rubric)
            yield _judgement(row, question, found.verdict, *pair, then=found.outcome.share)


def _judgement(
    row: dict[str, Any],
    question: GateQuestion | GradeQuestion | PairQuestion,
    verdict: Verdict,
    *rollouts: Rollout,
    then: float | None = None,
) -> Judgement:
    """`then` is what was said where it is no yes or no; `rollouts` are those that were judged, in the order shown."""
    task, criterion = question.task, []
    match question:
        case GateQuestion(gate=gate):
            kind, about = JudgementKind.GATE, gate.value
        case GradeQuestion(criterion=asked):
            kind, about = JudgementKind.GRADE, asked.dimension or asked.priority.value
            criterion = [asked.text]
        case PairQuestion(style=style):
            kind, about = JudgementKind.COMPARISON, style.value
    named = (kind.value, row["iteration"], row["stage"], task.id, *(criterion or [about]))
    texts = [task.text, *criterion, *(rollout.answer or "" for rollout in rollouts)]
    kept = AskedAgain(
        id=content_id(*named, *(rollout.id for rollout in rollouts)),
        way=AuditWay.AGAIN,
        kind=kind,
        by="",
        iteration=row["iteration"],
        stage=row["stage"],
        task_id=task.id,
        about=about,
        shown="\n---\n".join(text[:_MOST] for text in texts),
        then=float(bool(verdict.value)) if then is None else then,
        now=None,
        then_reasoning=verdict.reasoning[:_MOST],
    )
    return Judgement(question, kept)


def _tasks(reader: RunReader, task_ids: Sequence[str]) -> dict[str, Candidate]:
    """The candidates of tasks; one with a rubric before others."""
    found = reader.with_ids(RecordKind.CANDIDATES, "task.id", task_ids)
    return {
        made.task.id: made for made in sorted(found, key=lambda each: each.rubric is not None) if made.task
    }


def _planned(pools: Mapping[JudgementKind, list[Judgement]], sample: int) -> list[tuple[Judgement, AuditWay]]:
    """Every way gets as many calls as any other, as far as there are judgements for it."""
    able = {way: {kind: pool for kind, pool in pools.items() if way in WAYS_OF[kind]} for way in AuditWay}
    used = [way for way in AuditWay if any(able[way].values())]
    planned: list[tuple[Judgement, AuditWay]] = []
    for number, way in enumerate(used):
        room = (sample - len(planned)) // (len(used) - number)
        planned += [(judgement, way) for judgement in _shared(able[way], room)]
    return planned


def _shared(pools: dict[JudgementKind, list[Judgement]], room: int) -> list[Judgement]:
    """At most so many judgements of all kinds by their parts; what one kind lacks goes to the others."""
    taken: list[Judgement] = []
    kinds = sorted((kind for kind in pools if pools[kind]), key=lambda kind: len(pools[kind]) / _PARTS[kind])
    for number, kind in enumerate(kinds):
        weight = _PARTS[kind] / sum(_PARTS[each] for each in kinds[number:])
        taken += pools[kind][: round((room - len(taken)) * weight)]
    return taken


def _open_judge(run: Run, settings: JudgeConfig) -> Judge:
    """It answers nothing from a cache."""
    if settings.kind != "model":
        return run.open_judge(settings)
    return open_model_judge(
        settings.model_copy(update={"cache": None}),
        with_judge_prompts(run.pack, settings),
        seed=seed_from(run.config.seed, "audit"),
        folder=run.folder.path,
        say=run.progress.say,
    )


def _ask_all(
    folder: RunFolder, asked: Sequence[tuple[Judgement, AuditWay, Judge]], progress: Progress
) -> None:
    # A judge that could not be read has answered; one that was down is asked once more.
    settled = {
        (each.id, each.way, each.by)
        for each in read_asked(folder)
        if each.now is not None or each.fault is Fault.UNREADABLE
    }
    missing = [each for each in asked if (each[0].kept.id, each[1], each[2].identity) not in settled]
    title = "ask judgements again"
    with Appender(folder.audit / "asked.jsonl") as file:

        async def ask(each: tuple[Judgement, AuditWay, Judge]) -> None:
            file.append(await ask_again(*each))

        complete(title, missing, ask, progress=progress, total=len(asked), in_flight=_AT_ONCE)
    progress.end(f"{len(missing)} asked")


async def ask_again(judgement: Judgement, way: AuditWay, judge: Judge) -> AskedAgain:
    """With a fault there is no verdict now."""
    padded_first = rng_from("audit", judgement.kept.id).random() < 0.5
    reply = await judge.ask(_altered(judgement, way, padded_first=padded_first))
    now, verdict = reply.value, reply.verdict
    if isinstance(now, Outcome):
        now = 1 - now.share if way is AuditWay.SWAPPED else now.share
    return judgement.kept.model_copy(
        update={
            "way": way,
            "by": judge.identity,
            "now": None if now is None else float(now),
            "padded_first": padded_first,
            "now_reasoning": verdict.reasoning[:_MOST],
            "fault": verdict.fault,
            "attempts": verdict.attempts,
            "cached": verdict.cached,
        }
    )


def _altered(judgement: Judgement, way: AuditWay, *, padded_first: bool) -> Question[Any]:
    """The question as this way puts it, with draws of its own."""
    question = judgement.question
    match question:
        case GradeQuestion(answer=answer):
            longer = padded(answer) if way is AuditWay.LONGER else answer
            return replace(question, answer=longer, key=("audit", way.value, judgement.kept.id))
        case PairQuestion(first=first, second=second):
            if way is AuditWay.LONGER:
                first, second = (_longer(first), second) if padded_first else (first, _longer(second))
            if way is AuditWay.SWAPPED:
                first, second = second, first
            # Of another repeat: the same question would be the same draw.
            return replace(question, first=first, second=second, repeat=1 + list(AuditWay).index(way))
    return question


def _longer(rollout: Rollout) -> Rollout:
    longer = padded(rollout.answer or "")
    turns = rollout.turns
    if turns and rollout.answer:
        text = turns[-1].text.replace(rollout.answer, longer)
        turns = (*turns[:-1], turns[-1].model_copy(update={"text": text}))
    # Another id: a judge by rule takes rollouts of one id for one and the same.
    return rollout.model_copy(update={"answer": longer, "turns": turns, "id": f"{rollout.id}-longer"})


def report_of(asked: Sequence[AskedAgain], judge: str) -> AuditReport:
    """Everything that can be said; `judge` names the one of the run."""
    read = {way: [each for each in asked if each.way is way and each.now is not None] for way in AuditWay}
    checks = {AGREE[AuditWay.AGAIN]: _share(read[AuditWay.AGAIN], _agrees), **_agreements(asked)}
    checks[FIRST_PLACE] = _share(read[AuditWay.SWAPPED], lambda each: -_change(each), DIFFERENCES)
    checks[LENGTH] = _share(read[AuditWay.LONGER], _gain_of_length, DIFFERENCES)
    checks[UNREAD] = _share(asked, lambda each: float(each.now is None))
    checks |= _drifts([each for each in read[AuditWay.AGAIN] if each.kind is JudgementKind.GRADE])
    return AuditReport(
        iteration=max((each.iteration for each in asked), default=0),
        judge=judge,
        calls=sum(not each.cached and each.attempts > 0 for each in asked),
        checks={name: check for name, check in checks.items() if check is not None},
    )


def _agreements(asked: Sequence[AskedAgain]) -> dict[str, Estimate | None]:
    """By way and kind."""
    found = {}
    for way, kind in itertools.product(AuditWay, JudgementKind):
        own = [each for each in asked if (each.way, each.kind) == (way, kind)]
        read = [each for each in own if each.now is not None]
        kappa = kappa_over_tasks([Labels(each.task_id, each.then, each.now) for each in read])
        notes = ["" if kappa is None else f"kappa {kappa.value:.3f}"]
        notes += [f"{len(own) - len(read)} unread"] if len(read) < len(own) else []
        found[f"{AGREE[way]}: {kind}"] = _share(read, _agrees, note=", ".join(filter(None, notes)))
    return found


def _agrees(each: AskedAgain) -> float:
    return float(each.then == each.now)


def _change(each: AskedAgain) -> float:
    """From then to now."""
    assert each.now is not None
    return each.now - each.then


def _gain_of_length(each: AskedAgain) -> float:
    """What the longer answer gained; of two, in the eyes of whoever sees it first."""
    is_second = each.kind is JudgementKind.COMPARISON and not each.padded_first
    return -_change(each) if is_second else _change(each)


def _drifts(grades: Sequence[AskedAgain]) -> dict[str, Estimate | None]:
    """By iteration, then by kind of criterion, where there are several."""
    found = {}
    by_iteration = {f"iteration {each.iteration}" for each in grades}
    for name in [*sorted(by_iteration), *sorted({each.about for each in grades})]:
        own = [each for each in grades if name in (f"iteration {each.iteration}", each.about)]
        then, now = [each.then for each in own], [each.now or 0.0 for each in own]
        note = f"{sum(then) / len(own):.3f} -> {sum(now) / len(own):.3f}"
        found[f"{DRIFT}: {name}"] = _share(own, _change, DIFFERENCES, note=note)
    return found


def _share(
    asked: Sequence[AskedAgain],
    of: Callable[[AskedAgain], float],
    bounds: tuple[float, float] = SHARES,
    *,
    note: str = "",
) -> Estimate | None:
    """A mean of the means of tasks, of so many judgements; None without any."""
    means = mean_by_item((each.task_id, of(each)) for each in asked)
    found = estimate_mean(means, seed=0, bounds=bounds, looks=_LOOKS)
    return None if found is None else found.model_copy(update={"items": len(asked), "note": note})
