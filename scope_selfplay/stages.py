"""The stages of an iteration: each reads folders, writes one folder, and publishes its manifest last.

    make_held_out (iteration 0) -> train_challenger (A) -> make_tasks (B) -> train_solver (C) -> compare (D)

A stage whose manifest stands is not run again. A stage that was killed goes on: task making keeps every
finished candidate, training goes on from its newest checkpoint.
"""

import asyncio
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any

from scope_selfplay import __version__
from scope_selfplay.corpus import SourcePrompt
from scope_selfplay.embedded.corpus import HELD_OUT
from scope_selfplay.errors import ConfigError, CorpusError, JudgeError
from scope_selfplay.evaluation.compare import Contestant, compare_checkpoints, rate
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.pipeline import Assessed, Difficulty, JudgeTally, Scene, make_candidate
from scope_selfplay.run import Policy, Run, read_given_tasks, training_seed
from scope_selfplay.schemas import Candidate, CandidateStatus, Grade, Key, Role, Rollout
from scope_selfplay.store import (
    Appender,
    Manifest,
    Stage,
    StageFolder,
    publish_manifest,
    read_records,
    write_atomic,
    write_records,
)
from scope_selfplay.store.jsonl import read_rows
from scope_selfplay.store.manifest import checksums
from scope_selfplay.task_making import fill_quota
from scope_selfplay.training.challenger import make_challenger_roll
from scope_selfplay.training.grpo import GrpoJob, train_grpo
from scope_selfplay.training.solver import GradedTask, make_solver_roll

# A failure rate over fewer verdicts says little.
_ENOUGH_VERDICTS = 50


def make_held_out(run: Run) -> Manifest:
    """The tasks that every checkpoint is compared on: C_0's, judged but not filtered by difficulty."""

    def work(folder: StageFolder) -> JudgeTally:
        return _make_tasks(run, folder, 0, run.config.compare.tasks, solver=None)

    return _stage(run, 0, Stage.TASKS, {}, work)


def train_challenger(run: Run, iteration: int) -> Manifest:
    """Stage A: GRPO from C_{t-1} against the frozen S_{t-1}."""

    def work(folder: StageFolder) -> JudgeTally:
        settings, scene = run.config.challenger, run.fresh_scene()
        start, opponent = run.challenger(iteration - 1), run.promoted(iteration - 1)
        count = settings.steps * settings.batch
        sources = run.sources(
            iteration, Stage.CHALLENGER, count, taken=_taken(run, iteration, Stage.CHALLENGER)
        )
        _write_documents(folder, [source.document.id for source in sources])
        difficulty = Difficulty(
            run.engine(opponent, Role.SOLVER),
            run.voice(opponent, Role.SOLVER),
            settings.rollouts,
            window=False,
        )
        by_id = {source.document.id: source for source in sources}
        provenance = run.provenance(iteration, Stage.CHALLENGER, start, opponent)
        key = run.key(iteration, Stage.CHALLENGER)
        job = _job(run, iteration, Stage.CHALLENGER, folder, start, list(by_id), scene.tally)

        def make_roll(model: Any) -> Any:
            return make_challenger_roll(model, job, scene, by_id, difficulty, provenance=provenance, key=key)

        _train(run, job, make_roll, f"iteration {iteration}: train the Challenger", "difficulty")
        _tidy(folder)
        return scene.tally

    return _stage(run, iteration, Stage.CHALLENGER, _inputs(run, iteration, Stage.CHALLENGER), work)


def make_tasks(run: Run, iteration: int) -> Manifest:
    """Stage B: C_t writes tasks over fresh documents until enough lie inside the difficulty window of S_{t-1}."""

    def work(folder: StageFolder) -> JudgeTally:
        return _make_tasks(
            run, folder, iteration, run.config.tasks.target, solver=run.promoted(iteration - 1)
        )

    return _stage(run, iteration, Stage.TASKS, _inputs(run, iteration, Stage.TASKS), work)


def train_solver(run: Run, iteration: int) -> Manifest:
    """Stage C: GRPO from S_{t-1} on the kept tasks."""

    def work(folder: StageFolder) -> JudgeTally:
        settings, scene = run.config.solver, run.fresh_scene()
        start = run.promoted(iteration - 1)
        tasks = _training_tasks(run, iteration)
        names = list(tasks)
        records = [names[row % len(names)] for row in range(settings.steps * settings.batch)]
        key = run.key(iteration, Stage.SOLVER)
        job = _job(run, iteration, Stage.SOLVER, folder, start, records, scene.tally)

        def make_roll(model: Any) -> Any:
            return make_solver_roll(model, job, scene, tasks, checkpoint=start.identity, key=key)

        _train(run, job, make_roll, f"iteration {iteration}: train the Solver", "rubric")
        _tidy(folder)
        return scene.tally

    return _stage(run, iteration, Stage.SOLVER, _inputs(run, iteration, Stage.SOLVER), work)


def compare(run: Run, iteration: int) -> Manifest:
    """Stage D: S_t answers the held-out tasks and is compared with the checkpoints before it."""

    def work(folder: StageFolder) -> JudgeTally:
        scene = run.fresh_scene()
        policy = run.solver(iteration)
        candidates = _accepted(run.folder.stage(0, Stage.TASKS))
        run.progress.begin(f"iteration {iteration}: compare {policy.name} on held-out tasks", len(candidates))
        asyncio.run(_answer(run, scene, policy, candidates, folder, run.key(iteration, Stage.COMPARE)))
        contestants = [_contestant(run, number) for number in range(iteration + 1)]
        comparisons = asyncio.run(compare_checkpoints(scene.judge, candidates, contestants))
        write_records(folder.comparisons, comparisons)
        ratings = rate(
            candidates,
            contestants,
            comparisons,
            always=run.config.compare.promotion == "always",
            seed=run.config.seed,
            resamples=run.config.compare.resamples,
        )
        write_atomic(folder.path / "ratings.json", ratings.model_dump_json(indent=1) + "\n")
        run.progress.end(f"mean score {ratings.held_out[policy.name]['all'].mean_score:.3f}")
        return scene.tally

    return _stage(run, iteration, Stage.COMPARE, _inputs(run, iteration, Stage.COMPARE), work)


def _stage(
    run: Run, iteration: int, stage: Stage, inputs: dict[str, str], work: Callable[[StageFolder], JudgeTally]
) -> Manifest:
    folder = run.folder.stage(iteration, stage)
    spec = {"config": run.config.hash, "prompts": run.pack.hash, "stage": stage, "inputs": inputs}
    spec_hash = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    done = folder.manifest
    if done is not None:
        if done.spec_hash != spec_hash:
            raise ConfigError(
                f"{folder.path}: was made from other inputs than there are now; remove this stage and the later ones"
            )
        return done
    folder.work.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    tally = work(folder)
    account = {"calls": tally.calls, "unreadable": tally.unreadable, "failed": tally.failed}
    write_atomic(folder.path / "judge.json", json.dumps(account) + "\n")
    if isinstance(run.scene.judge, ModelJudge):
        usage = json.dumps(run.scene.judge.account(), indent=1)
        write_atomic(folder.path / "judge_usage.json", usage + "\n")
    manifest = Manifest(
        stage=stage.value,
        iteration=iteration,
        spec_hash=spec_hash,
        inputs=inputs,
        outputs=checksums(folder.path),
        rows={path.name: len(read_rows(path)) for path in sorted(folder.path.glob("*.jsonl"))},
        seconds=round(time.monotonic() - began, 2),
        version=__version__,
    )
    publish_manifest(folder.path, manifest)
    shutil.rmtree(folder.work, ignore_errors=True)
    return manifest


def _inputs(run: Run, iteration: int, stage: Stage) -> dict[str, str]:
    """The manifests of everything before this stage; a change in one would change this one."""
    found: dict[str, str] = {}
    for number in range(iteration + 1):
        for each in Stage:
            if number == iteration and each is stage:
                return found
            manifest = run.folder.stage(number, each).path / "manifest.json"
            if manifest.exists():
                found[f"{number:02d}/{each.value}"] = Manifest.model_validate_json(manifest.read_bytes()).hash
    return found


def _taken(run: Run, iteration: int, stage: Stage) -> list[str]:
    """The documents that earlier stages used."""
    taken: list[str] = []
    for number in range(iteration + 1):
        for each in (Stage.CHALLENGER, Stage.TASKS):
            if number == iteration and each is stage:
                return taken
            file = run.folder.stage(number, each).path / "documents.json"
            if file.exists():
                taken += json.loads(file.read_text())
    return taken


def _write_documents(folder: StageFolder, ids: Sequence[str]) -> None:
    write_atomic(folder.path / "documents.json", json.dumps(list(ids)) + "\n")


def _make_tasks(
    run: Run, folder: StageFolder, iteration: int, target: int, *, solver: Policy | None
) -> JudgeTally:
    scene, settings = run.fresh_scene(), run.config.tasks
    policy = run.challenger(iteration)
    sources = _task_sources(run, iteration, target)
    engine, voice = run.engine(policy, Role.CHALLENGER), run.voice(policy, Role.CHALLENGER)
    difficulty = None
    if solver is not None:
        difficulty = Difficulty(
            run.engine(solver, Role.SOLVER), run.voice(solver, Role.SOLVER), settings.rollouts, window=True
        )
    provenance = run.provenance(iteration, Stage.TASKS, policy, solver)
    key = run.key(iteration, Stage.TASKS)
    before = read_records(folder.candidates, Candidate)
    title = "make held-out tasks" if iteration == 0 else f"iteration {iteration}: make tasks"
    run.progress.begin(title, target)

    async def make(source: SourcePrompt) -> Assessed:
        each = (*key, source.document.id)
        rollout = await scene.roll(scene.challenger(voice, each, source), engine, each)
        made_from = provenance.model_copy(update={"document_id": source.document.id})
        made = await make_candidate(
            scene, source, rollout, difficulty=difficulty, provenance=made_from, key=key
        )
        return made._replace(rollouts=(rollout, *made.rollouts))

    with (
        Appender(folder.rollouts) as rollouts,
        Appender(folder.grades) as grades,
        Appender(folder.candidates) as candidates,
    ):

        def keep(made: Assessed) -> None:
            # The candidate's line comes last: it says that everything of it is on disk.
            rollouts.append(*(rollout.without_ids() for rollout in made.rollouts))
            grades.append(*made.grades)
            candidates.append(made.candidate)
            check_budget(run, scene.tally)

        kept = asyncio.run(
            fill_quota(
                sources,
                make,
                target=target,
                in_flight=settings.in_flight,
                finished={each.provenance.document_id: each for each in before},
                keep=keep,
                report=lambda accepted, tried: run.progress.advance(accepted, f"of {tried} candidates"),
            )
        )
    _settle(folder, kept)
    _check_harvest(run, iteration, kept, target)
    return scene.tally


def _task_sources(run: Run, iteration: int, target: int) -> list[SourcePrompt]:
    """As many fresh documents as may be tried, or as there are."""
    wanted = run.config.tasks.max_candidates or 4 * target
    taken = set(_taken(run, iteration, Stage.TASKS))
    held_out = iteration == 0
    pool = [each.id for each in run.documents if (each.source == HELD_OUT) == held_out]
    left = len(set(pool or [each.id for each in run.documents]) - taken)
    return run.sources(iteration, Stage.TASKS, min(wanted, left), taken=sorted(taken))


def _settle(folder: StageFolder, kept: Sequence[Candidate]) -> None:
    """Leave exactly the candidates up to the filled quota, in document order, with what belongs to them."""
    rollouts = {each.id: each for each in read_records(folder.rollouts, Rollout)}
    grades = {each.rollout_id: each for each in read_records(folder.grades, Grade)}
    order = [each for candidate in kept for each in (candidate.challenger_rollout_id, *candidate.rollout_ids)]
    write_records(folder.rollouts, [rollouts[each] for each in order if each in rollouts])
    write_records(folder.grades, [grades[each] for each in order if each in grades])
    write_records(folder.candidates, kept)
    _write_documents(folder, [candidate.provenance.document_id for candidate in kept])


def _check_harvest(run: Run, iteration: int, kept: Sequence[Candidate], target: int) -> None:
    accepted = sum(candidate.status is CandidateStatus.ACCEPTED for candidate in kept)
    run.progress.end(f"{accepted} of {len(kept)} candidates accepted")
    if accepted >= target:
        return
    reasons = sorted({candidate.reason for candidate in kept})
    counts = ", ".join(f"{reason} {sum(each.reason is reason for each in kept)}" for reason in reasons)
    enough = run.config.solver.batch if iteration else 1
    if accepted < enough:
        raise CorpusError(
            f"iteration {iteration}: only {accepted} of {len(kept)} candidates were accepted, {enough} are needed "
            f"({counts}); add documents, widen tasks.low/tasks.high, or look at the rejected ones"
        )
    run.progress.say(f"only {accepted} of {target} tasks were found ({counts}); going on with these")


def _training_tasks(run: Run, iteration: int) -> dict[str, GradedTask]:
    given = run.config.solver.tasks
    kept = read_given_tasks(given) if given else _accepted(run.folder.stage(iteration, Stage.TASKS))
    return {each.task.id: GradedTask(each.task, each.rubric) for each in kept if each.task and each.rubric}


def _accepted(folder: StageFolder) -> list[Candidate]:
    return [
        each for each in read_records(folder.candidates, Candidate) if each.status is CandidateStatus.ACCEPTED
    ]


async def _answer(
    run: Run, scene: Scene, policy: Policy, candidates: Sequence[Candidate], folder: StageFolder, key: Key
) -> None:
    """One greedy answer per held-out task, graded; what is on disk already is not made again."""
    done = {grade.rollout_id for grade in read_records(folder.grades, Grade)}
    have = {each.subject_id for each in read_records(folder.rollouts, Rollout) if each.id in done}
    engine, voice = run.engine(policy, Role.SOLVER), run.voice(policy, Role.SOLVER, greedy=True)

    with Appender(folder.rollouts) as rollouts, Appender(folder.grades) as grades:

        async def one(candidate: Candidate) -> None:
            task, rubric = candidate.task, candidate.rubric
            assert task is not None and rubric is not None
            each = (*key, task.id)
            rollout = await scene.roll(scene.solver(voice, each, task), engine, each)
            grade = await scene.grade(task, rubric, rollout, each)
            rollouts.append(rollout.without_ids())
            grades.append(grade)
            check_budget(run, scene.tally)

        missing = [each for each in candidates if each.task and each.task.id not in have]
        for count, future in enumerate(asyncio.as_completed([one(each) for each in missing]), start=1):
            await future
            run.progress.advance(len(candidates) - len(missing) + count)
    order = {candidate.task.id: row for row, candidate in enumerate(candidates) if candidate.task}
    answers = {each.subject_id: each for each in read_records(folder.rollouts, Rollout)}
    by_rollout = {each.rollout_id: each for each in read_records(folder.grades, Grade)}
    ordered = [answers[task_id] for task_id in order]
    write_records(folder.rollouts, ordered)
    write_records(folder.grades, [by_rollout[each.id] for each in ordered])


def _contestant(run: Run, iteration: int) -> Contestant:
    folder = run.folder.stage(iteration, Stage.COMPARE)
    rollouts = read_records(folder.rollouts, Rollout)
    grades = {each.rollout_id: each for each in read_records(folder.grades, Grade)}
    return Contestant(
        run.solver(iteration).name,
        {each.subject_id: each for each in rollouts},
        {each.subject_id: grades[each.id] for each in rollouts},
    )


def _job(
    run: Run,
    iteration: int,
    stage: Stage,
    folder: StageFolder,
    start: Policy,
    records: Sequence[str],
    tally: JudgeTally,
) -> GrpoJob:
    settings = run.config.challenger if stage is Stage.CHALLENGER else run.config.solver
    curve = "difficulty" if stage is Stage.CHALLENGER else "rubric"

    def on_step(step: int, line: dict[str, Any]) -> None:
        reward, part = line.get("reward", float("nan")), line.get(curve)
        run.progress.advance(
            step, f"reward {reward:.2f}" + (f", {curve} {part:.2f}" if part is not None else "")
        )
        check_budget(run, tally)

    return GrpoJob(
        start=start.path,
        base=run.base,
        settings=settings,
        records=records,
        folder=folder,
        codec=run.codec,
        temperature=run.config.sampling.temperature,
        seed=training_seed(run, iteration, stage),
        on_step=on_step,
    )


def _train(run: Run, job: GrpoJob, make_roll: Callable[[Any], Any], title: str, curve: str) -> None:
    run.progress.begin(title, job.settings.steps)
    train_grpo(job, make_roll)
    values = [row[curve] for row in read_rows(job.folder.metrics) if row.get(curve) is not None]
    first, last = (values[0], values[-1]) if values else (float("nan"), float("nan"))
    run.progress.end(f"{curve} {first:.2f} -> {last:.2f}")


def _tidy(folder: StageFolder) -> None:
    """A resumed training makes some steps again: keep one record per id, the newest."""
    for path, model, name in (
        (folder.candidates, Candidate, "id"),
        (folder.rollouts, Rollout, "id"),
        (folder.grades, Grade, "rollout_id"),
    ):
        if path.exists():
            records = {getattr(record, name): record for record in read_records(path, model)}
            write_records(path, records.values())


def check_budget(run: Run, tally: JudgeTally) -> None:
    """Raises JudgeError when more verdicts of a stage failed than its budget allows."""
    budget = run.config.judge.failure_budget
    if tally.calls >= _ENOUGH_VERDICTS and tally.failed > budget * tally.calls:
        raise JudgeError(
            f"{tally.failed} of {tally.calls} verdicts failed, judge.failure_budget allows {budget:.0%}; "
            "see that the judge is well, then run the same command again"
        )
