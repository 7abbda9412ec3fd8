"""A run on disk whose tasks, answers and comparisons were judged by any judge: what an audit starts from."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from scope_selfplay.config import RunConfig
from scope_selfplay.corpus import embedded_documents
from scope_selfplay.embedded.language import BY_NOUN, FactQuestion, write_answer, write_question
from scope_selfplay.embedded.world import read_article
from scope_selfplay.gates import Gate
from scope_selfplay.judge import Judge, LexicalJudge, Style, grade_answer
from scope_selfplay.prompts import load_pack
from scope_selfplay.run_directory import with_judge_prompts
from scope_selfplay.schemas import (
    Candidate,
    CandidateStatus,
    Comparison,
    Document,
    Provenance,
    Reason,
    Role,
    Rollout,
    Task,
)
from scope_selfplay.store import RunFolder, Stage, write_atomic, write_records
from tests.judges import REPOSITORY


class Drawn(NamedTuple):
    """A task with its document, and what two Solvers answer to it: facts, each right as often as not."""

    task: Task
    document: Document
    answers: tuple[Rollout, Rollout]


def world_of(config: RunConfig) -> list[Document]:
    return embedded_documents(config.seed, config.corpus)


def write_judged_run(
    root: Path, config: RunConfig, judge: Judge, *, tasks: int = 60, iterations: Sequence[int] = (1, 2)
) -> RunFolder:
    """Gated tasks in every iteration, graded answers of two Solvers, each pair compared once."""
    folder = RunFolder(root)
    pack = with_judge_prompts(load_pack(REPOSITORY / "prompts" / config.domain), config.judge)
    folder.prompts.mkdir(parents=True)
    for name, text in pack.files().items():
        write_atomic(folder.prompts / name, text)
    write_atomic(folder.config, yaml.safe_dump(config.model_dump(mode="json")))
    documents = world_of(config)
    write_records(folder.corpus, documents)
    rng = random.Random(config.seed)
    for iteration in iterations:
        drawn = [_drawn(rng, document, iteration) for document in rng.sample(documents, tasks)]
        asyncio.run(_judge_stage(folder, judge, LexicalJudge(documents), drawn, iteration))
    return folder


def _drawn(rng: random.Random, document: Document, iteration: int) -> Drawn:
    entity = read_article(document.text)
    assert entity is not None
    nouns = tuple(rng.sample(list(BY_NOUN), 3))
    task = Task(
        id=f"task-{iteration}-{document.id}",
        text=write_question(FactQuestion(nouns, (), entity.name)),
        type="long_form_qa",
        document_id=document.id,
    )

    def answer(solver: int) -> Rollout:
        known = {each: entity.facts[each] for each in nouns}
        said = {
            each: known[each] if rng.random() < 0.5 else rng.choice(BY_NOUN[each].values) for each in nouns
        }
        return Rollout(
            id=f"{task.id}-{solver}",
            role=Role.SOLVER,
            checkpoint=f"S_{solver}-aa",
            subject_id=task.id,
            turns=(),
            answer=write_answer(entity.name, said),
        )

    return Drawn(task, document, (answer(iteration - 1), answer(iteration)))


async def _judge_stage(
    folder: RunFolder, judge: Judge, honest: Judge, drawn: Sequence[Drawn], iteration: int
) -> None:
    candidates, rollouts, grades = [], [], []
    comparisons: list[Comparison] = []
    for task, document, answers in drawn:
        # Rubrics are the honest ones: one that cannot be written leaves nothing to audit.
        rubric = await honest.write_rubric(task, [document])
        assert rubric is not None
        gates = {gate: await judge.gate(gate, task, document) for gate in (Gate.ENTITY, Gate.SOURCE)}
        candidates.append(
            Candidate(
                id=f"candidate-{task.id}",
                status=CandidateStatus.ACCEPTED,
                reason=Reason.ACCEPTED,
                task=task,
                gates=gates,
                rubric=rubric,
                provenance=Provenance(
                    run=folder.path.name, iteration=iteration, stage="tasks", document_id=document.id
                ),
            )
        )
        rollouts += answers
        for answer in answers:
            grades.append(await grade_answer(judge, task, rubric, answer, key=(answer.id,)))
        comparisons.append(await judge.compare(task, *answers, style=Style.SCORES, rubric=rubric))
    for stage, records in ((Stage.TASKS, candidates), (Stage.COMPARE, [])):
        place = folder.stage(iteration, stage)
        place.path.mkdir(parents=True)
        write_records(place.candidates, records)
    write_records(place.rollouts, rollouts)
    write_records(place.grades, grades)
    write_records(place.comparisons, comparisons)
