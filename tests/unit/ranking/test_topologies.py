import random
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_selfplay.base.values import Outcome
from scope_selfplay.ranking.matches import Match
from scope_selfplay.ranking.topologies import (
    LiveLeaderboard,
    anchor,
    double_elimination,
    round_robin,
    single_elimination,
    swiss,
)
from tests.unit.ranking.judges import DESIGNS, drive, failing, live, lower_number, perfect, qualities

RANDOM_DESIGNS = ["double_elimination", "swiss", "live", "balanced"]


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("share", [0.15, 0.6, 1.0])
def test_exactly_the_entrants_without_a_verdict_have_no_strength(design: str, share: float) -> None:
    for seed in range(60):
        n = 2 + seed % 12
        judge = failing(perfect(qualities(n, seed)), share, seed)
        judged: set[int] = set()

        def keep(match: Match, judge=judge, judged=judged) -> Outcome | None:
            outcome = judge(match)
            judged.update(match if outcome is not None else ())
            return outcome

        strengths = drive(DESIGNS[design](n, random.Random(seed)), keep).strengths
        assert {entrant for entrant, strength in enumerate(strengths) if strength is not None} == judged


@pytest.mark.parametrize("design", [design for design in DESIGNS if "elimination" not in design])
def test_equal_scores_everywhere_put_all_who_played_alike_level(design: str) -> None:
    """A bracket has to let somebody through."""
    strengths = drive(DESIGNS[design](8, random.Random(0)), lambda _: Outcome(3.0, 3.0)).strengths
    assert len(set(strengths)) == 1


@pytest.mark.parametrize("design", DESIGNS)
def test_one_entrant_alone_is_never_judged(design: str) -> None:
    driven = drive(DESIGNS[design](1, random.Random(0)), lower_number)
    assert (driven.strengths, driven.calls) == ([None], 0)


@pytest.mark.parametrize("design", DESIGNS)
def test_the_level_of_the_scores_of_a_call_does_not_matter(design: str) -> None:
    quality = qualities(7, 1)
    moods = random.Random(2)

    def moody(match: Match) -> Outcome:
        mood = moods.gauss(0.0, 5.0)
        return Outcome(quality[match.first] + mood, quality[match.second] + mood)

    plain = drive(DESIGNS[design](7, random.Random(3)), perfect(quality)).strengths
    assert drive(DESIGNS[design](7, random.Random(3)), moody).strengths == pytest.approx(plain)


@pytest.mark.parametrize("design", DESIGNS)
def test_the_same_seed_asks_the_same_questions_and_another_one_others(design: str) -> None:
    judge = perfect(qualities(9, 4))
    runs = [drive(DESIGNS[design](9, random.Random(5)), judge) for _ in range(2)]
    assert runs[0] == runs[1]
    plans = {str(drive(DESIGNS[design](8, random.Random(seed)), lower_number).waves) for seed in range(20)}
    assert len(plans) == (20 if design in RANDOM_DESIGNS else 1)


@pytest.mark.parametrize("n", range(2, 65))
def test_a_bracket_gives_byes_to_the_top_seeds_and_eliminates_all_but_the_champion_once(n: int) -> None:
    driven = drive(single_elimination(n), lower_number)
    playing = Counter(entrant for match in driven.waves[1] for entrant in match)
    slots = 1 << (n - 1).bit_length()
    assert set(range(n)) - set(playing) == set(range(slots - n))
    assert set(playing.values()) == {1}
    lost = Counter(max(match) for wave in driven.waves[1:] for match in wave)
    assert lost == Counter(range(1, n))
    assert (driven.calls, len(driven.waves)) == (2 * (n - 1), 1 + (n - 1).bit_length())


@pytest.mark.parametrize("n", range(2, 65))
def test_double_elimination_gives_everybody_a_second_chance_and_no_third(n: int) -> None:
    for seed in range(3):
        driven = drive(double_elimination(n, random.Random(seed)), lower_number)
        assert driven.calls == 2 * (n - 1)
        assert len(driven.waves) <= 2 * (n - 1).bit_length()
        lost = Counter(max(match) for match in driven.asked)
        # No second final: who comes to it unbeaten is eliminated by one defeat there. Here 0 never loses.
        assert lost == Counter(dict.fromkeys(range(1, n), 2))


def test_the_better_seed_goes_on_when_the_bracket_has_no_verdict() -> None:
    waves = iter(range(100))

    def only_the_seeding(match: Match) -> Outcome | None:
        return lower_number(match) if next(waves) < 7 else None

    # The anchor, number 0, beats everybody by a margin of 1.
    driven = drive(single_elimination(8), only_the_seeding)
    seeds = [0, 1, 2, 3, 4, 5, 6, 7]
    assert [sorted(match) for match in driven.waves[3]] == [seeds[:2]]
    assert driven.strengths[0] == 7.0


def test_the_lower_number_goes_on_when_a_random_bracket_has_no_verdict() -> None:
    driven = drive(double_elimination(8, random.Random(1)), lambda _: None)
    through = {min(match) for match in driven.waves[0]}
    assert {entrant for match in driven.waves[1][:2] for entrant in match} == through


def test_a_tied_bracket_match_goes_to_the_better_seed() -> None:
    tie = Outcome(5.0, 5.0)
    driven = drive(single_elimination(4), lambda match: lower_number(match) if 0 in match else tie)
    assert sorted(driven.waves[2][0]) == [0, 1]


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 8, 9, 11, 15, 16, 32, 33])
def test_swiss_gives_nobody_a_second_bye_and_lets_no_pair_meet_twice(n: int) -> None:
    for seed in range(50):
        driven = drive(swiss(n, random.Random(seed)), perfect(qualities(n, seed)))
        byes = Counter(entrant for wave in driven.waves for entrant in set(range(n)) - {*sum(wave, ())})
        assert set(byes.values()) <= {1} and byes.total() == n % 2 * len(driven.waves)
        met = Counter(frozenset(match) for match in driven.asked)
        assert set(met.values()) == {1}


@pytest.mark.parametrize("n", [4, 8, 16])
def test_swiss_pairs_equal_records(n: int) -> None:
    for seed in range(50):
        won = Counter[int]()
        for wave in drive(swiss(n, random.Random(seed)), lower_number).waves:
            assert all(won[match.first] == won[match.second] for match in wave)
            won.update(min(match) for match in wave)


def test_swiss_places_equal_wins_by_the_wins_of_those_whom_they_met() -> None:
    """Buchholz, of ArenaRL's section 4.5."""
    told_apart = 0
    for seed in range(20):
        driven = drive(swiss(8, random.Random(seed)), lower_number)
        won = Counter(min(match) for match in driven.asked)
        met = [[sum(match) - each for match in driven.asked if each in match] for each in range(8)]
        keys = [(won[each], sum(won[other] for other in met[each])) for each in range(8)]
        for one, other in combinations(range(8), 2):
            assert (keys[one] > keys[other]) is (driven.strengths[one] > driven.strengths[other])
            told_apart += won[one] == won[other] and keys[one] != keys[other]
    assert told_apart


def test_the_anchor_is_worth_nothing_on_the_scale_of_margins_and_its_mean_on_that_of_own_scores() -> None:
    def judge(match: Match) -> Outcome:
        return Outcome(6.0, 8.0) if match.second == 1 else Outcome(5.0, 4.0)

    assert drive(anchor(3), judge).strengths == [0.0, 2.0, -1.0]
    assert drive(anchor(3, score="own"), judge).strengths == [5.5, 8.0, 4.0]


@settings(max_examples=50)
@given(n=st.integers(2, 40))
def test_a_round_robin_shows_everybody_first_as_often_as_second(n: int) -> None:
    lead = Counter[int]()
    for match in drive(round_robin(n), lower_number).asked:
        lead[match.first] += 1
        lead[match.second] -= 1
    assert max(map(abs, lead.values())) <= 1


@settings(max_examples=50)
@given(order=st.permutations(range(9)), seed=st.integers(0, 1000))
def test_a_live_newcomer_meets_three_different_earlier_entrants(order: list[int], seed: int) -> None:
    driven = drive(live(order), perfect(qualities(9, seed)))
    arrived = {order[0]}
    for newcomer, wave in zip(order[1:], driven.waves, strict=True):
        opponents = {entrant for match in wave for entrant in match} - {newcomer}
        assert all(newcomer in match for match in wave)
        assert opponents <= arrived
        assert len(wave) == len(opponents) == min(len(arrived), 3)
        arrived.add(newcomer)


def test_a_live_board_does_not_wait_for_verdicts() -> None:
    board = LiveLeaderboard()
    open_matches = [match for entrant in (4, 2, 7) for match in board.join(entrant)]
    assert len(open_matches) == 3
    assert board.strengths() == [None] * 8
    for match in open_matches:
        board.record(match, lower_number(match))
    strengths = board.strengths()
    assert strengths[2] > strengths[4] > strengths[7]
    assert [strengths[absent] for absent in (0, 1, 3, 5, 6)] == [None] * 5
    with pytest.raises(ValueError, match="joined before"):
        board.join(4)


def test_a_live_board_shows_nobody_first_much_more_often_than_second() -> None:
    for seed in range(100):
        order = random.Random(seed).sample(range(16), 16)
        lead = Counter[int]()
        for match in drive(live(order), perfect(qualities(16, seed))).asked:
            lead[match.first] += 1
            lead[match.second] -= 1
        assert max(map(abs, lead.values())) <= 2
