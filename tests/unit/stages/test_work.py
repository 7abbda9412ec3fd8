"""Whether a stage has room on its volume, and its time: that of killed attempts and other workers counts."""

import os
from pathlib import Path

import pytest

from scope_selfplay.base.errors import CheckpointError, ConfigError
from scope_selfplay.base.terminal import LineProgress
from scope_selfplay.base.values import Role
from scope_selfplay.config.base import ServedConfig
from scope_selfplay.config.load import load_config
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.run.run import Run
from scope_selfplay.stages.tasks import Shard, make_share
from scope_selfplay.stages.work import begin_attempt, warn_of_little_room
from scope_selfplay.store.folder import Policy, RunFolder, Stage

MORE_THAN_ANY_DISK = 10**12


def run_of(root: Path, said: list[str], *settings: str) -> Run:
    config = load_config(None, ["name=r1", *settings])
    return Run(config, RunFolder(root / "r1"), load_pack(pack_path("embedded")), LineProgress(said.append))


def test_less_than_a_stage_may_write_is_said_and_noted_until_there_is_room(tmp_path: Path) -> None:
    said: list[str] = []
    for steps, warned in ((MORE_THAN_ANY_DISK, True), (1, False)):
        run = run_of(tmp_path, said, f"solver.steps={steps}", "domain=embedded")
        folder = run.folder.stage(1, Stage.SOLVER)
        folder.work.mkdir(parents=True, exist_ok=True)
        warn_of_little_room(run, 1, Stage.SOLVER)
        assert folder.room.exists() is warned
        if warned:
            note = folder.room.read_text()
            assert "are free on its volume, and up to " in note and "make room" in note
    assert said == [f"warning: {note.strip()}"]


def test_one_of_several_workers_says_so_before_it_makes_tasks(tmp_path: Path) -> None:
    said: list[str] = []
    settings = ["model.path=/data/models/Giant-90000B", "model.dialect=qwen3", "corpus.path=embedded"]
    # A server that does not answer: no engine is loaded.
    settings += ["partners.challenger.base_url=http://127.0.0.1:9/v1", f"tasks.target={MORE_THAN_ANY_DISK}"]
    run = run_of(tmp_path, said, *settings)
    with pytest.raises(CheckpointError, match="no such model directory"):
        make_share(run, 1, shard=Shard(0, 2))
    assert said == [f"warning: {run.folder.stage(1, Stage.TASKS).room.read_text().strip()}"]


def test_only_an_untrained_partners_turns_are_kept_in_form_and_only_by_a_server(tmp_path: Path) -> None:
    run = run_of(tmp_path, [], "partners.keep_form=[challenger]", "challenger.freeze_after=0")
    base, trained = (Policy("C_0", Path(place)) for place in ("/models/base", run.folder.path / "checkpoint"))
    served = ServedConfig(base_url="http://127.0.0.1:9/v1")
    assert run.keeps_form(base, Role.CHALLENGER, served)
    assert not run.keeps_form(trained, Role.CHALLENGER, served)
    assert not run.keeps_form(base, Role.SOLVER, served)
    with pytest.raises(ConfigError, match=r"set partners\.challenger\.base_url"):
        run.keeps_form(base, Role.CHALLENGER, None)


def set_time(path: Path, seconds: float) -> None:
    path.touch()
    os.utime(path, (seconds, seconds))


def test_the_time_of_every_killed_attempt_counts_once(tmp_path: Path) -> None:
    work = tmp_path / ".work"
    work.mkdir()
    assert begin_attempt(tmp_path, work) == 0
    set_time(work / "seconds", 1000)
    set_time(tmp_path / "rollouts.jsonl", 1030)
    set_time(tmp_path / "grades.jsonl", 1025)
    assert begin_attempt(tmp_path, work) == 30
    # An attempt that wrote nothing adds nothing, whatever files earlier attempts left.
    assert begin_attempt(tmp_path, work) == 30
    set_time(work / "seconds", 5000)
    set_time(work / "checkpoint", 5100)
    assert begin_attempt(tmp_path, work) == 130
