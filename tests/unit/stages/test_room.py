"""Whether a stage has room on its volume: planned, or certain by the tensors that a training starts from."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from scope_selfplay.config import ModelConfig, SolverConfig, load_config
from scope_selfplay.errors import CheckpointError, StorageError
from scope_selfplay.progress import Progress
from scope_selfplay.prompts import load_pack
from scope_selfplay.prompts.folder import pack_path
from scope_selfplay.run import Run
from scope_selfplay.stages.room import check_room_to_train, least_bytes, warn_of_little_room
from scope_selfplay.stages.shards import Shard, make_share
from scope_selfplay.store import RunFolder, Stage, StageFolder
from scope_selfplay.training.job import GrpoJob, TrainingOptions, TrainingStart

MORE_THAN_ANY_DISK = 10**9


def job_of(place: Path, numbers: int = 1_000_000, rank: int = 0, **settings: Any) -> GrpoJob:
    """A training from a model with so many numbers, of which only the header is there."""
    weights = place / "m0"
    weights.mkdir(exist_ok=True)
    tensor = {"dtype": "BF16", "shape": [numbers // 1000, 1000], "data_offsets": [0, 2 * numbers]}
    header = json.dumps({"weight": tensor}).encode()
    (weights / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    model = ModelConfig.model_validate({"lora": {"rank": rank}})
    options = TrainingOptions(SolverConfig(**settings), temperature=1.0, seed=0, model=model)
    folder = StageFolder(place / "solver")
    folder.work.mkdir(parents=True, exist_ok=True)
    return GrpoJob(TrainingStart(weights, weights), options, [], folder, cast(Any, None))


@pytest.mark.parametrize(
    ("settings", "saved", "bytes_each"),
    [
        # Weights and two moments in float32 for each checkpoint; two stay, and a third is being written.
        ({"steps": 20}, [], 36),
        ({"steps": 20, "keep_checkpoints": 1}, [], 24),
        ({"steps": 20, "keep_checkpoints": 5}, [], 72),
        # The weights are exported beside the checkpoints.
        ({"steps": 20, "save_every": 20}, [], 14),
        ({"steps": 2}, [], 26),
        # On resuming, what lies there is paid for: one more checkpoint, or the export alone.
        ({"steps": 20}, [7, 8], 12),
        ({"steps": 20}, [19, 20], 2),
        ({"steps": 20, "rank": 16}, [], 2),
    ],
)
def test_what_a_training_writes_at_least(
    tmp_path: Path, settings: dict[str, Any], saved: list[int], bytes_each: int
) -> None:
    job = job_of(tmp_path, **settings)
    for step in saved:
        (job.folder.work / f"checkpoint-{step}").mkdir()
    assert least_bytes(job) == bytes_each * 1_000_000


def test_a_training_that_cannot_fit_ends_before_it_begins(tmp_path: Path) -> None:
    check_room_to_train(job_of(tmp_path))
    job = job_of(tmp_path, numbers=1000 * MORE_THAN_ANY_DISK)
    with pytest.raises(StorageError) as caught:
        check_room_to_train(job)
    line = str(caught.value)
    assert (
        line.startswith(f"{job.folder.path}: cannot be written (") and "writes at least 33,527.6 GiB" in line
    )
    assert line.endswith("make room, or lower keep_checkpoints, then run again") and "\n" not in line


class Said(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_less_than_the_plan_expects_is_said_and_noted_until_there_is_room(tmp_path: Path) -> None:
    said = Said()
    for model, warned in (("/data/models/Giant-90000B", True), ("embedded", False)):
        config = load_config(None, [f"model.path={model}", "name=r1", "model.dialect=qwen3"])
        run = Run(config, RunFolder(tmp_path / "r1"), load_pack(pack_path("embedded")), said)
        folder = run.folder.stage(1, Stage.SOLVER)
        folder.work.mkdir(parents=True, exist_ok=True)
        warn_of_little_room(run, 1, Stage.SOLVER)
        assert folder.room.exists() is warned
        if warned:
            note = folder.room.read_text()
            assert "are free on its volume, and about " in note and "make room" in note
    assert said.lines == [f"warning: {note.strip()}"]


def test_one_of_several_workers_says_so_before_it_makes_tasks(tmp_path: Path) -> None:
    said = Said()
    settings = ["model.path=/data/models/Giant-90000B", "model.dialect=qwen3", "corpus.path=embedded"]
    # A server that does not answer: no engine is loaded.
    settings += ["partners.challenger.base_url=http://127.0.0.1:9/v1", f"tasks.target={10**12}", "name=r1"]
    run = Run(load_config(None, settings), RunFolder(tmp_path / "r1"), load_pack(pack_path("embedded")), said)
    with pytest.raises(CheckpointError, match="no such model directory"):
        make_share(run, 1, shard=Shard(0, 2))
    assert said.lines == [f"warning: {run.folder.stage(1, Stage.TASKS).room.read_text().strip()}"]
