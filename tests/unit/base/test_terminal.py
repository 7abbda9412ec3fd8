"""What a person sees while a stage works: something within seconds, even where no task ends for minutes."""

import io

import pytest
from rich.console import Console

from scope_selfplay.base.terminal import Activity, LiveProgress, time_left


def test_activity_is_a_line_of_speed_and_rollouts_from_time_to_time() -> None:
    clock, lines = [0.0], list[str]()
    activity = Activity(lines.append, every=10.0, now=lambda: clock[0])
    with activity.rollout(), activity.rollout():
        for _ in range(30):
            clock[0] += 1.0
            activity.sampled(2500)
    assert lines == ["2,500 tokens/s, 2 rollouts under way"] * 3
    clock[0] += 20.0
    activity.sampled(50)
    assert lines[-1] == "2.5 tokens/s, 0 rollouts under way"


@pytest.mark.parametrize(
    ("seconds", "done", "total", "before", "left"),
    [
        (10, 1, 5, 0, "40 s left"),
        (60, 3, 12, 0, "3 min left"),
        (10, 5, None, 0, ""),
        (6, 9, 10, 8, "6 s left"),
    ],
)
def test_time_left_by_the_pace(seconds: float, done: int, total: int | None, before: int, left: str) -> None:
    assert time_left(seconds, done, total, before) == left


def test_a_terminal_shows_a_table_of_stages_with_their_curves() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
    with LiveProgress(console) as live:
        live.say("a line above")
        live.begin("iteration 1: train the Solver", 3)
        for step, reward in enumerate((0.0, 0.5, 1.0), start=1):
            live.advance(step, f"reward {reward:.2f}")
            live.plot(reward)
        live.end("rubric 0.00 -> 1.00")
        live.begin("iteration 1: compare", None)
        live.pulse("80 tokens/s")
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "a line above" in shown
    last = shown[shown.rindex("iteration 1: train the Solver") :]
    assert "3 of 3" in last and "▁▅█" in last and "rubric 0.00 -> 1.00" in last
    assert "iteration 1: compare" in last and "80 tokens/s" in last
