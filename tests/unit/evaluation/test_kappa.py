"""Cohen's kappa by hand, at its limits, and its interval over tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.evaluation.pairs import Labels, kappa_over_tasks


def labels(*counts: tuple[bool, bool, int]) -> list[Labels]:
    """So many questions, each of a task of its own, to which judge and person said this."""
    pairs = [(judge, person) for judge, person, count in counts for _ in range(count)]
    return [Labels(f"task-{row}", judge, person) for row, (judge, person) in enumerate(pairs)]


def test_kappa_is_that_of_cohens_worked_example() -> None:
    # 20 both yes, 15 both no, 5 judge alone, 10 person alone: p_o 0.7, p_e 0.5 (a textbook example).
    found = kappa_over_tasks(
        labels((True, True, 20), (False, False, 15), (True, False, 5), (False, True, 10))
    )
    assert found is not None and found.value == pytest.approx(0.4)
    assert found.low is not None and found.high is not None and found.low < 0.4 < found.high


@pytest.mark.parametrize(
    ("counts", "value"),
    [
        ([(True, True, 5), (False, False, 5)], 1.0),
        ([(True, False, 5), (False, True, 5)], -1.0),
        ([(True, True, 5), (True, False, 5), (False, True, 5), (False, False, 5)], 0.0),
        # Both say yes to everything: chance alone explains it, and there is no kappa.
        ([(True, True, 9)], None),
        ([], None),
    ],
)
def test_kappa_at_its_limits(counts: list[tuple[bool, bool, int]], value: float | None) -> None:
    found = kappa_over_tasks(labels(*counts))
    assert (found and found.value) == (None if value is None else pytest.approx(value))


def test_questions_of_one_task_count_as_one_draw() -> None:
    apart = labels((True, True, 12), (False, False, 12), (True, False, 6), (False, True, 6))
    together = [each._replace(task=f"task-{row % 4}") for row, each in enumerate(apart)]
    one, few = kappa_over_tasks(apart), kappa_over_tasks(together)
    alone = kappa_over_tasks([each._replace(task="one") for each in apart])
    assert one is not None and few is not None and alone is not None
    assert one.value == few.value and one.high != few.high and alone.low is None


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([True, False, None]), st.booleans()), max_size=30)
)
def test_kappa_is_between_minus_one_and_one_and_symmetric(said: list[tuple[int, bool | None, bool]]) -> None:
    found = [Labels(str(task), judge, person) for task, judge, person in said]
    turned = [Labels(each.task, each.person, each.judge) for each in found]
    kappa = kappa_over_tasks(found)
    other = kappa_over_tasks(turned)
    assert (kappa is None) is (other is None)
    if kappa is not None and other is not None:
        assert -1 - 1e-9 <= kappa.value <= 1 + 1e-9 and kappa.value == pytest.approx(other.value)
