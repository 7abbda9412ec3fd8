"""Every exact case of tests/reference/ranking_cases.json: what its input gives, by the names of what is expected."""

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

Values = dict[str, Any]


def costs(topology: Callable[[int], Any]) -> Callable[[Values], Values]:
    """What a topology costs; calls are matches, or presentations when each is shown in both orders."""

    def found(given: Values) -> Values:
        driven = [drive(topology(n), lower_number) for n in given["N"]]
        calls, waves = [each.calls for each in driven], [len(each.waves) for each in driven]
        twice = [2 * each for each in calls]
        return {
            "matches": calls,
            "calls": calls,
            "calls_bidirectional": twice,
            "depth": waves,
            "rounds": waves,
        }

    return found


def group_tournament_calls(given: Values) -> Values:
    driven = []
    for n, size, winners, final, repeats in given["K_G_Kwin_Kfinal_M"]:
        shape = {"group_size": size, "winners": winners, "final": final, "repeats": repeats}
        driven.append(drive(group_tournament(n, random.Random(0), **shape), best_of(range(n), winners)))
    return {
        "calls": [each.calls for each in driven],
        "rounds_per_repeat": [len(each.waves) for each in driven],
    }


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


def both_orders(given: Values) -> Values:
    heard, _ = played_in_both_orders(*(Outcome(**given[order]) for order in ("order_ij", "order_ji")))
    # The paper adds the two orders, we average them.
    return {"S_i": 2 * heard.first, "S_j": 2 * heard.second, "winner": "i" if heard.margin > 0 else "j"}


def bracket(given: Values) -> Values:
    found: Values = {"N8_slots_by_seed(0-based)": bracket_slots(8), "N8_round1": first_round(8)}
    for n in (6, 5):
        matches = first_round(n)
        byes = sorted(set(range(n)) - {entrant for match in matches for entrant in match})
        found[f"N{n}_round1"] = {"byes": byes, "matches": matches}
    return found


def first_round(n: int) -> list[list[int]]:
    """With entrant 0 as anchor and the lower number always winning, seed and number are the same."""
    return [sorted(match) for match in drive(single_elimination(n), lower_number).waves[1]]


def group_tournament_run(given: Values) -> Values:
    names = {"group_size": "G", "winners": "K_win", "final": "K_final", "repeats": "M"}
    topology = group_tournament(given["K"], Unshuffled(), **{name: given[own] for name, own in names.items()})
    driven = drive(topology, lambda group: sorted(group)[: given["K_win"]])
    return {"s": driven.strengths, "calls": driven.calls, "r_eps0": min_max(driven.strengths, 0.0)}


def bradley_terry_fit(given: Values) -> Values:
    beta = bradley_terry(given.get("N", 2), [tuple(share) for share in given["matches_i_j_oij"]])
    rewards = min_max(beta)
    mean = sum(rewards) / len(rewards)
    return {"beta": beta, "minmax": rewards, "advantage": [reward - mean for reward in rewards]}


def soft_outcomes(given: Values) -> Values:
    verdicts = {"A": Outcome(1.0, 0.0), "Tie": Outcome(1.0, 1.0), "B": Outcome(0.0, 1.0)}
    shown = [verdicts[verdict] for verdict in given["verdicts"]]
    swapped = [Outcome(each.second, each.first) for each in shown]
    return {
        name: [soft_share(each, given["gamma"]) for each in outcomes]
        for name, outcomes in (("o_ij", shown), ("o_ji", swapped))
    }


def win_rates(given: Values) -> Values:
    shares = given["o"]

    def judge(match: Match) -> Outcome:
        return Outcome(shares[match.first][match.second], shares[match.second][match.first])

    return {"R": drive(round_robin(given["N"], gamma=0.9), judge).strengths}


def log_probabilities(given: Values) -> Values:
    straight, swapped = (Outcome(given[key]["A"], given[key]["B"]) for key in ("order_ij", "order_ji"))
    debiased, graph = played_in_both_orders(straight, swapped)
    shares = win_probability(straight), 1 - win_probability(swapped)
    return {
        "p_i_order_ij": shares[0],
        "p_i_order_ji": shares[1],
        "p_i_mean": sum(shares) / 2,
        "logit_debiased": debiased.margin,
        "p_i_from_debiased_logit": win_probability(debiased),
        "position_bias_logit": position_offset([graph]),
    }


def win_probability(outcome: Outcome) -> float:
    """Of the first entrant, where the two scores are logits."""
    return 0.5 + 0.5 * math.tanh(outcome.margin / 2)


VALUES: dict[str, Callable[[Values], Values]] = {
    "calls_round_robin": costs(round_robin),
    "calls_anchor": costs(anchor),
    "calls_seeded_se": costs(single_elimination),
    "calls_double_elim": costs(lambda n: double_elimination(n, random.Random(0))),
    "calls_swiss": costs(lambda n: swiss(n, random.Random(0))),
    "calls_tournament_grpo": group_tournament_calls,
    "calls_live": costs(lambda n: live(range(n))),
    "minmax_eq8": lambda given: {"r": min_max(given["s"], given["eps"])},
    "minmax_eq8_equal": lambda given: {"r": min_max(given["s"], given["eps"])},
    "arenarl_quantile_eq6_N8": lambda given: {"r": rank_rewards([-float(rank) for rank in given["ranks"]])},
    "bidirectional_eq3": both_orders,
    "seeded_bracket_order": bracket,
    "tournament_grpo_run": group_tournament_run,
    "bt_eq10_gamma0.9": bradley_terry_fit,
    "bt_two_items": bradley_terry_fit,
    "bt_all_ties": bradley_terry_fit,
    "soft_outcome_eq7": soft_outcomes,
    "winrate_eq8": win_rates,
    "routing_eq3_5": lambda given: {"route_to_tournament": [is_flat(rewards) for rewards in given["groups"]]},
    "soft_from_logprobs": log_probabilities,
}
CASES = {case["id"]: case for case in read_reference("ranking_cases.json")["cases"]}


@pytest.mark.parametrize("name", VALUES)
def test_reference_case(name: str) -> None:
    case, found = CASES[name], VALUES[name](CASES[name]["input"])
    for value, expected in case["expected"].items():
        # What is exact may be nested.
        wanted = pytest.approx(expected, abs=case["tol"], rel=0) if case["tol"] else expected
        assert found[value] == wanted, value


def test_a_newcomer_meets_the_best_the_worst_and_the_median_of_the_leaderboard() -> None:
    board, calls, expected = LiveLeaderboard(), 0, CASES["live_opponents"]["expected"]
    for step in expected["steps"]:
        entrant = step["arrives"]
        assert board.leaderboard() == [place for place, _ in step["leaderboard"]]
        matches = board.join(entrant)
        opponents = [match.second if match.first == entrant else match.first for match in matches]
        assert opponents == step["opponents_best_worst_median"]
        calls += len(matches)
        for match in matches:
            board.record(match, lower_number(match))
    assert calls == expected["total_calls"]


def test_every_reference_case_has_a_check() -> None:
    assert CASES.keys() == {*VALUES, "live_opponents"}
