"""Every exact case of tests/reference/ranking_cases.json, one check each."""

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from scope_selfplay.base.values import Outcome
from scope_selfplay.ranking.balanced import position_offset
from scope_selfplay.ranking.driver import play
from scope_selfplay.ranking.matches import (
    ComparisonGraph,
    Match,
    bradley_terry,
    is_flat,
    min_max,
    rank_rewards,
    soft_share,
)
from scope_selfplay.ranking.topologies import (
    LiveLeaderboard,
    anchor,
    bracket_slots,
    double_elimination,
    group_tournament,
    round_robin,
    single_elimination,
    swiss,
)
from tests.reference_files import read_reference
from tests.unit.ranking.judges import Unshuffled, best_of, drive, live, lower_number

Case = dict[str, Any]


def costs(topology: Callable[[int], Any]) -> Callable[[Case], None]:
    """The check of what a topology costs; calls are matches, or presentations when each is shown in both orders."""

    def check(case: Case) -> None:
        for n, *expected in columns(case, "N", *case["expected"]):
            driven = drive(topology(n), lower_number)
            calls, waves = driven.calls, len(driven.waves)
            found = {"matches": calls, "calls": calls, "calls_bidirectional": 2 * calls, "depth": waves}
            assert [(found | {"rounds": waves})[name] for name in case["expected"]] == expected

    return check


def check_group_tournament_calls(case: Case) -> None:
    for (n, size, winners, final, repeats), calls, rounds in columns(
        case, "K_G_Kwin_Kfinal_M", "calls", "rounds_per_repeat"
    ):
        shape = {"group_size": size, "winners": winners, "final": final, "repeats": repeats}
        driven = drive(group_tournament(n, random.Random(0), **shape), best_of(range(n), winners))
        assert (driven.calls, len(driven.waves)) == (calls, rounds)


def check_min_max(case: Case) -> None:
    rewards = min_max(case["input"]["s"], case["input"]["eps"])
    assert rewards == pytest.approx(case["expected"]["r"], abs=case["tol"])


def check_rank_rewards(case: Case) -> None:
    rewards = rank_rewards([-float(rank) for rank in case["input"]["ranks"]])
    assert rewards == pytest.approx(case["expected"]["r"], abs=case["tol"])


def played_in_both_orders(straight: Outcome, swapped: Outcome) -> tuple[Outcome, ComparisonGraph]:
    """What the topology hears of a match, and its graph."""
    heard = []

    async def compare(match: Match) -> Outcome:
        return straight if match == Match(0, 1) else swapped

    def topology():
        heard.extend((yield [Match(0, 1)]))
        return [0.0, 0.0]

    played = asyncio.run(play(topology(), compare, both_orders=True, identity=range(8)))
    return heard[0], played.graph


def check_both_orders(case: Case) -> None:
    heard, _ = played_in_both_orders(*(Outcome(**case["input"][order]) for order in ("order_ij", "order_ji")))
    # The paper adds the two orders, we average them.
    assert [2 * score for score in heard] == [case["expected"]["S_i"], case["expected"]["S_j"]]
    assert case["expected"]["winner"] == "j" and heard.second > heard.first


def check_bracket_slots(case: Case) -> None:
    expected = case["expected"]
    assert bracket_slots(8) == expected["N8_slots_by_seed(0-based)"]
    # With entrant 0 as anchor and the lower number always winning, seed and number are the same.
    assert first_round(8) == expected["N8_round1"]
    for n in (6, 5):
        playing = [entrant for match in first_round(n) for entrant in match]
        assert first_round(n) == expected[f"N{n}_round1"]["matches"]
        assert sorted(set(range(n)) - set(playing)) == expected[f"N{n}_round1"]["byes"]


def check_group_tournament_run(case: Case) -> None:
    given, expected = case["input"], case["expected"]
    shape = {
        "group_size": given["G"],
        "winners": given["K_win"],
        "final": given["K_final"],
        "repeats": given["M"],
    }
    topology = group_tournament(given["K"], Unshuffled(), **shape)
    driven = drive(topology, lambda group: sorted(group)[: given["K_win"]])
    assert (driven.strengths, driven.calls) == (expected["s"], expected["calls"])
    assert min_max(driven.strengths, 0.0) == pytest.approx(expected["r_eps0"], abs=case["tol"])


def check_bradley_terry(case: Case) -> None:
    shares = [tuple(share) for share in case["input"]["matches_i_j_oij"]]
    beta = bradley_terry(case["input"].get("N", 2), shares)
    assert beta == pytest.approx(case["expected"]["beta"], abs=case["tol"])
    if "minmax" in case["expected"]:
        assert min_max(beta, 0.0) == pytest.approx(case["expected"]["minmax"], abs=case["tol"])
    if "advantage" in case["expected"]:
        rewards = min_max(beta)
        assert [reward - sum(rewards) / len(rewards) for reward in rewards] == case["expected"]["advantage"]


def check_soft_outcome(case: Case) -> None:
    verdicts = {"A": Outcome(1.0, 0.0), "Tie": Outcome(1.0, 1.0), "B": Outcome(0.0, 1.0)}
    gamma = case["input"]["gamma"]
    for verdict, first, second in zip(
        case["input"]["verdicts"], case["expected"]["o_ij"], case["expected"]["o_ji"], strict=True
    ):
        shown = verdicts[verdict]
        assert soft_share(shown, gamma) == pytest.approx(first, abs=case["tol"])
        assert soft_share(Outcome(shown.second, shown.first), gamma) == pytest.approx(second, abs=case["tol"])


def check_win_rate(case: Case) -> None:
    shares = case["input"]["o"]

    def judge(match: Match) -> Outcome:
        return Outcome(shares[match.first][match.second], shares[match.second][match.first])

    rates = drive(round_robin(case["input"]["N"], gamma=0.9), judge).strengths
    assert rates == pytest.approx(case["expected"]["R"], abs=case["tol"])


def check_routing(case: Case) -> None:
    routed = [is_flat(rewards) for rewards in case["input"]["groups"]]
    assert routed == case["expected"]["route_to_tournament"]


def check_log_probabilities(case: Case) -> None:
    straight, swapped = (
        Outcome(case["input"][key]["A"], case["input"][key]["B"]) for key in ("order_ij", "order_ji")
    )
    expected, tolerance = case["expected"], case["tol"]
    debiased, graph = played_in_both_orders(straight, swapped)
    shares = win_probability(straight), 1 - win_probability(swapped)
    assert shares[0] == pytest.approx(expected["p_i_order_ij"], abs=tolerance)
    assert shares[1] == pytest.approx(expected["p_i_order_ji"], abs=tolerance)
    assert sum(shares) / 2 == pytest.approx(expected["p_i_mean"], abs=tolerance)
    assert debiased.first - debiased.second == pytest.approx(expected["logit_debiased"], abs=tolerance)
    assert win_probability(debiased) == pytest.approx(expected["p_i_from_debiased_logit"], abs=tolerance)
    assert position_offset([graph]) == pytest.approx(expected["position_bias_logit"], abs=tolerance)


def win_probability(outcome: Outcome) -> float:
    """Of the first entrant, where the two scores are logits."""
    return 0.5 + 0.5 * math.tanh((outcome.first - outcome.second) / 2)


def check_live_opponents(case: Case) -> None:
    board = LiveLeaderboard()
    calls = 0
    for step, entrant in zip(case["expected"]["steps"], case["input"]["arrival"], strict=True):
        assert step["arrives"] == entrant
        ranked = board.leaderboard()
        assert [place for place, _ in ranked] == [place for place, _ in step["leaderboard"]]
        for (_, rate), (_, expected) in zip(ranked, step["leaderboard"], strict=True):
            assert rate is None if expected is None else math.isclose(rate, expected, abs_tol=case["tol"])
        matches = board.join(entrant)
        opponents = [match.second if match.first == entrant else match.first for match in matches]
        assert opponents == step["opponents_best_worst_median"]
        calls += len(matches)
        for match in matches:
            board.record(match, lower_number(match))
    assert calls == case["expected"]["total_calls"]


CHECKS: dict[str, Callable[[Case], None]] = {
    "calls_round_robin": costs(round_robin),
    "calls_anchor": costs(anchor),
    "calls_seeded_se": costs(single_elimination),
    "calls_double_elim": costs(lambda n: double_elimination(n, random.Random(0))),
    "calls_swiss": costs(lambda n: swiss(n, random.Random(0))),
    "calls_tournament_grpo": check_group_tournament_calls,
    "calls_live": costs(lambda n: live(range(n))),
    "minmax_eq8": check_min_max,
    "minmax_eq8_equal": check_min_max,
    "arenarl_quantile_eq6_N8": check_rank_rewards,
    "bidirectional_eq3": check_both_orders,
    "seeded_bracket_order": check_bracket_slots,
    "tournament_grpo_run": check_group_tournament_run,
    "bt_eq10_gamma0.9": check_bradley_terry,
    "bt_two_items": check_bradley_terry,
    "bt_all_ties": check_bradley_terry,
    "soft_outcome_eq7": check_soft_outcome,
    "winrate_eq8": check_win_rate,
    "routing_eq3_5": check_routing,
    "soft_from_logprobs": check_log_probabilities,
    "live_opponents": check_live_opponents,
}
CASES = read_reference("ranking_cases.json")["cases"]


@pytest.mark.parametrize("name", CHECKS)
def test_reference_case(name: str) -> None:
    CHECKS[name](next(case for case in CASES if case["id"] == name))


def test_every_reference_case_has_a_check() -> None:
    assert {case["id"] for case in CASES} == set(CHECKS)


def columns(case: Case, given: str, *expected: str) -> list[tuple[Any, ...]]:
    return list(zip(case["input"][given], *(case["expected"][name] for name in expected), strict=True))


def first_round(n: int) -> list[list[int]]:
    waves = drive(single_elimination(n), lower_number).waves
    return [sorted(match) for match in waves[1]]
