"""Every reward preset makes two real GRPO steps from given tasks, and leaves its judgements and numbers behind."""

from pathlib import Path

import pytest

from benchmarks.embedded_speech import write_tasks
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Comparison, Grade, Rollout, Score, Selection
from scope_selfplay.config.load import load_config
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.run import Run
from scope_selfplay.stages.train import train_solver
from scope_selfplay.store.files import read_records, read_rows
from scope_selfplay.store.folder import Stage, StageFolder

SETTINGS = """
    domain=embedded iterations=1 seed=4 judge.gates=[] model.max_length=256 model.slots=16 search.topk=1
    search.max_tokens=48 corpus.sample=40 challenger.max_prompt=120
    challenger.max_response=100
    solver.steps=2 solver.batch=2 solver.group_size=4 solver.learning_rate=1e-3
    solver.max_prompt=64 solver.max_response=120 solver.length_soft=16 solver.length_hard=32
"""
TRAINED = (
    "rubric",
    "verifier",
    "implicit",
    "explicit",
    "pairwise",
    "tournament_grpo_2_1_1",
    "tournament_grpo_4_2_2",
    "arenarl",
    "reasoning_arena",
    "reasoning_arena_live",
    "adaptive_pointwise",
    "balanced",
)


def open_with(policy: Path, root: Path, name: str, *overrides: str) -> Run:
    settings = [*SETTINGS.split(), f"model.path={policy}", f"name={name.replace('_', '-')}", *overrides]
    return open_run(load_config(None, settings), root, Progress())


@pytest.fixture(scope="module")
def tasks(speaking_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of two tasks about the world of every run here, with the rubrics that its judge writes."""
    root = tmp_path_factory.mktemp("tasks")
    return write_tasks(open_with(speaking_policy, root, "world").documents, root / "given.jsonl")


@pytest.mark.parametrize("preset", TRAINED)
def test_every_preset_trains(preset: str, speaking_policy: Path, tasks: Path, tmp_path: Path) -> None:
    run = open_with(speaking_policy, tmp_path, preset, f"solver.tasks={tasks}", f"solver.reward={preset}")
    train_solver(run, 1)
    folder = run.folder.stage(1, Stage.SOLVER)
    rows = read_rows(folder.metrics)
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["judge_missing"] == 0.0 and row["masked"] == 0.0
        sampled, judged, update = (row[f"{name}_seconds"] for name in ("rollout", "reward", "update"))
        # M0, a part of the update, reads the rollouts while they are judged.
        assert min(sampled, judged, update) > 0 and max(sampled + judged, update) <= row["step_seconds"]
    own_rubrics = 2 if getattr(run.config.solver.reward, "rubrics", "task") == "query" else 0
    assert sum(row["judge_calls"] for row in rows) == recorded_calls(folder) + own_rubrics
    assert (folder.checkpoint / "model.safetensors").is_file()


def recorded_calls(folder: StageFolder) -> int:
    """Judgements on disk, all of them of rollouts on disk."""
    rollouts = {each.id for each in read_records(folder.rollouts, Rollout)}
    grades = read_records(folder.grades, Grade)
    comparisons = read_records(folder.comparisons, Comparison)
    selections = read_records(folder.selections, Selection)
    scores = read_records(folder.scores, Score)
    for comparison in comparisons:
        assert {comparison.first_id, comparison.second_id} <= rollouts and comparison.outcome is not None
    for selection in selections:
        assert set(selection.candidate_ids) <= rollouts and selection.winner_ids
    assert {each.rollout_id for each in [*grades, *scores]} <= rollouts
    verdicts = sum(verdict.attempts > 0 for grade in grades for verdict in grade.verdicts)
    said = [each.verdict for each in (*selections, *scores)]
    assert all(each is not None and each.reasoning for each in said)
    return verdicts + len(comparisons) + sum(each is not None and each.attempts > 0 for each in said)
