"""The run folders of SCOPE's three families differ from the paper's numbers nowhere (Table 9, appendices E and G)."""

from pathlib import Path

import pytest

from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig

RUNS = Path(__file__).parents[2] / "k8s" / "runs"
FAMILIES = {"qwen3-8b": "qwen3", "qwen2.5-7b": "qwen2.5", "olmo-3-7b": "olmo3"}
# What a method is made of; model, corpus, judge's place and cluster are a run's own.
METHOD = ("search", "sampling", "challenger", "tasks", "solver", "compare")
# How many rollouts or tokens are in work at once changes no number of the paper.
OWN = {"micro_batch", "micro_tokens", "save_every"}


def method_of(config: RunConfig) -> dict[str, object]:
    found = config.model_dump(mode="json")
    return {part: {name: value for name, value in found[part].items() if name not in OWN} for part in METHOD}


@pytest.mark.parametrize("folder", FAMILIES)
def test_a_family_runs_with_the_papers_numbers(folder: str) -> None:
    config = load_config(RUNS / folder / "run.yaml")
    assert method_of(config) == method_of(RunConfig())
    assert config.iterations == 3 and config.model.max_length == 16_384
    assert config.model.dialect == FAMILIES[folder] and config.domain == "wikipedia"
    assert config.judge.kind == "model" and config.judge.gates == ("entity", "source")
    assert config.cluster.judge.model == config.model.path, "J is M_0"


@pytest.mark.parametrize("folder", FAMILIES)
def test_its_gpus_are_the_papers_six(folder: str) -> None:
    """Appendix E: 6 H100. The Solver's trainer and the judge work at the same time."""
    cluster = load_config(RUNS / folder / "run.yaml").cluster
    assert cluster.judge.gpus + cluster.train_solver.gpus == 6
