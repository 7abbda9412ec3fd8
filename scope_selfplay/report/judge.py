"""How far a run's judge can be trusted, for the terminal, the report and the web page: its exam, canaries, an audit,
and how far it agrees with people.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from scope_selfplay.base.intervals import Estimate, shown
from scope_selfplay.base.terminal import Table
from scope_selfplay.base.values import Candidate, Comparison, Grade
from scope_selfplay.evaluation.pairs import Labels, kappa_over_tasks
from scope_selfplay.judge.checks import Exam, canary_shares, read_audit, read_canaries, read_exam
from scope_selfplay.report.sections import Section
from scope_selfplay.store.columns import RecordKind
from scope_selfplay.store.query import HumanComparison, HumanFolder, HumanVerdict
from scope_selfplay.store.reader import RunReader


def judged_sections(reader: RunReader) -> list[Section]:
    """Whom people preferred, and how far the judge can be trusted: beside the records, in files of their own."""
    duels, checks = [*_duels(HumanFolder(reader.folder).comparisons())], judge_checks(reader)
    exam = read_exam(reader.folder)
    sections: list[Section] = [Section("People", duels)] if duels else []
    sections += [Section("The judge's exam", exam_tables(exam))] if exam else []
    return sections + ([Section("The judge", [judge_table(checks)])] if checks else [])


def judge_table(checks: Mapping[str, Estimate]) -> Table:
    """Canaries have known verdicts; an audit asks again; people judge without knowing what the judge said."""
    rows = ((name, shown(each), f"{each.items:,}", each.note) for name, each in checks.items())
    return Table("", ("", "share or difference", "judgements", ""), tuple(rows))


def judge_checks(reader: RunReader) -> dict[str, Estimate]:
    """Canaries, the audit, and people: shares or differences, of so many judgements; {} where there are none."""
    report = read_audit(reader.folder)
    audited = dict(report.checks) if report else {}
    return canary_shares(read_canaries(reader.folder)) | audited | agreement_with_people(reader)


def exam_tables(exam: Exam) -> list[Table]:
    """What a judge was found to be able to, by question, and what leads it astray."""
    heads = {"readable": "readable", "yes where it should be": "yes", "no where it should be": "no"}
    rows, others = [], []
    for name, each in exam.questions.items():
        known = [shown(each.shares.get(share), digits=2) for share in heads]
        threshold = "-" if each.threshold is None else f"{each.threshold:+.1f}"
        tokens = f"{each.tokens_in:,} + {each.tokens_out:,}"
        asked = f"{each.asked:,}{f', {each.own} own' if each.own else ''}"
        whole = (shown(each.order, digits=2), shown(each.right, digits=2))
        rows.append((name, *whole, *known, threshold, asked, tokens, f"{each.seconds:.2f}"))
        others += [
            (name, what, shown(share, digits=2)) for what, share in each.shares.items() if what not in heads
        ]
    head = ("question", "in order", "right", *heads.values(), "threshold", "asked", "tokens", "s each")
    tables = [Table("", head, tuple(rows)), Table("", ("question", "", "share"), tuple(others))]
    return [table for table in tables if table.rows]


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
    # Of 1, 1/2 and 0, or of yes and no.
    judge_alone = sum((each.judge, each.person) == (1, 0) for each in labels)
    person_alone = sum((each.judge, each.person) == (0, 1) for each in labels)
    alone = f"judge alone yes {judge_alone}, person alone yes {person_alone}"
    return Estimate(
        value=sum(each.judge == each.person for each in labels) / len(labels),
        low=None,
        high=None,
        items=len(labels),
        note=", ".join(filter(None, (f"kappa {shown(kappa)}" if kappa else "", alone))),
    )


def _labels(reader: RunReader, verdicts: Iterable[HumanVerdict]) -> Iterator[tuple[list[str], Labels]]:
    """Questions that judge and person have both answered, with the rows of the table that they belong to."""
    said = [verdict for verdict in verdicts if verdict.value is not None]
    tasks, rollouts = ([getattr(verdict, name) for verdict in said] for name in ("task_id", "rollout_id"))
    candidates: dict[str, Candidate] = {
        each.task.id: each for each in reader.with_ids(RecordKind.CANDIDATES, "task.id", tasks)
    }
    grades: dict[str, Grade] = {
        each.rollout_id: each for each in reader.with_ids(RecordKind.GRADES, "rollout_id", rollouts)
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
    judged: dict[tuple[str, str], float] = {}
    for made in reader.records(RecordKind.COMPARISONS, "stage = 'compare'"):
        assert isinstance(made, Comparison)
        if made.outcome is not None:
            judged[made.first_id, made.second_id] = made.outcome.share
            judged.setdefault((made.second_id, made.first_id), 1 - made.outcome.share)
    for each in compared:
        own = each.comparison
        share = judged.get((own.first_id, own.second_id))
        if share is not None and own.outcome is not None:
            yield Labels(each.task_id, share, own.outcome.share)


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
