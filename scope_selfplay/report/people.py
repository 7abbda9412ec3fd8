"""What people did in a run, and how far the judge agrees with them: for the terminal, the report and the web page."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from scope_selfplay.base.intervals import Estimate, shown
from scope_selfplay.base.values import Candidate, CandidateStatus, Comparison, Grade, Outcome, Role
from scope_selfplay.evaluation.pairs import Labels, kappa_over_tasks
from scope_selfplay.store.columns import RecordKind
from scope_selfplay.store.folder import Stage
from scope_selfplay.store.human import HUMAN, HumanComparison, HumanFolder, HumanVerdict
from scope_selfplay.store.query import GradedRollout
from scope_selfplay.store.reader import RunReader


def deeds_of_people(reader: RunReader) -> str:
    """What they did, in lines; "" where nobody has played. How far the judge agrees is `agreement_with_people`."""
    human = HumanFolder(reader.folder)
    if not human.path.is_dir():
        return ""
    rollouts = [rollout for rollout in human.rollouts() if rollout.checkpoint == HUMAN]
    answers = [rollout for rollout in rollouts if rollout.role is Role.SOLVER]
    grades = human.grades()
    known = [score for made in answers if made.id in grades and (score := grades[made.id].score) is not None]
    written = {rollout.id for rollout in rollouts if rollout.role is Role.CHALLENGER}
    own = [made for made in human.candidates() if made.challenger_rollout_id in written]
    accepted = sum(made.status is CandidateStatus.ACCEPTED for made in own)
    mean = f", mean score {sum(known) / len(known):.3f}" if known else ""
    done = f"{len(answers)} answers{mean}; {len(own)} tasks written, {accepted} accepted"
    return "\n".join([done, *_duels(human.comparisons())])


def agreement_with_people(reader: RunReader) -> dict[str, Estimate]:
    """Judge and people over the same questions, by `gate_<name>`, `criteria`, `criteria: <dimension>`, `comparisons`.

    In comparisons, yes is the answer that the person saw first. Kappa is Cohen's, over tasks.
    """
    human, labels = HumanFolder(reader.folder), dict[str, list[Labels]]()
    for names, found in _labels(reader, human.verdicts()):
        for name in names:
            labels.setdefault(name, []).append(found)
    rows = {name: labels[name] for name in sorted(labels)}
    if compared := list(_labels_of_comparisons(reader, human.comparisons())):
        rows["comparisons"] = compared
    return {f"agree with people: {name}": _agreement(own) for name, own in rows.items()}


def _agreement(labels: Sequence[Labels]) -> Estimate:
    kappa = kappa_over_tasks(labels)
    judge_alone = sum(each.judge is True and each.person is False for each in labels)
    person_alone = sum(each.judge is False and each.person is True for each in labels)
    alone = f"judge alone yes {judge_alone}, person alone yes {person_alone}"
    return Estimate(
        value=sum(each.judge == each.person for each in labels) / len(labels),
        low=None,
        high=None,
        items=len(labels),
        note=", ".join(filter(None, (f"kappa {shown(kappa)}" if kappa else "", alone))),
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


def _duels(comparisons: Iterable[HumanComparison]) -> Iterator[str]:
    """Checkpoints by the people who compared their answers blind, a line each."""
    found: dict[tuple[str, str], list[float]] = {}
    for each in comparisons:
        outcome = each.comparison.outcome
        if outcome is not None:
            older, newer = sorted((each.first, each.second), key=_age)
            gain = outcome.second - outcome.first
            found.setdefault((newer, older), []).append(gain if each.second == newer else -gain)
    for (newer, older), gains in sorted(found.items()):
        won, lost = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
        yield f"{newer} against {older}, blind: won {won}, equal {len(gains) - won - lost}, lost {lost}"


def _age(checkpoint: str) -> tuple[int, str]:
    number = checkpoint.rpartition("_")[2]
    return (int(number) if number.isdecimal() else 0, checkpoint)
