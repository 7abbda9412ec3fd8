"""The whole loop in miniature ends with what was promised."""

import json
import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Candidate, Comparison, Grade, Rollout
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.driver.local import run_all
from scope_selfplay.run.begin import open_run
from scope_selfplay.stages.warm_start import warm_start_rows
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import RunFolder, Stage, read_manifest
from scope_selfplay.store.ratings import kept_solver

# Every task that the judge can read is let through: a random policy writes few of them. No Solver is better after two
# steps, so that the run of two iterations ends after the first.
SETTINGS = """
    name=tiny domain=embedded iterations=2 seed=4 judge.gates=[] model.max_length=256 model.slots=16
    search.topk=1 search.max_tokens=48 tasks.low=0 tasks.high=1 tasks.target=4 tasks.max_candidates=48
    tasks.in_flight=12 tasks.rollouts=2 compare.tasks=4
    compare.stop=1
    challenger.steps=2 challenger.batch=2 challenger.group_size=2 challenger.rollouts=2
    challenger.learning_rate=1e-3 challenger.save_every=1 challenger.max_prompt=120 challenger.max_response=100
    solver.steps=2 solver.batch=2 solver.group_size=2 solver.learning_rate=1e-3
    solver.save_every=1 solver.max_prompt=64 solver.max_response=120 solver.length_soft=16 solver.length_hard=32
"""


def config_of(policy: Path, *overrides: str) -> RunConfig:
    return load_config(None, [*SETTINGS.split(), f"model.path={policy}", *overrides])


def forked(target: Callable[..., None], *given: Any) -> ForkServerProcess:
    """A process that has begun; a fork server has the libraries loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.integration.loop.libraries"])
    child = context.Process(target=target, args=given)
    child.start()
    return child


def in_child(target: Callable[..., None], *given: Any, begun: Callable[[int], None] | None = None) -> int:
    """The exit code of a process of its own, whose number `begun` is told."""
    child = forked(target, *given)
    if begun is not None:
        assert child.pid is not None
        begun(child.pid)
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def whole_run(policy: Path, root: Path) -> None:
    run_all(open_run(config_of(policy), root, Progress()))


def summary_of(folder: RunFolder) -> Any:
    return json.loads(folder.summary.read_text())


def test_a_run_ends_with_every_stage_and_a_summary(finished: RunFolder) -> None:
    summary = summary_of(finished)
    kept = kept_solver(finished)
    assert kept is not None and summary["kept"] == kept.model_dump(mode="json")
    assert finished.best.resolve() == (finished.path / kept.checkpoint).resolve()
    assert (finished.best / "config.json").exists()
    (iteration,) = summary["iterations"]
    assert iteration["accepted"] >= 2 and iteration["candidates"] > iteration["accepted"]
    assert set(iteration["seconds"]) == {stage.value for stage in Stage}
    assert list(summary["held_out"]) == ["S_0", "S_1"]
    for stage in Stage:
        folder = finished.stage(1, stage)
        assert read_manifest(folder.path) is not None and not folder.work.exists()


def test_a_run_that_no_iteration_helps_ends_early_and_says_why(
    finished: RunFolder, speaking_policy: Path
) -> None:
    class Telling(Progress):
        said: str = ""

        def say(self, text: str) -> None:
            self.said = text

    progress = Telling()
    run_all(open_run(config_of(speaking_policy), finished.path.parent, progress))
    assert progress.said.startswith("stopped after iteration 1: S_1 is not told apart from S_0: ")
    assert "compare.stop=never" in progress.said
    assert not finished.stage(2, Stage.CHALLENGER).path.exists()
    ratings = json.loads((finished.stage(1, Stage.COMPARE).path / "ratings.json").read_text())
    assert (ratings["decision"], ratings["promoted"]) == ("stop", True)
    (edge,) = ratings["edges"]
    assert edge["wins"] + edge["ties"] + edge["losses"] == len(
        read_records(finished.stage(1, Stage.COMPARE).comparisons, Comparison)
    )


def test_every_rollout_that_counted_is_kept_with_its_grade(finished: RunFolder) -> None:
    tasks = finished.stage(1, Stage.TASKS)
    rollouts = {each.id for each in read_records(tasks.rollouts, Rollout)}
    grades = {each.rollout_id for each in read_records(tasks.grades, Grade)}
    candidates = read_records(tasks.candidates, Candidate)
    for candidate in candidates:
        assert candidate.challenger_rollout_id in rollouts
        assert set(candidate.rollout_ids) <= rollouts & grades
    documents = [each.provenance.document_id for each in candidates]
    assert len(set(documents)) == len(documents)
    trained = json.loads((finished.stage(1, Stage.CHALLENGER).path / "documents.json").read_text())
    assert not set(trained) & set(documents)


def test_what_a_run_accepted_gives_rows_to_learn_from(finished: RunFolder, speaking_policy: Path) -> None:
    run = open_run(config_of(speaking_policy), finished.path.parent, Progress())
    found = warm_start_rows(run, min_score=0.0)
    assert found.learnt >= 4 and found.refused == 0
    assert all(1 in row.mask and len(row.mask) == len(row.completion_ids) for row in found.rows)


def test_a_finished_run_returns_at_once_and_changes_nothing(
    finished: RunFolder, speaking_policy: Path
) -> None:
    def files() -> dict[Path, bytes]:
        return {each: each.read_bytes() for each in finished.path.rglob("*") if each.is_file()}

    before = files()
    run_all(open_run(config_of(speaking_policy), finished.path.parent, Progress()))
    assert files() == before
