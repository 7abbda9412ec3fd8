"""What the status says of a training that goes on."""

import json
from pathlib import Path

from scope_selfplay.controller.training_progress import training_progress
from scope_selfplay.store import RunFolder, Stage
from tests.unit.controller.examples import PAPER, a_step, config_of
from tests.unit.controller.worlds import World


def write_rows(folder: RunFolder, stage: Stage, count: int, tail: str = "") -> None:
    metrics = folder.stage(1, stage).metrics
    metrics.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"step": number, "step_seconds": 90.0 + number, "reward": 0.5} for number in range(1, count + 1)]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)


def test_step_rate_time_left_and_reward_are_one_line(tmp_path: Path) -> None:
    config, folder = config_of(PAPER), RunFolder(tmp_path / "r1")
    assert training_progress(folder, config, a_step(1, Stage.SOLVER)) == ""
    write_rows(folder, Stage.SOLVER, 10, tail='{"step": 11, "rew')
    line = training_progress(folder, config, a_step(1, Stage.SOLVER))
    assert config.solver.steps == 20
    assert line == "step 10 of 20, 98 s a step, about 16 min left, reward 0.500"
    longer = config_of(PAPER, solver={"steps": 200})
    line = training_progress(folder, longer, a_step(1, Stage.SOLVER))
    assert line == "step 10 of 200, 98 s a step, about 5.2 h left, reward 0.500"
    write_rows(folder, Stage.SOLVER, 3000)
    assert training_progress(folder, config, a_step(1, Stage.SOLVER)).startswith("step 3000 of")
    assert training_progress(folder, config, a_step(1, Stage.TASKS)) == ""


def test_the_status_follows_the_training_and_drops_the_line_after_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.have_done_all_but("i01-train-solver", "i01-compare")
    controller = world.controller()
    controller.round()
    assert "training" not in world.status
    write_rows(world.stages.folder, Stage.SOLVER, 2)
    controller.round()
    assert world.status["training"].startswith("step 2 of ")
    world.drive(controller)
    assert "training" not in world.status
