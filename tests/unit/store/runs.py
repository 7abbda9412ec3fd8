"""A small run folder with every kind of record, written without training anything."""

from collections.abc import Callable
from pathlib import Path

from scope_selfplay.base.values import (
    Candidate,
    CandidateStatus,
    Comparison,
    Criterion,
    Document,
    Fault,
    Gate,
    Grade,
    Outcome,
    Passage,
    Priority,
    Provenance,
    Reason,
    Role,
    Rollout,
    Rubric,
    Score,
    Selection,
    Task,
    Turn,
    Verdict,
)
from scope_selfplay.store.card import CARD, stage_card
from scope_selfplay.store.columns import write_parquet
from scope_selfplay.store.files import Model, read_records, write_atomic, write_records
from scope_selfplay.store.folder import RunFolder, Stage, StageManifest, checksums, publish_manifest

WORDS = "harbour treaty lantern orchard viaduct".split()


def document(number: int) -> Document:
    return Document(
        id=f"doc-{number:03d}", title=f"The {WORDS[number % 5]}", text=f"Built in {1200 + number}."
    )


def task(iteration: int, number: int) -> Task:
    return Task(
        id=f"task-{iteration}-{number:03d}",
        text=f"Say who built the {WORDS[number % 5]} {number} and when.",
        type="summarisation" if number % 3 else "long_form_qa",
        document_id=f"doc-{number:03d}",
        evidence_ids=(f"doc-{number + 1:03d}",),
        search_turns=1 + number % 3,
    )


def rubric(of: Task) -> Rubric:
    return Rubric(
        task_id=of.id,
        criteria=(
            Criterion(text="Identifies the builder.", priority=Priority.CRITICAL),
            Criterion(text="Provides the year.", priority=Priority.BONUS),
        ),
    )


def challenger_rollout(rollout_id: str, subject: str, text: str | None) -> Rollout:
    passage = Passage(id="doc-001", title="The treaty", text="A treaty\nwas signed.", score=3.25)
    turns = (
        Turn(text="<search>treaty</search>", thinking="first", query="treaty", passages=(passage,)),
        Turn(text="<task>...</task>", thinking=None),
    )
    return Rollout(
        id=rollout_id, role=Role.CHALLENGER, checkpoint="C_1-aa", subject_id=subject, turns=turns, task=text
    )


def solver_rollout(rollout_id: str, checkpoint: str, task_id: str, answer: str | None) -> Rollout:
    return Rollout(
        id=rollout_id,
        role=Role.SOLVER,
        checkpoint=checkpoint,
        subject_id=task_id,
        turns=(Turn(text=f"<answer>{answer}</answer>", thinking="so"),),
        answer=answer,
    )


def grade(rollout_id: str, met: tuple[bool | None, ...]) -> Grade:
    verdicts = tuple(
        Verdict(
            value=value,
            reasoning="It is said." if value else "",
            fault=Fault.UNREADABLE if value is None else None,
        )
        for value in met
    )
    known = [value for value in met if value is not None]
    return Grade(rollout_id=rollout_id, verdicts=verdicts, score=sum(known) / len(known) if known else None)


def candidate(iteration: int, number: int, stage: Stage = Stage.TASKS) -> Candidate:
    """Every fifth writes no task, every fifth fails a gate, every fifth is too hard, the others are accepted."""
    accepted, refused = Reason.ACCEPTED, Reason.refused_by(Gate.SOURCE)
    reason = (Reason.NO_TASK, refused, accepted, accepted, Reason.TOO_HARD)[number % 5]
    of, tried = task(iteration, number) if number % 5 else None, number % 5 > 1
    verdict = Verdict(value=tried, reasoning="about the source", tokens_in=5)
    return Candidate(
        id=f"candidate-{iteration}-{stage}-{number:03d}",
        status=CandidateStatus.ACCEPTED if reason is accepted else CandidateStatus.REJECTED,
        reason=reason,
        task=of,
        gates={Gate.SOURCE: verdict} if of else {},
        rubric=rubric(of) if of and tried else None,
        rollout_ids=(f"solver-{iteration}-{number}-0", f"solver-{iteration}-{number}-1") if tried else (),
        challenger_rollout_id=f"challenger-{iteration}-{number}",
        mean=(0.0 if reason is Reason.TOO_HARD else (number % 10) / 10) if tried else None,
        provenance=Provenance(
            run="demo", iteration=iteration, stage=stage.value, document_id=f"doc-{number:03d}", seed=7
        ),
    )


def write_tasks(folder: RunFolder, iteration: int, count: int) -> None:
    """The record files of one task making, without a manifest."""
    stage = folder.stage(iteration, Stage.TASKS)
    stage.path.mkdir(parents=True)
    made = [candidate(iteration, number) for number in range(count)]
    rollouts: list[Rollout] = []
    grades: list[Grade] = []
    for proposal in made:
        text = proposal.task.text if proposal.task else None
        document_id = proposal.provenance.document_id
        rollouts.append(challenger_rollout(proposal.challenger_rollout_id, document_id, text))
        for row, name in enumerate(proposal.rollout_ids):
            assert proposal.task is not None
            rollouts.append(solver_rollout(name, "S_0-bb", proposal.task.id, f"answer {row}"))
            grades.append(grade(name, (row == 1, proposal.mean is not None and proposal.mean > 0.5)))
    write_records(stage.candidates, made)
    write_records(stage.rollouts, rollouts)
    write_records(stage.grades, grades)


def write_comparison(folder: RunFolder, iteration: int, tasks: int) -> None:
    """Answers of S_t to the tasks of iteration 0, compared with those of the checkpoint before."""
    stage = folder.stage(iteration, Stage.COMPARE)
    stage.path.mkdir(parents=True)
    ids = [f"task-0-{number:03d}" for number in range(tasks)]
    answers = [solver_rollout(f"held-{iteration}-{each}", f"S_{iteration}-cc", each, "so") for each in ids]
    write_records(stage.rollouts, answers)
    write_records(stage.grades, [grade(each.id, (True, bool(row % 2))) for row, each in enumerate(answers)])
    verdict = Verdict(value=True, reasoning="the first says more")
    matches = [
        Comparison(
            first_id=f"held-{iteration - 1}-{each}",
            second_id=f"held-{iteration}-{each}",
            outcome=Outcome(0.25, -1.0) if row else None,
            verdict=verdict,
        )
        for row, each in enumerate(ids)
    ]
    write_records(stage.comparisons, matches if iteration else [])


def write_judgements(folder: RunFolder, iteration: int, task_id: str, said: str = "It says most.") -> None:
    """A Solver training with four answers to a task, of which a judge picked one and scored two."""
    stage = folder.stage(iteration, Stage.SOLVER)
    stage.path.mkdir(parents=True, exist_ok=True)
    ids = [f"trained-{iteration}-{row}" for row in range(4)]
    write_records(stage.rollouts, [solver_rollout(each, "S_1-dd", task_id, "so") for each in ids])
    verdict = Verdict(value=True, reasoning=said, tokens_in=700, tokens_out=30)
    failed = Verdict(value=None, fault=Fault.UNREADABLE, attempts=3)
    write_records(
        stage.selections,
        [
            Selection(candidate_ids=tuple(ids), winner_ids=(ids[2],), verdict=verdict),
            Selection(candidate_ids=tuple(ids[:2]), winner_ids=None, verdict=failed),
            Selection(candidate_ids=("another task's", "second"), winner_ids=("second",)),
        ],
    )
    write_records(
        stage.scores,
        [
            Score(rollout_id=ids[0], scale="explicit", value=7.5, criterion=1, verdict=verdict),
            Score(rollout_id=ids[1], scale="implicit", value=None, verdict=failed),
            Score(rollout_id="another task's", scale="implicit", value=1.0),
        ],
    )


def write_run(path: Path) -> RunFolder:
    """Held-out tasks and two iterations of 30 candidates each, nothing finished."""
    folder = RunFolder(path)
    path.mkdir(parents=True)
    write_atomic(folder.config, "name: demo\nseed: 7\n")
    write_records(folder.corpus, [document(number) for number in range(40)])
    for iteration in range(3):
        write_tasks(folder, iteration, 30)
        write_comparison(folder, iteration, 10)
    return folder


def rewrite(file: Path, kind: type[Model], change: Callable[[Model], Model]) -> None:
    """Every record of a file is changed."""
    write_records(file, [change(each) for each in read_records(file, kind)])


def finish(folder: RunFolder, iteration: int, stage: Stage) -> Path:
    """What the end of a stage writes beside its lines; the stage's folder."""
    path = folder.stage(iteration, stage).path
    write_parquet(path)
    write_atomic(path / CARD, stage_card("demo", iteration, stage, path))
    manifest = StageManifest(stage=stage.value, iteration=iteration, spec_hash="0", outputs=checksums(path))
    publish_manifest(path, manifest)
    return path
