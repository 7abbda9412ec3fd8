"""avg@k, pass@k and maj@k against their definitions."""

from itertools import combinations

import pytest

from scope_selfplay.evaluation.metrics import majority, pass_at, pass_counts


@pytest.mark.parametrize("samples", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_draws_that_hold_a_right_answer(samples: int) -> None:
    for right in range(samples + 1):
        answers = [True] * right + [False] * (samples - right)
        for k in range(1, samples + 1):
            draws = list(combinations(answers, k))
            assert pass_at(k, right, samples) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_of_many_samples_is_that_of_the_paper() -> None:
    """Chen et al. (2021): 1 - prod(1 - k / i) for i from n - c + 1 to n."""
    product = 1.0
    for place in range(200 - 37 + 1, 201):
        product *= 1 - 10 / place
    assert pass_at(10, 37, 200) == pytest.approx(1 - product)


def test_pass_is_told_for_powers_of_two_and_all_samples() -> None:
    found = [pass_counts(samples) for samples in (1, 6, 16)]
    assert found == [(1,), (1, 2, 4, 6), (1, 2, 4, 8, 16)]


@pytest.mark.parametrize(
    ("votes", "values", "expected"),
    [
        (["3", "3", "4"], [1, 1, 0], 1.0),
        (["3", "4", "4"], [1, 0, 0], 0.0),
        (["3", "4"], [1, 0], 0.5),
        (["3", "", ""], [1, 0, 0], 1.0),
        (["", ""], [0, 0], 0.0),
        (["a", "a", "b"], [1, 0, 0], 0.5),
    ],
)
def test_the_majority_is_what_most_answers_say(
    votes: list[str], values: list[float], expected: float
) -> None:
    assert majority(votes, values) == expected
