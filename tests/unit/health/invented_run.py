"""A run of two iterations that is healthy unless told otherwise: the Solver learns what is asked, from varied tasks."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scope_selfplay.base.values import (
    Candidate,
    CandidateStatus,
    Criterion,
    Grade,
    Provenance,
    Reason,
    Role,
    Rollout,
    Rubric,
    Task,
    Verdict,
)
from scope_selfplay.store.files import write_atomic, write_records
from scope_selfplay.store.folder import RunFolder, Stage, StageFolder

ASPECTS = (
    "founder harbour treaty climate language dynasty railway cathedral festival archive currency garrison market "
    "orchestra quarry library canal observatory census printing"
).split()
VERBS = ("Describe", "Explain", "Compare what is known of", "Report", "Trace", "Discuss")
SYLLABLES = "kor vael tam nim dru sel ost bri fen gar lum pet".split()


@dataclass(frozen=True)
class Course:
    """What the run does; triples are for S_0, S_1 and S_2, pairs for both iterations."""

    asked: Sequence[float] = (0.4, 0.5, 0.6)
    """How probable it is that an asked criterion is met."""
    hidden: Sequence[float] = (0.3, 0.4, 0.5)
    repeats: Sequence[float] = (0.05, 0.05, 0.05)
    """How probable it is that an answer says its last sentence again."""
    aspects: Sequence[int] = (20, 20)
    """How many subjects tasks choose from."""
    longest_wins: bool = False
    """An answer's score is its length."""


def write_invented(path: Path, course: Course, *, seed: int = 1, tasks: int = 100) -> Path:
    rng = random.Random(seed)
    folder = RunFolder(path)
    path.mkdir(parents=True)
    write_atomic(folder.config, "name: invented\n")
    held_out = [_candidate(rng, 0, number, len(ASPECTS), course) for number in range(tasks)]
    # What is easy for one Solver is easier for the next: the same chance decides, for the most part.
    chances = {made.id: [rng.random() for _ in _criteria(made)] for made in held_out}
    _write(folder.stage(0, Stage.TASKS), held_out, [])
    for iteration in range(3):
        stage = folder.stage(iteration, Stage.COMPARE)
        _write(stage, [], [_answer(rng, course, iteration, made, chances[made.id]) for made in held_out])
        if iteration:
            made = [
                _candidate(rng, iteration, number, course.aspects[iteration - 1], course)
                for number in range(tasks)
            ]
            attempts = [_answer(rng, course, iteration - 1, each) for each in made for _ in range(4)]
            _write(folder.stage(iteration, Stage.TASKS), _tried(made, attempts), attempts)
    return path


def _candidate(rng: random.Random, iteration: int, number: int, aspects: int, course: Course) -> Candidate:
    name = " ".join("".join(rng.sample(SYLLABLES, 2)).capitalize() for _ in range(2))
    chosen = rng.sample(ASPECTS[:aspects], min(3, aspects))
    unasked = rng.choice(ASPECTS)
    verb = VERBS[0] if aspects < len(ASPECTS) else rng.choice(VERBS)
    task = Task(
        id=f"task-{iteration}-{number:03d}",
        text=f"{verb} {' and '.join(f'the {aspect}' for aspect in chosen)} of {name}.",
        type="long_form_qa",
        document_id=f"doc-{number}",
    )
    asked = [f"Says that the {aspect} of {name} was of {rng.choice(SYLLABLES)}." for aspect in chosen]
    criteria = [Criterion(text=text, dimension="asked") for text in asked]
    criteria.append(Criterion(text=f"Mentions the {unasked} of {name}.", dimension="hidden"))
    return Candidate(
        id=f"candidate-{iteration}-{number:03d}",
        status=CandidateStatus.ACCEPTED,
        reason=Reason.ACCEPTED,
        task=task,
        rubric=Rubric(task_id=task.id, criteria=tuple(criteria)),
        provenance=Provenance(
            run="invented", iteration=iteration, stage="tasks", document_id=f"doc-{number}"
        ),
    )


def _criteria(made: Candidate) -> tuple[Criterion, ...]:
    assert made.rubric is not None
    return made.rubric.criteria


def _answer(
    rng: random.Random, course: Course, solver: int, made: Candidate, chances: Sequence[float] | None = None
) -> tuple[Rollout, Grade]:
    assert made.task is not None
    skills = {"asked": course.asked[solver], "hidden": course.hidden[solver]}
    met = [
        0.8 * (rng.random() if chances is None else chances[row]) + 0.2 * rng.random()
        < skills[each.dimension]
        for row, each in enumerate(_criteria(made))
    ]
    said = [f"On {rng.choice(ASPECTS)} {rng.random():.4f} is known." for _ in range(4)]
    if course.longest_wins:
        said += [f"Also {rng.random():.4f} was so." for each in met for _ in range(3) if each]
    if rng.random() < course.repeats[solver]:
        said.append(said[-1])
    name = f"{made.id}-{solver}-{rng.random():.9f}"
    rollout = Rollout(
        id=name,
        role=Role.SOLVER,
        checkpoint=f"S_{solver}-aa",
        subject_id=made.task.id,
        turns=(),
        answer=" ".join(said),
    )
    verdicts = tuple(Verdict(value=each) for each in met)
    return rollout, Grade(rollout_id=name, verdicts=verdicts, score=sum(met) / len(met))


def _tried(made: Sequence[Candidate], attempts: Sequence[tuple[Rollout, Grade]]) -> list[Candidate]:
    found = []
    for row, each in enumerate(made):
        own = attempts[4 * row : 4 * row + 4]
        scores = [grade.score or 0.0 for _, grade in own]
        names = tuple(rollout.id for rollout, _ in own)
        found.append(each.model_copy(update={"rollout_ids": names, "mean": sum(scores) / len(scores)}))
    return found


def _write(stage: StageFolder, made: Sequence[Candidate], attempts: Sequence[tuple[Rollout, Grade]]) -> None:
    stage.path.mkdir(parents=True)
    write_records(stage.candidates, made)
    write_records(stage.rollouts, [rollout for rollout, _ in attempts])
    write_records(stage.grades, [grade for _, grade in attempts])
