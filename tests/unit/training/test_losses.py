"""The policy losses by name: their papers' clips, what a token weighs, advantages, and what ends an update."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scope_selfplay.base.errors import ExitCode, TrainingError
from scope_selfplay.config.training import ChallengerConfig, SolverConfig
from scope_selfplay.rewards.equations import group_advantages
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


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("grpo", 0.2, 0.2),
        ("dr_grpo", 0.2, 0.2),
        ("dapo", 0.2, 0.28),
        ("cispo", 1.0, 2.0),
        ("gspo", 3e-4, 4e-4),
    ],
)
def test_clips_are_those_of_the_papers(name: str, low: float, high: float) -> None:
    loss = loss_of(SolverConfig.model_validate({"loss": name}))
    assert (loss.clip_low, loss.clip_high) == (low, high)
    assert (loss.sequence, loss.scaled) == (name == "gspo", name != "dr_grpo")


@given(st.lists(st.integers(1, 500), min_size=1, max_size=8))
def test_under_grpo_every_trajectory_with_tokens_weighs_the_same(tokens: list[int]) -> None:
    counts = Counts(len(tokens), sum(tokens), 1000)
    for length in tokens:
        weight = token_weight(Average.TRAJECTORIES, length, counts)
        assert weight * length == pytest.approx(1 / len(tokens))


def test_token_means_weigh_all_tokens_alike() -> None:
    counts = Counts(2, 12, 100)
    assert [token_weight(Average.TOKENS, length, counts) for length in (3, 9)] == [1 / 12, 1 / 12]
    assert [token_weight(Average.BUDGET, length, counts) for length in (3, 9)] == [1 / 200, 1 / 200]


@given(GROUPS)
@example([[0.4] * 8])  # Their mean rounds to something else.
def test_what_is_trained_on_are_the_advantages_of_the_paper(groups: list[list[float | None]]) -> None:
    """Equation 2, exactly 0 where a group is flat; they are also what the metrics are made of."""
    assert advantages(groups, AdvantageScale.GROUP) == [group_advantages(group) for group in groups]
    given_ones = [[reward or 0.0 for reward in group] for group in groups]
    assert advantages(groups, AdvantageScale.GIVEN) == given_ones
    for scale in (AdvantageScale.GROUP, AdvantageScale.STEP, AdvantageScale.NONE):
        for group, found in zip(groups, advantages(groups, scale), strict=True):
            if len({reward for reward in group if reward is not None}) < 2:
                assert found == [0.0] * len(group)


@given(GROUPS)
def test_a_step_divides_what_it_centres_by_group_by_the_deviation_of_all(
    groups: list[list[float | None]],
) -> None:
    known = [reward for group in groups for reward in group if reward is not None]
    mean = sum(known) / max(1, len(known))
    deviation = (sum((reward - mean) ** 2 for reward in known) / max(1, len(known))) ** 0.5
    plain, scaled = advantages(groups, AdvantageScale.NONE), advantages(groups, AdvantageScale.STEP)
    for group, centred, divided in zip(groups, plain, scaled, strict=True):
        own = [reward for reward in group if reward is not None]
        middle = sum(own) / max(1, len(own))
        assert centred == pytest.approx([0.0 if each is None else each - middle for each in group])
        assert divided == pytest.approx([each / (deviation + 1e-6) for each in centred])


@pytest.mark.parametrize(
    ("reward", "loss", "scale"),
    [
        ("gdpo", "grpo", AdvantageScale.STEP),
        ("explicit", "grpo", AdvantageScale.GROUP),
        ("rubric", "cispo", AdvantageScale.GROUP),
        ("gdpo", "dr_grpo", AdvantageScale.NONE),
    ],
)
def test_sums_of_objectives_are_scaled_by_the_step(reward: str, loss: str, scale: AdvantageScale) -> None:
    assert scale_of(SolverConfig.model_validate({"reward": reward, "loss": loss})) is scale
    assert scale_of(ChallengerConfig()) is AdvantageScale.GROUP


@pytest.mark.parametrize("role", [ChallengerConfig, SolverConfig])
def test_the_papers_warm_up_is_one_step_that_has_the_whole_learning_rate(
    role: type[ChallengerConfig] | type[SolverConfig],
) -> None:
    settings = role()
    assert (settings.warmup_ratio, settings.steps) == (0.03, 20)
    assert learning_rate(settings, 0) == settings.learning_rate


def test_a_warm_up_of_four_steps_rises_by_a_quarter() -> None:
    settings = SolverConfig(steps=40, warmup_ratio=0.1, learning_rate=1.0)
    assert [learning_rate(settings, done) for done in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


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
