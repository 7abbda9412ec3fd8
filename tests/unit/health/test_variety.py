"""Whether tasks stay different, by their texts alone."""

import pytest

from scope_selfplay.health.variety import MadeTask, common_pattern

FACTS = ("river", "emblem", "year", "founder", "product")


def asked(facts: tuple[str, ...], number: int = 60) -> list[MadeTask]:
    return [
        MadeTask(1, f"task-{row}", f"Report the {facts[row % len(facts)]} of P{row}.")
        for row in range(number)
    ]


def test_tasks_that_ask_one_thing_of_different_names_have_one_pattern() -> None:
    found = common_pattern([*asked(("river",), 50), *asked(("emblem",), 10)])
    assert found is not None and found.value == pytest.approx(50 / 60)
    assert found.about == "report the river of …" and len(found.behind) == 50
    spread = common_pattern(asked(FACTS))
    assert spread is not None and spread.value == pytest.approx(0.2)


def test_too_few_tasks_say_nothing() -> None:
    assert common_pattern(asked(("river",), 19)) is None
