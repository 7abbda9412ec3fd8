"""Which token is drawn: the distribution that the logits say, and how seldom a batch's rounding could decide."""

from typing import Any

import numpy as np
import pytest

from scope_selfplay.inference.draws import LARGE_VOCABULARY, Draw, draw_tokens

SMALL, LARGE = 50, LARGE_VOCABULARY + 50


def draw(position: int, *, seed: int = 7, **settings: Any) -> Draw:
    uniform = float(np.random.default_rng([seed, position]).random())
    return Draw(uniform, seed, position, **settings)


def flat(vocabulary: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    """One row of logits; all tokens are possible, none is likely."""
    return np.random.default_rng(1).normal(size=(1, vocabulary)).astype(np.float32)


@pytest.mark.parametrize("vocabulary", [SMALL, LARGE])
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 1.0}, [0.5, 0.3, 0.2]),
        ({"temperature": 0.5}, [0.5, 0.3, 0.2]),
        ({"top_p": 0.6}, [5 / 8, 3 / 8, 0.0]),
    ],
)
def test_tokens_come_as_often_as_their_probability_says_and_are_scored_by_the_whole(
    vocabulary: int, settings: dict[str, Any], expected: list[float]
) -> None:
    logits = np.full((1, vocabulary), -40.0, np.float32)
    logits[0, [3, 20, 40]] = settings.get("temperature", 1.0) * np.log([0.5, 0.3, 0.2])
    drawn = [draw_tokens(logits, [draw(position, **settings)]) for position in range(1000)]
    tokens = [int(each.tokens[0]) for each in drawn]
    shares = np.array([tokens.count(token) for token in (3, 20, 40)]) / len(tokens)
    assert shares == pytest.approx(expected, abs=0.06) and sum(shares) == pytest.approx(1.0)
    assert (shares == 0).tolist() == (np.array(expected) == 0).tolist()
    if "top_p" in settings:
        assert drawn[0].logprob(0, 3) == pytest.approx(np.log(0.5), abs=1e-5)


@pytest.mark.parametrize("vocabulary", [SMALL, LARGE])
def test_a_row_draws_the_same_alone_and_among_others(vocabulary: int) -> None:
    logits = np.random.default_rng(2).normal(size=(4, vocabulary)).astype(np.float32)
    draws = [draw(0, seed=row, greedy=row == 2) for row in range(4)]
    together = draw_tokens(logits, draws)
    for row in range(4):
        (alone,) = draw_tokens(logits[row : row + 1], draws[row : row + 1]).tokens
        assert together.tokens[row] == alone
    assert together.tokens[2] == logits[2].argmax()
    whole = logits.astype(np.float64)
    expected = whole - np.log(np.exp(whole).sum(axis=1, keepdims=True))
    for row, token in enumerate(together.tokens.tolist()):
        assert together.logprob(row, token) == pytest.approx(expected[row, token], abs=1e-4)


def test_what_is_not_close_no_rounding_decides() -> None:
    logits, rounding = flat(LARGE), np.random.default_rng(3)
    for position in range(100):
        rounded = logits + rounding.uniform(-1e-4, 1e-4, logits.shape).astype(np.float32)
        before, after = (draw_tokens(each, [draw(position)]) for each in (logits, rounded))
        assert before.close[0] or before.tokens[0] == after.tokens[0]


def test_two_equal_winners_are_close() -> None:
    logits = np.full((1, LARGE), -40.0, np.float32)
    logits[0, [5, 9]] = 2.0
    assert draw_tokens(logits, [draw(0, greedy=True)]).close[0]
    logits[0, 9] = 1.9
    assert not draw_tokens(logits, [draw(0, greedy=True)]).close[0]


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.3, {1}), (0.5, {1}), (0.6, {1, 3}), (0.8, {1, 2, 3}), (0.95, {0, 1, 2, 3}), (1.0, {0, 1, 2, 3})],
)
def test_tokens_beyond_the_share_are_never_drawn(top_p: float, expected: set[int]) -> None:
    logits = np.log([[0.1, 0.5, 0.15, 0.25]] * 2).astype(np.float32)
    rows = [
        draw_tokens(logits, [Draw(float(uniform), 0, 0, top_p=share) for share in (top_p, 1.0)]).tokens
        for uniform in np.linspace(0, 0.999, 400)
    ]
    assert [{int(row[place]) for row in rows} for place in (0, 1)] == [expected, {0, 1, 2, 3}]
