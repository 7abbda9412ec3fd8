"""A low-rank adapter learns over M0 through all iterations, and its KL is to M0 wherever it starts."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")
pytest.importorskip("peft", reason="needs the train extra")

from scope_selfplay.config import LoraConfig
from scope_selfplay.errors import CheckpointError
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.trained_model import trained_model
from tests.integration.loop.seam import by_member, furthest, job_of, same, train, with_model

pytestmark = pytest.mark.integration

LORA = LoraConfig(rank=4, alpha=64.0, target_modules=("q_proj", "v_proj"))


def first_kl(job: GrpoJob) -> float:
    train(job, by_member)
    return float(read_rows(job.folder.metrics)[0]["kl"])


def adapted(policy: Path, folder: Path, start: Path | None = None) -> GrpoJob:
    job = job_of(policy, folder, start=start, steps=2, kl_beta=0.1, learning_rate=5e-2)
    return with_model(job, job.options.model.model_copy(update={"lora": LORA}))


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
    with pytest.raises(CheckpointError, match=r"holds an adapter of rank 4.*model.lora asks for rank 8"):
        trained_model(checkpoint, random_policy, LORA.model_copy(update={"rank": 8}))
