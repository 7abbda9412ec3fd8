"""The breaker by itself, on a clock that the test moves."""

from scope_selfplay.judge.endpoint import CircuitBreaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_opens_after_failures_in_a_row_only() -> None:
    breaker = CircuitBreaker(failures=3, clock=Clock())

    for _ in range(5):
        breaker.fail()
        breaker.fail()
        breaker.succeed()
    assert not breaker.is_open
    for _ in range(3):
        breaker.fail()
    assert breaker.is_open and breaker.openings == 1


def test_a_success_closes_it() -> None:
    breaker = CircuitBreaker(failures=1, clock=Clock())
    breaker.fail()
    breaker.succeed()

    assert not breaker.is_open


def test_pauses_double_up_to_the_longest_and_never_pass_the_outage() -> None:
    clock = Clock()
    breaker = CircuitBreaker(failures=1, outage=200.0, clock=clock)
    breaker.trip()

    pauses = []
    for _ in range(7):
        pauses.append(breaker.pause)
        breaker.fail_probe()
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    clock.now += 197
    assert breaker.pause == 3


def test_it_is_given_up_after_the_outage() -> None:
    clock = Clock()
    breaker = CircuitBreaker(failures=1, outage=10.0, clock=clock)
    clock.now += 20
    assert not breaker.is_given_up and breaker.left == 10
    breaker.trip()
    clock.now += 9
    assert not breaker.is_given_up and breaker.left == 1
    clock.now += 1
    assert breaker.is_given_up and breaker.left == 0
    # A replica is probed all the same: it may come back while others answer.
    assert breaker.pause == 1
