"""`make bench-viewer` says of every goal whether it is held."""

from benchmarks.viewer import Report, Timing, goals_of, goals_of_million


def report(page_seconds: float, peak: float, start: float) -> Report:
    timings = [Timing(page, page_seconds, 0.01, 1000, 30) for page in ("list", "filter", "task", "/")]
    return Report(start, 1.0, 100.0, 120.0, peak, timings)


def test_every_goal_of_the_paper_s_size_is_judged() -> None:
    held = {goal.name: goal.held for goal in goals_of(report(0.2, 249.0, 3.1))}
    assert held == {"list": False, "filter": False, "task": True, "memory": True, "start": False}
    assert all(goal.held for goal in goals_of(report(0.14, 249.0, 2.9)))


def test_every_page_of_a_million_has_half_a_second() -> None:
    assert [goal.held for goal in goals_of_million(report(0.49, 900.0, 9.0))] == [True] * 4
    assert not any(goal.held for goal in goals_of_million(report(0.51, 100.0, 1.0)))
