"""The groups that held-out scores are reported by."""

from functools import partial

import pytest

from scope_selfplay.base.intervals import estimate_mean
from scope_selfplay.base.values import Grade, Task, Verdict
from scope_selfplay.corpus.world import task_family
from scope_selfplay.evaluation.ratings import breakdown
from tests.unit.evaluation.contestants import UNREADABLE, candidate


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Report the river of Aldmoor Mill.", "0 links"),
        ("Report the river of Aldmoor's rival.", "1 link"),
        ("Report the river of Aldmoor's partner's rival.", "2 links"),
        ("Who built it?", "long_form_qa, 2 searches"),
    ],
)
def test_families_are_links_where_they_can_be_read(text: str, name: str) -> None:
    task = Task(id="t", text=text, type="long_form_qa", document_id="d", search_turns=2)
    assert task_family(task) == name


def grade(number: int, *values: bool | None) -> Grade:
    known = [value for value in values if value is not None]
    return Grade(
        rollout_id=f"r{number}",
        verdicts=tuple(UNREADABLE if value is None else Verdict(value=value) for value in values),
        score=sum(known) / len(known) if known else None,
    )


def test_groups_come_in_order_and_missing_verdicts_are_never_zeros() -> None:
    texts = ["Report the river of Aldmoor's rival.", *["Report the river of Aldmoor Mill."] * 3]
    said: list[tuple[bool | None, ...]] = [(True, None), (True, False), (None, None), ()]
    found = breakdown(
        [candidate(number, text, ("asked", "hidden")) for number, text in enumerate(texts)],
        {f"t{number}": grade(number, *values) for number, values in enumerate(said)},
        partial(estimate_mean, seed=0, resamples=100),
    )
    assert {name: (each.value, each.items) for name, each in found.items()} == {
        "all": (0.75, 2),
        "asked criteria": (1.0, 2),
        "hidden criteria": (0.0, 1),
        "0 links": (0.5, 1),
        "1 link": (1.0, 1),
    }
    assert list(found) == ["all", "asked criteria", "hidden criteria", "0 links", "1 link"]


def test_what_a_fault_left_open_or_without_a_score_is_graded_again_and_nothing_else() -> None:
    assert not grade(0, None, True).is_whole and grade(0, None, True).score == 1.0
    assert grade(1, False, True).is_whole
    assert not grade(2).is_whole
