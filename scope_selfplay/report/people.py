"""What people did in a run, and how far the judge agrees with them: for the terminal, the report and the web page."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from scope_selfplay.base.intervals import Estimate
from scope_selfplay.base.values import Candidate, CandidateStatus, Comparison, Grade, Outcome, Role, Value
from scope_selfplay.evaluation.pairs import Labels, kappa_over_tasks
from scope_selfplay.store.columns import RecordKind
from scope_selfplay.store.folder import Stage
from scope_selfplay.store.human import HUMAN, HumanComparison, HumanFolder, HumanVerdict
from scope_selfplay.store.query import GradedRollout
from scope_selfplay.store.ratings import CheckpointPair
from scope_selfplay.store.reader import RunReader


class JudgeAgreement(Value):
    """Judge and people over the same questions. In comparisons, yes is the answer that the person saw first."""

    name: str
    """`gate_<name>`, `criteria`, `criteria: <dimension>` or `comparisons`."""
    questions: int
    agreed: int
    kappa: Estimate | None
    """Cohen's, over tasks."""
    judge_alone: int
    """Questions to which the judge says yes and the person no."""
    person_alone: int


class People(Value):
    """Absent numbers are None; `written` counts tasks that people wrote, `accepted` those of them that were kept."""

    answers: int
    mean_score: float | None
    written: int
    accepted: int
    verdicts: int
    agreement: tuple[JudgeAgreement, ...]
    duels: tuple[CheckpointPair, ...]
    """Checkpoints by the people who compared their answers blind."""


def people(reader: RunReader) -> People | None:
    """None where nobody has played in the run."""
    human = HumanFolder(reader.folder)
    if not human.path.is_dir():
        return None
    rollouts = [rollout for rollout in human.rollouts() if rollout.checkpoint == HUMAN]
    answers = [rollout for rollout in rollouts if rollout.role is Role.SOLVER]
    grades = human.grades()
    scores = [grades[made.id].score for made in answers if made.id in grades]
    known = [score for score in scores if score is not None]
    written = {rollout.id for rollout in rollouts if rollout.role is Role.CHALLENGER}
    own = [made for made in human.candidates() if made.challenger_rollout_id in written]
    return People(
        answers=len(answers),
        mean_score=sum(known) / len(known) if known else None,
        written=len(own),
        accepted=sum(made.status is CandidateStatus.ACCEPTED for made in own),
        verdicts=len(human.verdicts()),
        agreement=tuple(_agreements(reader, human)),
        duels=_duels(human.comparisons()),
    )


def answers_by_people(reader: RunReader, task_id: str) -> list[GradedRollout]:
    """What people answered to a task of the run, or to one that they wrote, with the judge's grades."""
    human = HumanFolder(reader.folder)
    grades, iterations = human.grades(), human.iterations()
    return [
        GradedRollout(iteration=number, stage=Stage.TASKS, rollout=made, grade=grades.get(made.id))
        for number in iterations
        for made in human.answers_to(task_id, number)
    ]


def verdicts_by_people(reader: RunReader, task_id: str) -> list[HumanVerdict]:
    """What people said to the judge's questions about a task."""
    return [verdict for verdict in HumanFolder(reader.folder).verdicts() if verdict.task_id == task_id]


def _agreements(reader: RunReader, human: HumanFolder) -> Iterator[JudgeAgreement]:
    labels: dict[str, list[Labels]] = {}
    for names, found in _labels(reader, human.verdicts()):
        for name in names:
            labels.setdefault(name, []).append(found)
    for name, found_labels in sorted(labels.items()):
        yield _agreement(name, found_labels)
    if compared := list(_labels_of_comparisons(reader, human.comparisons())):
        yield _agreement("comparisons", compared)


def _agreement(name: str, labels: Sequence[Labels]) -> JudgeAgreement:
    return JudgeAgreement(
        name=name,
        questions=len(labels),
        agreed=sum(each.judge == each.person for each in labels),
        kappa=kappa_over_tasks(labels),
        judge_alone=sum(each.judge is True and each.person is False for each in labels),
        person_alone=sum(each.judge is False and each.person is True for each in labels),
    )


def _labels(reader: RunReader, verdicts: Iterable[HumanVerdict]) -> Iterator[tuple[list[str], Labels]]:
    """Questions that judge and person have both answered, with the rows of the table that they belong to."""
    said = [verdict for verdict in verdicts if verdict.value is not None]
    tasks, rollouts = ([getattr(verdict, name) for verdict in said] for name in ("task_id", "rollout_id"))
    candidates: dict[str, Candidate] = {
        each.task.id: each for each in _records(reader, RecordKind.CANDIDATES, "task.id", tasks)
    }
    grades: dict[str, Grade] = {
        each.rollout_id: each for each in _records(reader, RecordKind.GRADES, "rollout_id", rollouts)
    }
    for verdict in said:
        candidate = candidates.get(verdict.task_id)
        if candidate is None:
            continue
        if verdict.gate is not None:
            judged, names = candidate.gates.get(verdict.gate), [verdict.gate.label]
        else:
            grade, row = grades.get(verdict.rollout_id), verdict.criterion or 0
            judged = grade.verdicts[row] if grade is not None and row < len(grade.verdicts) else None
            dimension = candidate.rubric.criteria[row].dimension if candidate.rubric and judged else ""
            names = ["criteria", *([f"criteria: {dimension}"] if dimension else [])]
        if judged is not None and judged.value is not None:
            yield names, Labels(verdict.task_id, judged.value, verdict.value)


def _labels_of_comparisons(reader: RunReader, compared: Sequence[HumanComparison]) -> Iterator[Labels]:
    """Who won, in the order that the person saw, whatever the judge's was."""
    judged: dict[tuple[str, str], Outcome] = {}
    for made in reader.records(RecordKind.COMPARISONS, "stage = 'compare'"):
        assert isinstance(made, Comparison)
        if made.outcome is not None:
            judged[made.first_id, made.second_id] = made.outcome
            judged.setdefault(
                (made.second_id, made.first_id), Outcome(made.outcome.second, made.outcome.first)
            )
    for each in compared:
        own = each.comparison
        outcome = judged.get((own.first_id, own.second_id))
        if outcome is not None and own.outcome is not None:
            yield Labels(each.task_id, _winner(outcome), _winner(own.outcome))


def _winner(outcome: Outcome) -> bool | None:
    """Whether the first is better; None is a tie."""
    return None if outcome.first == outcome.second else outcome.first > outcome.second


def _records(reader: RunReader, kind: RecordKind, column: str, ids: Sequence[str]) -> Iterator[Any]:
    if ids:
        marks = ", ".join("?" * len(ids))
        yield from reader.records(kind, f"{column} IN ({marks})", ids)


def _duels(comparisons: Iterable[HumanComparison]) -> tuple[CheckpointPair, ...]:
    found: dict[tuple[str, str], list[float]] = {}
    for each in comparisons:
        outcome = each.comparison.outcome
        if outcome is not None:
            older, newer = sorted((each.first, each.second), key=_age)
            gain = outcome.second - outcome.first
            found.setdefault((older, newer), []).append(gain if each.second == newer else -gain)
    return tuple(
        CheckpointPair(
            older=older,
            newer=newer,
            wins=sum(gain > 0 for gain in gains),
            ties=sum(gain == 0 for gain in gains),
            losses=sum(gain < 0 for gain in gains),
        )
        for (older, newer), gains in sorted(found.items())
    )


def _age(checkpoint: str) -> tuple[int, str]:
    number = checkpoint.rpartition("_")[2]
    return (int(number) if number.isdecimal() else 0, checkpoint)
