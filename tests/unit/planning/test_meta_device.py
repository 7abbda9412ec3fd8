"""The memory of a plan against models on torch's meta device, sharded as they are for training."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scope_selfplay.config.load import load_config
from scope_selfplay.plan.memory import GIB, Trainer, gpu_peaks, pinned_bytes
from scope_selfplay.plan.size import KNOWN, Assumptions, ModelShape, model_size

torch = pytest.importorskip("torch", reason="needs the train extra")
transformers = pytest.importorskip("transformers", reason="needs the train extra")

pytestmark = pytest.mark.integration

FAMILIES = {"qwen3": "Qwen3Config", "qwen2.5": "Qwen2Config", "olmo": "Olmo3Config"}
SMALL = ModelShape(4, 256, 256, 128, 768, 1000)
SHAPES = {**KNOWN, "qwen3-small": SMALL, "qwen3-small-tied": SMALL._replace(tied=True)}
WITHIN = 0.05


def config_of(name: str) -> Any:
    shape = SHAPES[name]
    kind = next(kind for family, kind in FAMILIES.items() if name.startswith(family))
    width = 64 if "small" in name else 128
    return getattr(transformers, kind)(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.between,
        num_attention_heads=shape.queries // width,
        num_key_value_heads=shape.keys // width,
        head_dim=width,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
        pad_token_id=None,
        eos_token_id=None,
    )


def on_meta(config: Any, dtype: Any) -> Any:
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)


class Walked(NamedTuple):
    """Bytes of one rank's shards, the sizes of its tensors, and the parameters of each unit as they are wrapped."""

    local: int
    tensors: Sequence[int]
    units: Sequence[int]


@pytest.fixture
def ranks() -> Iterator[Any]:
    """Begins a group of so many ranks, of which only the first exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def begin(world: int) -> None:
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)

    yield begin
    torch.distributed.destroy_process_group()


def walk(model: Any, monkeypatch: pytest.MonkeyPatch, copies: int = 1) -> Walked:
    """Shard a model as it is in training, and count."""
    from torch.distributed import fsdp
    from torch.distributed.tensor import DTensor

    from scope_selfplay.training.model import Placement, shard

    units: list[int] = []

    def recorded(module: Any, **options: Any) -> Any:
        own = {id(each): each for each in module.parameters()}
        units.append(sum(each.numel() for each in own.values() if not isinstance(each, DTensor)))
        return fully_shard(module, **options)

    fully_shard = fsdp.fully_shard
    monkeypatch.setattr(fsdp, "fully_shard", recorded)
    processes = torch.distributed.get_world_size()
    shard(model, Placement(torch.device("cpu"), torch.bfloat16, processes // copies, sharded=True), processes)
    monkeypatch.undo()
    tensors = [each.to_local().numel() * each.element_size() for each in model.parameters()]
    return Walked(sum(tensors), tensors, units)


@pytest.mark.parametrize(
    ("name", "gpus", "nodes"),
    [
        *((name, 4, 1) for name in SHAPES),
        ("qwen3-small", 2, 1),
        *((name, 4, 2) for name in ("olmo-3-7b", "qwen3-small-tied")),
    ],
)
def test_shards_and_gathered_units_are_those_that_fsdp2_makes(
    name: str, gpus: int, nodes: int, ranks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(name)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    size = model_size(str(tmp_path))
    ranks(gpus * nodes)
    policy = walk(on_meta(config, torch.float32), monkeypatch, nodes)
    reference = walk(on_meta(config, torch.bfloat16), monkeypatch, nodes)

    settings = load_config(None, [f"model.path={tmp_path}"])
    trainer = Trainer(
        settings.model, settings.solver, gpus, size, Assumptions(), nodes=nodes, sharding="hybrid"
    )
    parts = gpu_peaks(trainer, offloaded=False)["updating"]
    assert parts["weights"] == pytest.approx(policy.local / GIB, rel=WITHIN)
    assert parts["gradients"] == pytest.approx(policy.local / GIB, rel=WITHIN)
    assert parts["optimizer"] == pytest.approx(2 * policy.local / GIB, rel=WITHIN)
    assert parts["reference"] == pytest.approx(reference.local / GIB, rel=WITHIN)

    shape = SHAPES[name]
    tables = [shape.table] * (not shape.tied) + [shape.table + shape.hidden]
    expected = [size.layer] * shape.layers + tables
    assert policy.units == pytest.approx(expected, rel=WITHIN)
    pinned = sum(1 << (each - 1).bit_length() for each in policy.tensors)
    assert pinned_bytes(size, gpus, 4) == pytest.approx(pinned, rel=WITHIN)


@pytest.mark.parametrize("name", KNOWN)
def test_the_shapes_that_are_known_by_name_are_those_of_the_models(name: str) -> None:
    model = on_meta(config_of(name), torch.bfloat16)
    counted = sum(each.numel() for each in model.parameters())
    assert model_size(f"/models/{name}").parameters == pytest.approx(counted, rel=0.001)
