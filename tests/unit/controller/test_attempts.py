"""How an attempt's end is read, without a run around it."""

import pytest

from scope_selfplay.driver.attempts import AttemptOutcome, FailureResponse, pause_after


def test_pauses_double_up_to_ten_minutes() -> None:
    assert [pause_after(failures) for failures in range(9)] == [0, 15, 30, 60, 120, 240, 480, 600, 600]


@pytest.mark.parametrize(
    ("response", "outcomes"),
    [
        (FailureResponse.FAIL, "user out_of_memory"),
        (FailureResponse.RETRY_FREE, "disrupted outside stopped unplaced lost"),
        (FailureResponse.RETRY, "bug killed late no_manifest vanished"),
    ],
)
def test_every_outcome_has_one_response(response: FailureResponse, outcomes: str) -> None:
    assert {outcome for outcome in AttemptOutcome if outcome.response is response} == set(outcomes.split())


def test_every_outcome_is_explained_and_braces_in_the_last_line_stay() -> None:
    explanations = [outcome.explanation("last {line}") for outcome in AttemptOutcome]
    assert all(explanations) and sum("last {line}" in text for text in explanations) == 6
