"""Promote, keep or stop: the rules as a table."""

from collections.abc import Mapping

import pytest

from scope_selfplay.base.intervals import Estimate
from scope_selfplay.config.run import CompareConfig
from scope_selfplay.evaluation.ratings import Gain, decide_promotion
from scope_selfplay.store.ratings import Decision

BETTER, WORSE, OPEN = (0.02, 0.10), (-0.10, -0.02), (-0.05, 0.05)
VAGUE = (-0.15, 0.15)
PROMOTE, KEEP, STOP = Decision


def gains(known: Mapping[tuple[str, str], tuple[float, float]]) -> Gain:
    def gain(new: str, old: str, *, looks: int = 1) -> Estimate | None:
        if (new, old) not in known:
            return None
        low, high = known[new, old]
        return Estimate(value=(low + high) / 2, low=low, high=high, items=100)

    return gain


@pytest.mark.parametrize(
    ("promotion", "interval", "decision"),
    [
        ("always", WORSE, PROMOTE),
        ("always", None, PROMOTE),
        # The whole interval must lie above minus the tolerance of 0.1: what is not shown is not so.
        ("not_worse", WORSE, KEEP),
        ("not_worse", OPEN, PROMOTE),
        ("not_worse", VAGUE, KEEP),
        ("not_worse", None, KEEP),
        ("better", OPEN, KEEP),
        ("better", BETTER, PROMOTE),
        ("better", None, KEEP),
    ],
)
def test_promotion_needs_the_evidence_that_its_setting_names(
    promotion: str, interval: tuple[float, float] | None, decision: Decision
) -> None:
    known = {("S_1", "S_0"): interval} if interval else {}
    found = decide_promotion(CompareConfig.model_validate({"promotion": promotion}), ["S_0"], gains(known))
    assert (found.decision, found.promoted) == (decision, decision is PROMOTE)
    assert "S_1" in found.reason and "S_0" in found.reason and promotion in found.reason


@pytest.mark.parametrize(("tolerance", "promoted"), [(0.11, True), (0.1, False), (0.05, False)])
def test_not_worse_is_shown_by_an_interval_above_the_tolerance(tolerance: float, promoted: bool) -> None:
    """A Solver that is worse for sure may still be worse by less than is tolerated."""
    settings = CompareConfig(promotion="not_worse", tolerance=tolerance)
    found = decide_promotion(settings, ["S_0"], gains({("S_1", "S_0"): WORSE}))
    assert found.promoted is promoted
    assert f"not_worse, by less than {tolerance:g} (compare.tolerance)" in found.reason


def test_one_task_shows_nothing() -> None:
    def gain(new: str, old: str, *, looks: int = 1) -> Estimate | None:
        return Estimate(value=1.0, low=None, high=None, items=1)

    for promotion in ("not_worse", "better"):
        settings = CompareConfig.model_validate({"promotion": promotion, "stop": "worse"})
        found = decide_promotion(settings, ["S_0"], gain)
        assert (found.decision, found.promoted) == (KEEP, False)
        assert "S_1 is not told apart from S_0: +1.000 over 1 tasks" in found.reason


def test_patience_asks_for_intervals_of_as_many_looks() -> None:
    asked: list[int] = []

    def gain(new: str, old: str, *, looks: int = 1) -> Estimate | None:
        asked.append(looks)
        return Estimate(value=0.0, low=-0.1, high=0.1, items=100)

    decide_promotion(CompareConfig(stop=3), ["S_0", "S_1", "S_2"], gain)
    assert asked == [1, 3, 3, 3]


@pytest.mark.parametrize(("interval", "decision"), [(WORSE, STOP), (OPEN, PROMOTE), (BETTER, PROMOTE)])
def test_a_worse_solver_ends_the_run_where_asked_and_is_not_promoted(
    interval: tuple[float, float], decision: Decision
) -> None:
    found = decide_promotion(CompareConfig(stop="worse"), ["S_0"], gains({("S_1", "S_0"): interval}))
    assert (found.decision, found.promoted) == (decision, decision is PROMOTE)
    if decision is STOP:
        assert "S_1 is worse than S_0: -0.060 [-0.100, -0.020] over 100 tasks" in found.reason


@pytest.mark.parametrize(
    ("starts", "against_the_first", "decision"),
    [
        (["S_0"], {}, PROMOTE),
        (["S_0", "S_1"], {"S_1": OPEN, "S_2": OPEN}, STOP),
        (["S_0", "S_1"], {"S_1": WORSE, "S_2": OPEN}, STOP),
        # Two gains, each too small to show, together show.
        (["S_0", "S_1"], {"S_1": OPEN, "S_2": BETTER}, PROMOTE),
        (["S_0", "S_1"], {"S_1": BETTER, "S_2": OPEN}, PROMOTE),
        (["S_0", "S_1", "S_2"], {"S_2": OPEN, "S_3": OPEN}, STOP),
        (["S_0", "S_0"], {"S_1": OPEN, "S_2": OPEN}, STOP),
    ],
)
def test_patience_ends_a_run_that_no_iteration_helps(
    starts: list[str], against_the_first: dict[str, tuple[float, float]], decision: Decision
) -> None:
    known = {(f"S_{number + 1}", start): OPEN for number, start in enumerate(starts)}
    known |= {(name, starts[-2]): interval for name, interval in against_the_first.items()}
    found = decide_promotion(CompareConfig(stop=2), starts, gains(known))
    assert found.decision is decision
    if decision is STOP:
        assert found.promoted and f"none of the last 2 is better than {starts[-2]}" in found.reason


def test_what_could_not_be_compared_is_not_a_standstill() -> None:
    found = decide_promotion(CompareConfig(stop=1, promotion="better"), ["S_0"], gains({}))
    assert (found.decision, found.promoted) == (KEEP, False)
    assert "nothing compares S_1 with S_0" in found.reason
