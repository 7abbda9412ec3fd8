"""A sample of the judgements that a run has paid for: gates, grades and comparisons, each with all that was shown.

Every iteration gives equally many, as far as it has them. Which ones follows from the run's seed alone, so that an
audit that goes on, or one of more calls, asks again what another one asked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from scope_selfplay.config import RunConfig
from scope_selfplay.evaluation.judge_scorers import share_won
from scope_selfplay.gates import Gate
from scope_selfplay.judge.protocol import Style
from scope_selfplay.keys import content_id
from scope_selfplay.reward_designs.design import ComparisonDesign
from scope_selfplay.reward_designs.step_rewards import open_design
from scope_selfplay.schemas import Candidate, Comparison, Criterion, Document, Rollout, Rubric, Task, Verdict
from scope_selfplay.store import Stage
from scope_selfplay.store.judge_checks import JudgementKind
from scope_selfplay.store.parquet import RecordKind
from scope_selfplay.store.reader import RunReader


@dataclass(frozen=True)
class Judgement:
    """`then` is what the judge said: 1 for yes or for the first answer, 0.5 for a tie.

    A gate has a `gate` and perhaps a `document`; a grade has a `criterion` and one rollout; a comparison has a `style`
    and two rollouts, in the order shown.
    """

    kind: JudgementKind
    iteration: int
    stage: Stage
    task: Task
    then: float
    reasoning: str
    gate: Gate | None = None
    document: Document | None = None
    criterion: Criterion | None = None
    rollouts: tuple[Rollout, ...] = ()
    style: Style | None = None
    rubric: Rubric | None = None

    @property
    def id(self) -> str:
        subject = [rollout.id for rollout in self.rollouts]
        about = self.criterion.text if self.criterion else str(self.gate or self.style)
        return content_id(self.kind.value, self.iteration, self.stage.value, self.task.id, about, *subject)

    @property
    def about(self) -> str:
        """The gate, the kind of the criterion, or the style of the comparison."""
        if self.criterion is not None:
            return self.criterion.dimension or self.criterion.priority.value
        return str(self.gate or self.style)


def sample_judgements(
    reader: RunReader, config: RunConfig, kind: JudgementKind, number: int
) -> list[Judgement]:
    """At most so many, of those whose task the run has."""
    if number <= 0:
        return []
    match kind:
        case JudgementKind.GATE:
            rows = _sampled(reader, _GATES, config.seed, number)
            return list(_gates(reader, rows))
        case JudgementKind.GRADE:
            rows = _sampled(reader, _GRADES, config.seed, number)
            return list(_grades(reader, rows))
        case JudgementKind.COMPARISON:
            rows = _sampled(reader, _COMPARISONS, config.seed, number)
            return list(_comparisons(reader, rows, _style_in_training(config)))


_PAID = "v.value IS NOT NULL AND v.attempts > 0"
_GATES = " UNION ALL ".join(
    f"SELECT iteration, stage, id AS one, '{gate}' AS other, gates.{gate} AS v FROM candidates"
    for gate in Gate
)
_GRADES = (
    "SELECT iteration, stage, rollout_id AS one, unnest(range(len(verdicts)))::VARCHAR AS other, "
    "unnest(verdicts) AS v FROM grades"
)
_COMPARISONS = (
    "SELECT iteration, stage, first_id AS one, second_id AS other, verdict AS v FROM comparisons "
    "WHERE outcome IS NOT NULL AND repeat = 0"
)


def _sampled(reader: RunReader, units: str, seed: int, number: int) -> list[dict[str, Any]]:
    """Places of judgements: as many of each iteration, and within it in an order that the seed gives."""
    return reader.sql(
        f"SELECT iteration, stage, one, other FROM (SELECT iteration, stage, one, other, row_number() OVER "
        f"(PARTITION BY iteration ORDER BY md5(concat_ws('/', $1, stage, one, other))) AS place FROM ({units}) "
        f"WHERE {_PAID}) ORDER BY place, iteration LIMIT $2",
        [str(seed), number],
    )


def _gates(reader: RunReader, rows: Sequence[dict[str, Any]]) -> Iterator[Judgement]:
    by_id = {
        made.id: made for made in _records(reader, RecordKind.CANDIDATES, "id", [row["one"] for row in rows])
    }
    documents = reader.documents({made.provenance.document_id for made in by_id.values()})
    for row in rows:
        made, gate = by_id[row["one"]], Gate(row["other"])
        if made.task is not None:
            document = documents.get(made.provenance.document_id)
            yield _judgement(
                JudgementKind.GATE, row, made.task, made.gates[gate], gate=gate, document=document
            )


def _grades(reader: RunReader, rows: Sequence[dict[str, Any]]) -> Iterator[Judgement]:
    names = [row["one"] for row in rows]
    grades = {each.rollout_id: each for each in _records(reader, RecordKind.GRADES, "rollout_id", names)}
    rollouts = {each.id: each for each in _records(reader, RecordKind.ROLLOUTS, "id", names)}
    tasks = _tasks(reader, [each.subject_id for each in rollouts.values()])
    for row in rows:
        rollout, number = rollouts.get(row["one"]), int(row["other"])
        made = tasks.get(rollout.subject_id) if rollout else None
        if made is None or made.task is None or made.rubric is None or number >= len(made.rubric.criteria):
            continue
        criterion = made.rubric.criteria[number]
        if criterion.check is None:
            verdict = grades[row["one"]].verdicts[number]
            yield _judgement(
                JudgementKind.GRADE, row, made.task, verdict, criterion=criterion, rollouts=(rollout,)
            )


def _comparisons(
    reader: RunReader, rows: Sequence[dict[str, Any]], in_training: Style | None
) -> Iterator[Judgement]:
    names = [row[side] for row in rows for side in ("one", "other")]
    rollouts = {each.id: each for each in _records(reader, RecordKind.ROLLOUTS, "id", names)}
    met = _records(reader, RecordKind.COMPARISONS, "first_id", [row["one"] for row in rows])
    compared: dict[tuple[str, str], Comparison] = {(each.first_id, each.second_id): each for each in met}
    tasks = _tasks(reader, [each.subject_id for each in rollouts.values()])
    for row in rows:
        style = Style.SCORES if row["stage"] == Stage.COMPARE else in_training
        pair = tuple(rollouts[row[side]] for side in ("one", "other") if row[side] in rollouts)
        made = tasks.get(pair[0].subject_id) if pair else None
        found = compared[row["one"], row["other"]]
        then = share_won(found, found.first_id)
        if style is None or len(pair) < 2 or made is None or made.task is None or then is None:
            continue
        yield _judgement(
            JudgementKind.COMPARISON,
            row,
            made.task,
            found.verdict,
            then=then,
            style=style,
            rollouts=pair,
            rubric=made.rubric,
        )


def _judgement(
    kind: JudgementKind,
    row: dict[str, Any],
    task: Task,
    verdict: Verdict,
    *,
    then: float | None = None,
    **of: Any,
) -> Judgement:
    return Judgement(
        kind=kind,
        iteration=row["iteration"],
        stage=Stage(row["stage"]),
        task=task,
        then=float(bool(verdict.value)) if then is None else then,
        reasoning=verdict.reasoning,
        **of,
    )


def _style_in_training(config: RunConfig) -> Style | None:
    """The style of the Solver's comparisons where the rubric of the task plays no part in them."""
    design = open_design(config.solver.reward, config.solver, len)
    style = design.style if isinstance(design, ComparisonDesign) else None
    return style if style is Style.PREFERENCE else None


def _tasks(reader: RunReader, task_ids: Sequence[str]) -> dict[str, Candidate]:
    """The candidates of tasks; one with a rubric before others."""
    found = sorted(
        _records(reader, RecordKind.CANDIDATES, "task.id", task_ids), key=lambda each: each.rubric is not None
    )
    return {made.task.id: made for made in found if made.task}


def _records(reader: RunReader, kind: RecordKind, column: str, ids: Sequence[str]) -> list[Any]:
    wanted = list(dict.fromkeys(ids))
    if not wanted:
        return []
    marks = ", ".join("?" * len(wanted))
    return list(reader.records(kind, f"{column} IN ({marks})", wanted))
