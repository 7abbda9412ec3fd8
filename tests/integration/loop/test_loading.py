"""Weights are loaded from safetensors or not at all."""

import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")

from scope_selfplay.errors import CheckpointError
from scope_selfplay.inference.checkpoints import load_model

pytestmark = pytest.mark.integration


def test_pickled_weights_are_not_loaded_whatever_lies_beside_them(
    random_policy: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "pickled"
    shutil.copytree(random_policy, folder)
    torch.save(load_model(folder).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "rotary.safetensors")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_model(folder)
