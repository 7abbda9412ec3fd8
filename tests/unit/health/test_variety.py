"""Whether tasks stay different, by their texts alone."""

import pytest

from scope_selfplay.health.variety import MadeTask, common_pattern, phrase_rise

FACTS = ("river", "emblem", "year", "founder", "product")
LINKS = ("partner", "rival", "heir", "neighbour")


def chains(links: tuple[str, ...], number: int = 60) -> list[MadeTask]:
    """Tasks that ask for changing facts of a place that one chain names."""
    return [
        MadeTask(
            1, f"task-{row}", f"Report the {FACTS[row % 5]} and the {FACTS[row // 5 % 5]} of P{row}{end}."
        )
        for row in range(number)
        for end in ["".join(f"'s {link}" for link in links)]
    ]


def test_a_chain_that_spreads_within_tasks_that_differ_is_found() -> None:
    first = [task for link in LINKS for task in chains((link,), 15)]
    later = [*chains(("heir", "rival", "partner"), 54), *chains(("rival",), 6)]
    pattern = common_pattern(later)
    assert pattern is not None and pattern.value < 0.5
    found = phrase_rise(first, later)
    assert found is not None
    assert found.value == pytest.approx(0.9)
    assert "heir's rival's partner" in found.about
    assert [each.task_id for each in found.behind] == [task.id for task in later[:54]]


def test_a_phrase_that_was_always_there_does_not_rise() -> None:
    found = phrase_rise(chains(LINKS), chains(LINKS))
    assert found is not None
    assert found.value == 0


def test_too_few_tasks_say_nothing() -> None:
    assert phrase_rise(chains(LINKS, 19), chains(LINKS)) is None
