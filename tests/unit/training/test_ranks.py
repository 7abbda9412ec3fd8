"""Who may make ranks wait for each other: `training.ranks`, and torch's own sharding and checkpoints at two seams."""

import ast
from collections.abc import Iterator
from pathlib import Path

LIBRARY = Path(__file__).resolve().parents[3] / "scope_selfplay"
RANKS = "training/ranks.py"
SEAMS = {
    "training/checkpoint.py": {
        "torch.distributed.checkpoint.api.CheckpointException",
        "torch.distributed.checkpoint.state_dict_loader.load",
        "torch.distributed.checkpoint.state_dict_saver.save",
    },
    "training/model.py": {
        "full_tensor",
        "torch.distributed.checkpoint.state_dict.StateDictOptions",
        "torch.distributed.checkpoint.state_dict.set_model_state_dict",
        "torch.distributed.device_mesh.init_device_mesh",
        "torch.distributed.fsdp.CPUOffloadPolicy",
        "torch.distributed.fsdp.MixedPrecisionPolicy",
        "torch.distributed.fsdp.fully_shard",
    },
}
"""Collective calls that are no control: of weights, and of the parts of a checkpoint."""
OF_TENSORS = {"full_tensor", "redistribute"}


def collective_names(tree: ast.AST) -> Iterator[str]:
    """What a file takes from torch.distributed, or asks a sharded tensor for."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("torch.distributed"):
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.ImportFrom(module="torch"):
                yield from ("torch.distributed" for alias in node.names if alias.name == "distributed")
            case ast.Import():
                names = (alias.name for alias in node.names)
                yield from (name for name in names if name.startswith("torch.distributed"))
            case ast.Attribute(attr=attribute):
                if attribute in OF_TENSORS:
                    yield attribute
                elif (name := ast.unparse(node)).startswith("torch.distributed."):
                    yield name


def test_ranks_alone_makes_ranks_wait_for_each_other() -> None:
    found = {
        str(path.relative_to(LIBRARY)): set(collective_names(ast.parse(path.read_text(encoding="utf-8"))))
        for path in sorted(LIBRARY.rglob("*.py"))
    }
    assert found.pop(RANKS)
    assert {path: names for path, names in found.items() if names} == SEAMS
