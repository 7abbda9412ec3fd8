"""Whole steps on a GPU, episodes included: tokens per second, and how much of a step is neither generation nor update.

The Challenger's reward is itself generation (the frozen Solver answers its tasks), so only the Solver's share is held
to the limit.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")
pytest.importorskip("trl", reason="needs the train extra")
pytest.importorskip("bm25s", reason="needs the local extra")

from scope_selfplay.store import Stage
from tests.gpu.real_steps import Size, measure, said, write_down, write_policy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU; torch sees none"),
]

GIB = 2**30
OUTSIDE = 0.10
# Trained weights with gradients, moments and reference in float32, a copy or two that sample, and their cache.
NEEDS_GIB = 72
SIZE = Size(
    "1.7B",
    {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    words=151_936,
    thought=150,
    batch=2,
    group=8,
    slots=16,
    length=1024,
)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    have = torch.cuda.get_device_properties(0).total_memory / GIB
    if have < NEEDS_GIB:
        pytest.skip(f"needs {NEEDS_GIB} GiB of GPU memory, this one has {have:.0f}")
    return write_policy(SIZE, tmp_path_factory.mktemp("policy"), "cuda")


@pytest.mark.parametrize("engine", ["in_process", "vllm_colocated"])
@pytest.mark.parametrize("role", [Stage.CHALLENGER, Stage.SOLVER])
def test_a_step_with_real_episodes(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], role: Stage, engine: str
) -> None:
    if engine == "vllm_colocated" and find_spec("vllm") is None:
        pytest.skip("needs vLLM: pip install 'scope-selfplay[gpu]'")
    torch.cuda.reset_peak_memory_stats()
    found = measure(policy, SIZE, role, engine, tmp_path)
    write_down(found, {"batch": SIZE.batch, "group_size": SIZE.group, "max_length": SIZE.length})
    with capsys.disabled():
        print(said(found))
    assert found.searches > 0 and found.generated_per_second > 0
    if role is Stage.SOLVER:
        assert found.outside <= OUTSIDE, said(found)
