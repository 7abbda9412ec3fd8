"""What a training exports has the data type of M0, in files of bounded size, while training itself stays exact."""

import json
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.config.run import ModelConfig
from scope_selfplay.inference.checkpoints import load_model, policy_path, stored_dtype
from scope_selfplay.store.folder import weights_hash
from scope_selfplay.training import checkpoint
from tests.integration.loop.seam import (
    Killed,
    by_member,
    job_of,
    killed_in,
    same,
    train_on,
    weights_of,
    with_model,
)


@pytest.fixture
def half_policy(random_policy: Path, tmp_path: Path) -> Path:
    """The random policy in bfloat16, as the models of the papers are."""
    from transformers import AutoTokenizer

    folder = tmp_path / "half"
    load_model(random_policy, precision="bfloat16").save_pretrained(str(folder))
    AutoTokenizer.from_pretrained(str(random_policy)).save_pretrained(str(folder))
    assert stored_dtype(folder) == "bfloat16"
    return folder


def dtypes_of(folder: Path) -> set[str]:
    from safetensors import safe_open

    found = set()
    for file in folder.glob("*.safetensors"):
        with safe_open(str(file), "pt") as opened:
            found |= {str(opened.get_slice(name).get_dtype()) for name in opened.keys()}  # noqa: SIM118
    return found


@pytest.mark.parametrize("rank", [0, 4])
def test_an_export_has_the_data_type_of_m0(
    random_policy: Path, half_policy: Path, tmp_path: Path, rank: int
) -> None:
    model = ModelConfig(lora_rank=rank)
    for base, dtype, name in ((random_policy, "F32", "float32"), (half_policy, "BF16", "bfloat16")):
        job = with_model(job_of(base, tmp_path / name), model)
        train_on(job, by_member)
        assert dtypes_of(job.folder.checkpoint) == {dtype}
        assert json.loads((job.folder.checkpoint / "config.json").read_text())["dtype"] == name
        assert not same(job.folder.checkpoint, base)
    exact = with_model(
        job_of(half_policy, tmp_path / "exact"), model.model_copy(update={"export_dtype": "float32"})
    )
    train_on(exact, by_member)
    assert dtypes_of(exact.folder.checkpoint) == {"F32"}
    # Servers go by the config, and serve it as they serve M0.
    assert json.loads((exact.folder.checkpoint / "config.json").read_text())["dtype"] == "bfloat16"


def test_updates_too_small_for_bfloat16_are_kept_in_float32_exports_alone(
    half_policy: Path, tmp_path: Path
) -> None:
    """The learning rate of the papers: a step moves a weight by 1e-6, neighbours in bfloat16 are up to 1e-3 apart."""
    moved = {}
    for dtype in ("base", "float32"):
        job = job_of(half_policy, tmp_path / dtype, learning_rate=1e-6)
        train_on(with_model(job, ModelConfig(export_dtype=dtype)), by_member)
        before, after = weights_of(half_policy), weights_of(job.folder.checkpoint)
        changed = sum(int((before[name] != after[name]).sum()) for name in before)
        moved[dtype] = changed / sum(weight.numel() for weight in before.values())
    assert moved["float32"] > 0.5 and moved["base"] < 0.05, moved


def test_training_from_bfloat16_goes_on_exactly_after_a_kill(half_policy: Path, tmp_path: Path) -> None:
    exact = ModelConfig(export_dtype="float32")

    def job(name: str) -> Any:
        return with_model(job_of(half_policy, tmp_path / name, steps=3, learning_rate=1e-6), exact)

    train_on(job("whole"), by_member)
    with pytest.raises(Killed):
        train_on(job("killed"), killed_in(2))
    assert [step for _, step in train_on(job("killed"), by_member)] == [2]
    assert same(tmp_path / "whole" / "checkpoint", tmp_path / "killed" / "checkpoint")


def test_a_large_export_is_cut_into_files_that_load_as_one(
    random_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = job_of(random_policy, tmp_path / "whole"), job_of(random_policy, tmp_path / "cut")
    train_on(whole, by_member)
    assert checkpoint.LARGEST_FILE == "5GB"
    monkeypatch.setattr(checkpoint, "LARGEST_FILE", "100KB")
    train_on(cut, by_member)
    sizes = [file.stat().st_size for file in cut.folder.checkpoint.glob("*.safetensors")]
    assert len(sizes) > 2 and max(sizes) < 200_000
    assert same(whole.folder.checkpoint, policy_path(str(cut.folder.checkpoint)))
    assert weights_hash(cut.folder.checkpoint) != weights_hash(whole.folder.checkpoint)
