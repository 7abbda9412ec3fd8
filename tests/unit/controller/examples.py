"""Run configs and manifest contexts for the controller's tests."""

from typing import Any

from scope_selfplay.cluster.pods import ManifestContext, Owner
from scope_selfplay.config.load import parse_config
from scope_selfplay.config.run import RunConfig

PAPER: dict[str, Any] = {
    "name": "r1",
    "domain": "wikipedia",
    "model": {"path": "/data/models/Qwen2.5-7B-Instruct"},
    "judge": {"kind": "model", "endpoint": {"base_url": "http://r1-judge:8000/v1"}},
    "cluster": {
        "images": {"worker": "registry.example/scope:1", "trainer": "registry.example/scope-train:1"},
        "judge": {"model": "/data/models/Qwen3-8B", "args": ["--max-model-len", "32768"]},
        "retriever": {"index": "/data/index/wiki-18"},
    },
}


def sized(**amounts: str) -> dict[str, Any]:
    """A part of a run whose containers ask for these amounts, not for what goes with their GPUs."""
    resources = {"requests": amounts, "limits": amounts}
    return {"pod": {"spec": {"containers": [{"name": "main", "resources": resources}]}}}


TINY: dict[str, Any] = PAPER | {
    "name": "tiny",
    "model": {"path": "embedded"},
    "cluster": {"tiny": True, "retriever": {"cpu": "1", "memory": "1Gi"}},
}


def config_of(data: dict[str, Any], **changes: Any) -> RunConfig:
    return parse_config(data | changes)


def context_of(config: RunConfig, fence: int = 1) -> ManifestContext:
    owner = Owner(f"{config.name}-controller", "11111111-2222-3333-4444-555555555555")
    return ManifestContext(config, "0123456789abcdef", (config.domain,), owner, fence)
