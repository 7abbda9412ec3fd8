"""What is read off a finished run: values by what they are about, judged anew without noise where a judge is needed."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.line_chart import Point
from scope_selfplay.base.intervals import Estimate, estimate_mean
from scope_selfplay.base.values import Candidate, CandidateStatus, Gate, Role, Rollout, Rubric
from scope_selfplay.config.load import load_config
from scope_selfplay.judge.protocol import GateQuestion, Judge, grade_answer
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.run.run import Run
from scope_selfplay.stages.work import accepted_in
from scope_selfplay.store.files import read_records, read_rows, write_atomic
from scope_selfplay.store.folder import RunFolder, Stage, read_manifest

Values = Mapping[str, float]
"""By the task, the candidate or the step that a value is about: equal names in two arms are a pair."""
SAMPLES = 4


class FinishedRun:
    """A run's records, and its judge without the noise that it was made under."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        config = load_config(self.folder.config)
        honest = config.judge.model_copy(update={"noise": None})
        self.run = Run(
            config.model_copy(update={"judge": honest}), self.folder, load_pack(self.folder.prompts)
        )
        self.documents = {document.id: document for document in self.run.documents}
        self.judge: Judge = self.run.open_judge()

    def iterations_with(self, stage: Stage) -> list[int]:
        folders = sorted(self.folder.path.glob(f"iteration-*/{stage.value}"))
        return [int(path.parent.name.rpartition("-")[2]) for path in folders if read_manifest(path)]

    def candidates(self, iteration: int) -> list[Candidate]:
        return read_records(self.folder.stage(iteration, Stage.TASKS).candidates, Candidate)


@dataclass(frozen=True)
class Measure:
    """`read` gives the values of one iteration that has the stage; `by_step`: one for each step of its training."""

    name: str
    title: str
    stage: Stage
    read: Callable[[FinishedRun, int], Values]
    by_step: bool = False


def asked_scores(run: FinishedRun, iteration: int) -> Values:
    """Of S_t's greedy answers to the held-out tasks: the share met of what the task asks, hidden criteria left out."""
    tasks = {each.task.id: each for each in run.candidates(0) if each.task and each.rubric}

    async def score(rollout: Rollout) -> tuple[str, float | None]:
        candidate = tasks[rollout.subject_id]
        assert candidate.task is not None and candidate.rubric is not None
        asked = tuple(each for each in candidate.rubric.criteria if each.dimension != "hidden")
        rubric = Rubric(task_id=candidate.task.id, criteria=asked)
        grade = await grade_answer(run.judge, candidate.task, rubric, rollout, key=())
        return candidate.task.id, grade.score

    rollouts = read_records(run.folder.stage(iteration, Stage.COMPARE).rollouts, Rollout)
    return _known(score(rollout) for rollout in rollouts if rollout.subject_id in tasks)


def sampled(run: FinishedRun, iteration: int) -> Values:
    """Mean scores of some answers at temperature 1 of S_t to each held-out task: the greedy ones hide rare errors, and
    turn over long after these have moved.

    They are kept beside the run under the name of the weights: runs that lie side by side share their held-out tasks.
    """
    name = f"sampled-{SAMPLES}-{run.run.solver(iteration).identity}.json"
    kept = run.folder.path.parent / name
    if not kept.exists():
        write_atomic(kept, json.dumps(_sampled(run.run, iteration)) + "\n")
    values: dict[str, float] = json.loads(kept.read_text(encoding="utf-8"))
    return values


def _sampled(run: Run, iteration: int) -> Values:
    context, solver = run.context, run.player(run.solver(iteration), Role.SOLVER)

    async def score(candidate: Candidate) -> tuple[str, float | None]:
        assert candidate.task is not None and candidate.rubric is not None
        task, total = candidate.task, 0.0
        for sample in range(SAMPLES):
            key = (run.config.seed, "sampled", iteration, task.id, sample)
            rollout = await context.answer(solver, key, task)
            grade = await grade_answer(context.judge, task, candidate.rubric, rollout, key=key)
            total += (grade.score or 0.0) / SAMPLES
        return task.id, total

    try:
        return _known(map(score, accepted_in(run.folder.stage(0, Stage.TASKS))))
    finally:
        run.close()


def on_source(run: FinishedRun, iteration: int) -> Values:
    """Of every task that the Challenger wrote: 1 where it is about its document, by the gate `source`."""

    async def passes(candidate: Candidate) -> tuple[str, float | None]:
        assert candidate.task is not None
        document = run.documents.get(candidate.task.document_id)
        verdict = await run.judge.ask(GateQuestion(candidate.task, Gate.SOURCE, document))
        return candidate.id, None if verdict.value is None else float(verdict.value)

    return _known(passes(candidate) for candidate in run.candidates(iteration) if candidate.task)


def _known(made: Iterable[Coroutine[Any, Any, tuple[str, float | None]]]) -> Values:
    async def together() -> list[tuple[str, float | None]]:
        return list(await asyncio.gather(*made))

    return {name: value for name, value in asyncio.run(together()) if value is not None}


def accepted_means(run: FinishedRun, iteration: int) -> Values:
    """The mean score of every accepted task, by the Solver before it was trained on them."""
    accepted = (each for each in run.candidates(iteration) if each.status is CandidateStatus.ACCEPTED)
    return {each.id: each.mean for each in accepted if each.mean is not None}


def by_steps(name: str, column: str, title: str) -> Measure:
    """A column of the Solver's metrics.jsonl."""

    def read(run: FinishedRun, iteration: int) -> Values:
        rows = read_rows(run.folder.stage(iteration, Stage.SOLVER).metrics)
        return {str(int(row["step"])): float(row[column]) for row in rows if column in row}

    return Measure(name, title, Stage.SOLVER, read, by_step=True)


def mean_of(values: Sequence[float], seed: int = 0) -> Estimate | None:
    """With the bootstrap's interval."""
    return estimate_mean(values, seed=seed, resamples=4000, bounds=None)


def point(across: float, values: Sequence[float]) -> Point:
    """A point of a chart."""
    found = mean_of(values)
    assert found is not None
    return Point(across, found.value, *found.ends)


ASKED = Measure("asked", "held-out score on what is asked", Stage.COMPARE, asked_scores)
SAMPLED = Measure("sampled", "held-out score of sampled answers", Stage.COMPARE, sampled)
ON_SOURCE = Measure("on-source", "share of the written tasks about their document", Stage.TASKS, on_source)
ACCEPTED = Measure("accepted", "mean score of the accepted tasks", Stage.TASKS, accepted_means)
ANSWER_TOKENS = by_steps("answer-tokens", "answer_tokens", "tokens of an answer in training")
NON_ZERO = by_steps("non-zero", "non_zero_advantage", "share of rollouts with a non-zero advantage")
JUDGE_CALLS = by_steps("judge-calls", "judge_calls", "judge calls of a step")
FLAT_GROUPS = by_steps("flat", "zero_variance", "share of groups from which nothing is learnt")
