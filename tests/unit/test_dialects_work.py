"""Dialects: reading a turn takes work that grows no faster than the text (milliseconds: `make bench-hostile`)."""

import pytest

from benchmarks.hostile_text import HOSTILE_UNITS, WRAPPERS
from scope_selfplay.dialects import DIALECTS, Dialect
from tests.text_work import assert_linear, characters_visited


@pytest.mark.parametrize("family", DIALECTS, ids=lambda family: family.name)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_work_grows_no_faster_than_the_text(family: Dialect, wrapper: str) -> None:
    for unit in HOSTILE_UNITS:
        assert_linear(family.parse, unit, wrapper=wrapper)


def test_a_reader_that_starts_again_at_every_tag_is_found_out() -> None:
    def restart(text: str) -> None:
        for place in range(text.count("<")):
            text.find("<", place)

    with pytest.raises(AssertionError, match="characters, then"):
        assert_linear(restart, "<answer>")
    assert characters_visited("abc".count, "b") >= 3
