"""How an attempt's end is read, without a run around it."""

from scope_selfplay.controller.attempts import AttemptOutcome, FailureResponse, pause_after


def test_pauses_double_up_to_ten_minutes() -> None:
    assert [pause_after(failures) for failures in range(9)] == [0, 15, 30, 60, 120, 240, 480, 600, 600]


def test_every_outcome_has_a_response_and_an_explanation() -> None:
    assert {outcome.response for outcome in AttemptOutcome} == set(FailureResponse)
    assert all(outcome.explanation("last line") for outcome in AttemptOutcome)
