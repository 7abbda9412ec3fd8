"""Every reward preset, and every run folder of the papers made small, trains for real and leaves its judgements."""

import json
import random
from pathlib import Path

import pytest

from benchmarks.embedded_speech import write_tasks
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Comparison, Grade, Rollout, Rubric, Score, Selection
from scope_selfplay.config.load import load_config
from scope_selfplay.corpus.world import make_documents
from scope_selfplay.driver.local import run_here
from scope_selfplay.judge.served import random_judge_app
from scope_selfplay.net.serve import serving
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.run import Run
from scope_selfplay.stages.train import train_solver
from scope_selfplay.store.files import read_records, read_rows
from scope_selfplay.store.folder import RunFolder, Stage, StageFolder
from scope_selfplay.testing.random_policy import write_random_policy
from tests.integration.serving.threads import in_thread

SETTINGS = """
    domain=embedded iterations=1 seed=4 judge.gates=[] model.max_length=256 model.slots=16 search.topk=1
    search.max_tokens=48 corpus.sample=40 challenger.max_prompt=120
    challenger.max_response=100
    solver.steps=2 solver.batch=2 solver.group_size=4 solver.learning_rate=1e-3
    solver.max_prompt=64 solver.max_response=120 solver.length_soft=16 solver.length_hard=32
"""
TRAINED = """
    rubric verifier implicit explicit pairwise tournament_grpo_4_2_2 reasoning_arena adaptive_pointwise balanced
""".split()


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


REPOSITORY = Path(__file__).parents[3]
SMALL = """
    model.dialect=qwen2.5 model.engine=in_process model.slots=16 model.max_length=4000 model.deterministic=true
    corpus.path=embedded corpus.sample=64
    solver.steps=1 solver.batch=2 solver.group_size=4 solver.max_prompt=3000 solver.max_response=800
    solver.max_turn=100 solver.learning_rate=1e-3 judge.endpoint.context=null compare.tasks=2
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    packs = [load_pack(REPOSITORY / "prompts" / name) for name in ("open-travel", "open-writing", "math")]
    texts = [prompt.body for pack in packs for prompt in pack.prompts]
    return write_random_policy(
        tmp_path_factory.mktemp("policy"), make_documents(random.Random(0), 64, source="w"), texts
    )


def run_small(name: str, policy: Path, folder: Path, *changes: str) -> RunFolder:
    """The run of a folder with everything that costs made small; its design, prompts and sampling stay."""
    tasks = folder / "queries.jsonl"
    lines = [{"question": text, "answer": "7"} for text in ("Where to?", "And why?")]
    tasks.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = [f"model.path={policy}", f"solver.tasks={tasks}", f"compare.given={tasks}"]
    file = REPOSITORY / "k8s" / "presets" / f"{name}.yaml"
    with in_thread(serving(random_judge_app())) as judge:
        places = [*SMALL.split(), f"judge.endpoint.base_url={judge}", *given]
        config = load_config(file, [*places, *changes])
        run_here(open_run(config, folder / "runs", Progress()))
    made = RunFolder(folder / "runs" / config.name)
    assert made.stage(1, Stage.SOLVER).manifest is not None
    assert made.stage(1, Stage.COMPARE).manifest is not None
    return made


def test_tournament_grpo_runs_with_its_own_settings(policy: Path, tmp_path: Path) -> None:
    stage = run_small("tournament-grpo", policy, tmp_path).stage(1, Stage.SOLVER)
    selections = read_records(stage.selections, Selection)
    assert selections and {each.repeat for each in selections} <= set(range(4))
    lengths = {len(rubric.criteria) for rubric in read_records(stage.rubrics, Rubric)}
    assert lengths and lengths <= {5, 6, 7}


def test_arenarl_runs_with_its_own_settings(policy: Path, tmp_path: Path) -> None:
    stage = run_small("arenarl", policy, tmp_path, "domain=open-travel").stage(1, Stage.SOLVER)
    pairs = {(each.first_id, each.second_id) for each in read_records(stage.comparisons, Comparison)}
    # Both orders.
    assert pairs and all((other, one) in pairs for one, other in pairs)


def test_arenarl_writes_without_tools(policy: Path, tmp_path: Path) -> None:
    changes = "domain=open-writing solver.max_search_turns=0 solver.loss=gspo solver.reward=arenarl_pointwise"
    stage = run_small("arenarl", policy, tmp_path, *changes.split()).stage(1, Stage.SOLVER)
    assert {each.scale for each in read_records(stage.scores, Score)} == {"answer"}
