"""The policy losses by name: their papers' clips, what a token weighs, advantages, and what ends an update."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pytest import approx

from scope_selfplay.base.errors import ExitCode, TrainingError
from scope_selfplay.config.training import ChallengerConfig, SolverConfig
from scope_selfplay.rewards.equations import group_advantages
from scope_selfplay.store.folder import StageFolder
from scope_selfplay.training.job import GrpoJob, TrainingStart
from scope_selfplay.training.loss import (
    AdvantageScale,
    Average,
    Counts,
    advantages,
    check_finite,
    check_first_kl,
    learning_rate,
    loss_of,
    scale_of,
    token_weight,
)

GROUPS = st.lists(
    st.lists(st.none() | st.sampled_from((0.0, 0.4, 1.0)) | st.floats(-9, 9), min_size=1, max_size=8),
    min_size=1,
    max_size=5,
)


CLIPS = {
    "grpo": (0.2, 0.2),
    "dr_grpo": (0.2, 0.2),
    "dapo": (0.2, 0.28),
    "cispo": (1.0, 2.0),
    "gspo": (3e-4, 4e-4),
}


@pytest.mark.parametrize("name", CLIPS)
def test_clips_are_those_of_the_papers(name: str) -> None:
    loss = loss_of(SolverConfig.model_validate({"loss": name}))
    assert (loss.clip_low, loss.clip_high) == CLIPS[name]
    assert (loss.sequence, loss.scaled) == (name == "gspo", name != "dr_grpo")


@given(st.lists(st.integers(1, 500), min_size=1, max_size=8))
def test_trajectories_weigh_the_same_under_grpo_and_tokens_elsewhere(tokens: list[int]) -> None:
    counts, rollouts = Counts(len(tokens), sum(tokens), 1000), len(tokens)
    for length in tokens:
        weights = [token_weight(average, length, counts) for average in Average]
        assert weights == approx([1 / rollouts / length, 1 / sum(tokens), 1 / 1000 / rollouts])


@given(GROUPS)
@example([[0.4] * 8])  # Their mean rounds to something else.
def test_what_is_trained_on_are_the_advantages_of_the_paper(groups: list[list[float | None]]) -> None:
    """Equation 2, exactly 0 where a group is flat; they are also what the metrics are made of."""
    assert advantages(groups, AdvantageScale.GROUP) == [group_advantages(group) for group in groups]
    given_ones = [[reward or 0.0 for reward in group] for group in groups]
    assert advantages(groups, AdvantageScale.GIVEN) == given_ones
    known = [reward for group in groups for reward in group if reward is not None]
    for scale, spread in ((AdvantageScale.STEP, pstdev(known or [0.0]) + 1e-6), (AdvantageScale.NONE, 1.0)):
        for group, found in zip(groups, advantages(groups, scale), strict=True):
            own = [reward for reward in group if reward is not None]
            expected = [0.0 if reward is None else (reward - fmean(own)) / spread for reward in group]
            assert found == (approx(expected, abs=1e-6) if len(set(own)) > 1 else [0.0] * len(group))


def test_sums_of_objectives_are_scaled_by_the_step() -> None:
    def scale(reward: str, loss: str) -> AdvantageScale:
        return scale_of(SolverConfig.model_validate({"reward": reward, "loss": loss}))

    assert scale("gdpo", "grpo") is AdvantageScale.STEP and scale("gdpo", "dr_grpo") is AdvantageScale.NONE
    assert scale("explicit", "grpo") is scale("rubric", "cispo") is AdvantageScale.GROUP
    assert scale_of(ChallengerConfig()) is AdvantageScale.GROUP


def test_a_job_scales_as_its_loss_has_it_but_for_advantages_that_are_given(tmp_path: Path) -> None:
    start, folder = TrainingStart(tmp_path, tmp_path), StageFolder(tmp_path)
    codec: Any = None
    job = GrpoJob(start, SolverConfig(loss="dr_grpo"), [], folder, codec, temperature=1.0, seed=0)
    assert job.scale is AdvantageScale.NONE
    assert replace(job, given_advantages=True).scale is AdvantageScale.GIVEN


def test_the_papers_warm_up_is_one_step_and_a_longer_one_rises_step_by_step() -> None:
    for settings in (ChallengerConfig(), SolverConfig()):
        assert (settings.warmup_ratio, settings.steps) == (0.03, 20)
        assert learning_rate(settings, 0) == settings.learning_rate
    four = SolverConfig(steps=40, warmup_ratio=0.1, learning_rate=1.0)
    assert [learning_rate(four, done) for done in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("loss", "norm", "said"),
    [
        (float("nan"), 1.0, "step 7: the loss is nan, "),
        (0.5, float("inf"), "step 7: the gradient norm is inf, "),
        (float("-inf"), float("nan"), "step 7: the loss is -inf and the gradient norm is nan, "),
    ],
)
def test_a_step_that_is_not_finite_is_named_with_what_to_do(loss: float, norm: float, said: str) -> None:
    check_finite(7, -0.5, 1e6)
    with pytest.raises(TrainingError) as raised:
        check_finite(7, loss, norm)
    assert str(raised.value).startswith(said) and "lower learning_rate" in str(raised.value)
    assert raised.value.exit_code is ExitCode.USER


@pytest.mark.parametrize("kl", [0.06, 0.357, -0.06, float("nan")])
def test_a_first_step_from_m0_that_diverges_from_it_is_refused(kl: float) -> None:
    for rounding in (0.0, 1e-3, -1e-6, 0.05):
        check_first_kl(rounding, Path("m0"))
    with pytest.raises(TrainingError, match="the reference is not what m0 holds"):
        check_first_kl(kl, Path("m0"))
