"""Reasoning Arena end to end: CISPO on verified rewards, and a live tournament for the groups that these leave flat."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Comparison, Grade, Rollout
from scope_selfplay.config.load import load_config
from scope_selfplay.driver.local import run_here
from scope_selfplay.judge.fences import Fenced, read_fences
from scope_selfplay.net.serve import ServedReply, ServedRequest
from scope_selfplay.rewards.verify import boxed_reward, last_box
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.given import read_given_tasks
from scope_selfplay.stages.train import train_solver
from scope_selfplay.store.files import read_records, read_rows
from scope_selfplay.store.folder import Stage
from scope_selfplay.testing.chat_server import FAKE_MODEL, FakeServer
from tests.integration.loop.policies import Sums, write_sums
from tests.integration.serving.threads import in_thread

RUN_FILE = Path(__file__).parents[3] / "examples" / "maths" / "run.yaml"

CLUSTER_FILE = Path(__file__).parents[3] / "k8s/presets/reasoning-arena.yaml"
SMALL = """
    name=sums iterations=1 seed=1 model.slots=16 solver.steps=2 solver.batch=2
    solver.group_size=4 solver.learning_rate=1e-2 solver.max_prompt=900
    solver.max_response=60 model.max_length=1000 compare.tasks=2
    model.engine=in_process model.dialect=qwen2.5 model.deterministic=true solver.warmup_ratio=0
    challenger.max_prompt=256 challenger.max_response=256
"""


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Sums:
    return write_sums(tmp_path_factory.mktemp("sums"))


def prefer_the_greater(request: ServedRequest) -> ServedReply:
    """A judge over the wire: of two attempts that box a digit it prefers the greater."""
    *_, first, second = read_fences(request.prompt)
    one, other = (int(last_box(_whole(each)) or 0) for each in (first, second))
    verdict = "Tie" if one == other else "A" if one > other else "B"
    return ServedReply(f"<think>One is greater.</think>\\boxed{{{verdict}}}")


def _whole(fenced: Fenced) -> str:
    return fenced.text + "".join(_whole(each) for each in fenced.inner)


@pytest.fixture(scope="module")
def judge_url() -> Iterator[str]:
    with in_thread(FakeServer(prefer_the_greater).serving()) as url:
        yield url


def test_flat_groups_go_to_a_live_tournament_and_the_others_keep_their_verified_rewards(
    sums: Sums, judge_url: str, tmp_path: Path
) -> None:
    judge = ["judge.kind=model", f"judge.endpoint.base_url={judge_url}", f"judge.endpoint.model={FAKE_MODEL}"]
    # It prefers the greater number, and that is all it can.
    judge.append("judge.exam=none")
    run = open_run(load_config(CLUSTER_FILE, [*SMALL.split(), *sums.settings, *judge]), tmp_path, Progress())
    assert run.config.solver.loss == "cispo"
    train_solver(run, 1)
    folder = run.folder.stage(1, Stage.SOLVER)
    first, second = read_rows(folder.metrics)
    for row in (first, second):
        # The unsolvable problem's group is always routed.
        assert 0.5 <= row["routed"] <= 1.0 and row["judge_missing"] == 0.0 and row["masked"] == 0.0
    # Equal traces tie without a call, so a step may need none.
    assert first["judge_calls"] + second["judge_calls"] > 0
    assert first["non_zero_advantage"] + second["non_zero_advantage"] > 0
    rollouts = {each.id: each for each in read_records(folder.rollouts, Rollout)}
    comparisons = read_records(folder.comparisons, Comparison)
    assert comparisons and all(each.outcome is not None for each in comparisons)
    compared = {rollouts[name].subject_id for each in comparisons for name in (each.first_id, each.second_id)}
    assert len(rollouts) == 16 and compared
    trained, start = (path / "model.safetensors" for path in (folder.checkpoint, sums.policy))
    assert trained.read_bytes() != start.read_bytes()


def test_a_run_on_verified_rewards_needs_no_judge_and_ends_with_its_comparison(
    sums: Sums, tmp_path: Path
) -> None:
    run = open_run(load_config(RUN_FILE, [*SMALL.split(), *sums.settings]), tmp_path, Progress())
    run_here(run)
    summary = json.loads(run.folder.summary.read_text())
    folder = run.folder.stage(1, Stage.SOLVER)
    rows = read_rows(folder.metrics)
    given = [each.task for each in read_given_tasks(str(sums.tasks)) if each.task]
    references = {task.id: task.reference or "" for task in given}
    rollouts = read_records(folder.rollouts, Rollout)
    verified = [boxed_reward(each.answer or "", references[each.subject_id]) or 0.0 for each in rollouts]
    assert len(verified) == 16 and 0.0 < sum(verified) < 16.0
    assert sum(row["reward"] for row in rows) / 2 == pytest.approx(sum(verified) / 16, abs=1e-5)
    assert all(row["judge_calls"] == 0 for row in rows)
    held_out = json.loads(json.dumps(summary))["held_out"]
    assert list(held_out) == ["S_0", "S_1"] and held_out["S_0"]["tasks"] == 2
    grades = read_records(run.folder.stage(1, Stage.COMPARE).grades, Grade)
    assert {each.score for each in grades} <= {0.0, 1.0}
    assert json.loads((run.folder.stage(1, Stage.COMPARE).path / "ratings.json").read_text())["edges"]
