"""A low-rank adapter learns over M0 through all iterations, and its KL is to M0 wherever it starts."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from scope_selfplay.base.errors import CheckpointError
from scope_selfplay.config.run import LINEAR_LAYERS
from scope_selfplay.training.engines import whole_weights
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.loop import load
from tests.integration.loop.seam import (
    Killed,
    NoEngine,
    by_member,
    first_kl,
    furthest,
    job_of,
    killed_in,
    loop_of,
    same,
    train_on,
    weights_of,
    with_model,
)


def adapted(policy: Path, folder: Path, start: Path | None = None, steps: int = 2, rank: int = 4) -> GrpoJob:
    job = job_of(policy, folder, start=start, steps=steps, kl_beta=0.1, learning_rate=5e-2)
    return with_model(job, job.options.model.model_copy(update={"lora_rank": rank}))


def test_the_kl_of_an_adapter_is_to_m0_in_every_iteration(random_policy: Path, tmp_path: Path) -> None:
    one = adapted(random_policy, tmp_path / "one")
    assert first_kl(one) == pytest.approx(0.0, abs=1e-6)
    checkpoint = one.folder.checkpoint
    assert not same(checkpoint, random_policy)
    assert {path.name for path in (checkpoint / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    # What the KL of the same start is when all weights are trained and the reference is loaded beside them.
    full = first_kl(job_of(random_policy, tmp_path / "full", start=checkpoint, kl_beta=0.1))
    assert full > 1e-3
    two = adapted(random_policy, tmp_path / "two", start=checkpoint)
    assert first_kl(two) == pytest.approx(full, rel=1e-2)
    assert furthest(two.folder.checkpoint, checkpoint) > 1e-3
    # A start that was trained in full has no adapter: M0 is loaded beside it, and no adapter over it is kept.
    plain = tmp_path / "plain"
    shutil.copytree(checkpoint, plain, ignore=shutil.ignore_patterns("adapter"))
    three = adapted(random_policy, tmp_path / "three", start=plain)
    assert first_kl(three) == pytest.approx(full, rel=1e-2)
    assert not (three.folder.checkpoint / "adapter").exists()
    with pytest.raises(CheckpointError, match=r"holds an adapter of rank 4.*model.lora_rank asks for rank 8"):
        load(adapted(random_policy, tmp_path / "four", start=checkpoint, rank=8))


class Receiving(NoEngine):
    """Keeps the weights that it was last sent."""

    def take(self, model: Any, identity: str) -> None:
        self.weights: dict[str, Any] = {}
        with whole_weights(model) as weights:
            self.weights.update({name: weight.clone() for name, weight in weights})


def test_an_adapter_is_merged_in_float32_and_what_is_frozen_stays_as_it_was(
    random_policy: Path, tmp_path: Path
) -> None:
    job, engine = adapted(random_policy, tmp_path / "stage"), Receiving()
    with job.ranks:
        loop = loop_of(job, engine=engine)
        model = loop.model
        weights = dict(model.network.named_parameters())
        before = {name: weight.clone() for name, weight in weights.items() if not weight.requires_grad}
        loop.run()
        engine.take(model, "the end")
    assert before and all(torch.equal(weights[name], weight) for name, weight in before.items())
    exported, adapter = (
        weights_of(job.folder.checkpoint),
        load_file(job.folder.checkpoint / "adapter" / "adapter_model.safetensors"),
    )
    merged = 0
    for name, weight in weights_of(random_policy).items():
        part = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{part}.lora_A.weight" in adapter:
            up, down = adapter[f"{part}.lora_B.weight"], adapter[f"{part}.lora_A.weight"]
            weight, merged = weight + 32 / 4 * (up @ down), merged + 1
        assert torch.equal(exported[name], weight), name
        assert name not in engine.weights or torch.equal(engine.weights[name], weight), name
    assert merged == len(LINEAR_LAYERS) * model.network.config.num_hidden_layers
    assert exported.keys() - engine.weights.keys() <= {"lm_head.weight"}


def test_a_killed_training_of_an_adapter_ends_with_the_same_bits(random_policy: Path, tmp_path: Path) -> None:
    whole, killed = (adapted(random_policy, tmp_path / name, steps=3) for name in ("whole", "killed"))
    train_on(whole, by_member)
    with pytest.raises(Killed):
        train_on(killed, killed_in(2))
    assert [step for _, step in train_on(killed, by_member)] == [2]
    for file in ("model.safetensors", "adapter/adapter_model.safetensors"):
        one, two = (job.folder.checkpoint / file for job in (whole, killed))
        assert one.read_bytes() == two.read_bytes()
