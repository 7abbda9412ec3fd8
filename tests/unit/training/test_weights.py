"""Weights on disk are named and described without being read into memory."""

import hashlib
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from scope_selfplay.inference.checkpoints import stored_dtype
from scope_selfplay.store.folder import weights_hash


def write_weights(file: Path, **tensors: tuple[str, int]) -> None:
    """A safetensors file of zeros; each tensor is given by its type and its bytes."""
    header, end = {}, 0
    for name, (dtype, size) in tensors.items():
        numbers = size // {"F32": 4, "BF16": 2, "F16": 2}.get(dtype, 1)
        header[name] = {"dtype": dtype, "shape": [numbers], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.truncate(8 + len(text) + end)


def test_the_name_of_weights_is_a_sum_over_all_their_files(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        write_weights(tmp_path / f"model-{number}.safetensors", weight=("F32", 4 * number))
    files = [path.read_bytes() for path in sorted(tmp_path.glob("*.safetensors"))]
    assert weights_hash(tmp_path) == hashlib.sha256(b"".join(files)).hexdigest()[:12]


def test_a_model_larger_than_the_memory_gets_its_name(tmp_path: Path) -> None:
    size, room = 640 << 20, 512 << 20
    write_weights(tmp_path / "model.safetensors", weight=("F32", size))
    assert (tmp_path / "model.safetensors").stat().st_blocks * 512 < 1 << 20, "needs a file with holes"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (room, room))

    program = f"from scope_selfplay.store.folder import *; print(weights_hash(Path({str(tmp_path)!r})))"
    ended = subprocess.run(
        [sys.executable, "-c", program], preexec_fn=limit, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr[-500:]
    assert len(ended.stdout.strip()) == 12


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ({"weight": ("BF16", 1000), "norm": ("F32", 40)}, "bfloat16"),
        ({"weight": ("F32", 1000), "half": ("F16", 40)}, "float32"),
        ({"weight": ("F16", 1000)}, "float16"),
        ({"weight": ("F8_E4M3", 1000), "scale": ("F32", 40)}, "float32"),
    ],
)
def test_a_model_has_the_data_type_of_most_of_its_weights(
    tmp_path: Path, tensors: dict[str, tuple[str, int]], expected: str
) -> None:
    write_weights(tmp_path / "model-1.safetensors", **tensors)
    write_weights(tmp_path / "model-2.safetensors", other=("F32", 4))
    assert stored_dtype(tmp_path) == expected
