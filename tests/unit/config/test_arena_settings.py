"""Settings of ArenaRL's tournaments act, or are refused."""

import pytest
from pydantic import ValidationError

from scope_selfplay.config.training import SolverConfig


def test_a_setting_that_would_do_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="only with double_elimination"):
        SolverConfig.model_validate({"reward": {"design": "arena", "topology": "swiss", "reset": True}})


@pytest.mark.parametrize("topology", ["round_robin", "anchor", "double_elimination", "swiss"])
def test_the_preset_of_the_paper_takes_every_topology(topology: str) -> None:
    solver = SolverConfig.model_validate({"reward": {"design": "arenarl", "topology": topology}})
    assert solver.reward.design == "arena" and solver.reward.score == "own"
