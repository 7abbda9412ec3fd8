"""The engine's log-probabilities beside the trainer's: measured in every step, and made up for where that is asked."""

import math
from pathlib import Path

import pytest
import torch

from scope_selfplay.config.training import SolverConfig
from scope_selfplay.inference.checkpoints import load_model
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.loss import PassTotals, PolicyLoss, loss_of, sampling_cap
from scope_selfplay.training.passes import BatchRow, batch_of
from scope_selfplay.training.rows import RewardedRollout, TrainingRow
from tests.integration.loop.seam import Score, furthest, job_of, train_on

PROMPT, TAIL = [40, 41, 42], [70, 71]


def apart(policy: Path, *distances: float) -> Score:
    """Rollouts whose engine gave their tokens log-probabilities so far above the trained model's."""
    model = load_model(policy)

    def score(record: str, member: int, step: int) -> RewardedRollout:
        ids = [60 + member, 61, 62 + int(record[1:])]
        with torch.no_grad():
            logps = model(input_ids=torch.tensor([PROMPT + ids])).logits[0].log_softmax(-1)
        true = [float(logps[len(PROMPT) - 1 + place, token]) for place, token in enumerate(ids)]
        said = [one + distance for one, distance in zip(true, distances, strict=True)]
        return RewardedRollout(
            [TrainingRow(PROMPT, ids + TAIL, [1, 1, 1, 0, 0], [*said, 0.0, 0.0])], float(member)
        )

    return score


def line_of(job: GrpoJob, score: Score) -> dict[str, float]:
    train_on(job, score)
    (line,) = read_rows(job.folder.metrics)
    return line


def test_the_distance_is_measured_over_sampled_tokens_and_changes_nothing(
    random_policy: Path, tmp_path: Path
) -> None:
    near = job_of(random_policy, tmp_path / "near", kl_beta=0.0)
    line = line_of(near, apart(random_policy, 0.0, 0.0, 0.0))
    assert line["sampling_drift"] < 1e-4
    far = job_of(random_policy, tmp_path / "far", kl_beta=0.0)
    line = line_of(far, apart(random_policy, 0.5, -1.5, 1.0))
    assert line["sampling_drift"] == pytest.approx(1.0, abs=1e-3)
    assert line["sampling_drift_max"] == pytest.approx(1.5, abs=1e-3)
    assert furthest(near.folder.checkpoint, far.folder.checkpoint) == 0.0


@pytest.mark.parametrize(
    ("distance", "weight"), [(0.0, 1.0), (math.log(2), 0.5), (-math.log(1.5), 1.5), (-math.log(4), 2.0)]
)
@pytest.mark.parametrize("loss", ["grpo", "cispo", "gspo"])
def test_weights_make_up_for_the_distance_up_to_the_cap(
    random_policy: Path, tmp_path: Path, loss: str, distance: float, weight: float
) -> None:
    score = apart(random_policy, distance, distance, distance)
    plain = line_of(job_of(random_policy, tmp_path / "plain", kl_beta=0.0, loss=loss), score)
    weighed = job_of(random_policy, tmp_path / "weighed", kl_beta=0.0, loss=loss, sampling_cap=2.0)
    assert line_of(weighed, score)["grad_norm"] == pytest.approx(weight * plain["grad_norm"], rel=1e-3)


def test_greedy_tokens_weigh_as_much_as_without_weights_and_are_not_measured() -> None:
    """The anchor of ArenaRL: an engine scores greedy tokens at temperature 1, the trainer at that of the run."""
    drawn, greedy = (TrainingRow([1], [5, 6], [1, 1], said) for said in ([-3.5, -2.0], [math.nan] * 2))
    batch = batch_of([BatchRow(greedy, 1.0, 0.25), BatchRow(drawn, 1.0, 0.25)], 0, "cpu", packed=False)
    logps = torch.full(batch.ids.shape, -3.0)
    total, measured = PolicyLoss(loss_of(SolverConfig()), 0.0, 3.0).of_pass(batch, logps, None, logps)
    found = PassTotals(*measured.tolist())
    assert (found.drawn, found.drift, found.drift_max) == (2.0, 1.5, 1.0)
    assert float(total) == pytest.approx(-0.25 * (1.0 + 1.0 + math.exp(0.5) + math.exp(-1.0)))


def test_engines_elsewhere_are_weighed_by_default_and_the_one_here_is_not() -> None:
    settings = SolverConfig()
    assert sampling_cap(settings, "in_process") is None
    assert sampling_cap(settings, "in_process", exact=False) == 3.0
    older = SolverConfig(overlap=1)
    assert sampling_cap(older, "in_process") == 3.0
    assert sampling_cap(older.model_copy(update={"sampling_cap": 0.0}), "in_process") is None
    assert sampling_cap(settings, "vllm_server") == sampling_cap(settings, "vllm_colocated") == 3.0
    assert sampling_cap(SolverConfig(sampling_cap=0), "vllm_server") is None
    assert sampling_cap(SolverConfig(sampling_cap=2), "in_process") == 2.0
