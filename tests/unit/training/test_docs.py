"""The training page names what training writes and takes."""

from pathlib import Path
from typing import get_args

from scope_selfplay.config.training import TrainConfig
from scope_selfplay.designs.answers import behaviour_metrics
from scope_selfplay.rewards.measures import RolloutClock, joined_values
from scope_selfplay.training.loss import PassTotals
from scope_selfplay.training.metrics import group_metrics, row_metrics, update_metrics
from scope_selfplay.training.passes import RolloutShare, RowSize
from scope_selfplay.training.rows import RewardedRollout, TrainingRow

PAGE = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")


def test_every_loss_and_metric_of_the_trainer_is_named() -> None:
    losses = get_args(TrainConfig.model_fields["loss"].annotation)
    rows = row_metrics([RewardedRollout([TrainingRow([1], [2], [1], [0.0])], 1.0, truncated=True)])
    assert joined_values([rows]) == {"rows": 1.0, "split": 0.0, "truncated": 1.0}
    groups = group_metrics([[RolloutShare(1.0, True, (RowSize(2, 1),))]], [[0.0]])
    update = update_metrics(PassTotals(), 0.0)
    for name in (*losses, *rows, *groups, *update, *RolloutClock().seconds(), *behaviour_metrics([])):
        assert f"`{name}`" in PAGE, name
