"""Strict JSON: the standard and nothing else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.wire.strict_json import load_strict, read_value

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(values, st.booleans())
def test_what_json_writes_reads_back(value: object, ascii_only: bool) -> None:
    assert load_strict(json.dumps(value, ensure_ascii=ascii_only)) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing",
        "NaN",
        "[Infinity]",
        "-Infinity",
        "1e999",
        '{"a": 1, "a": 1}',
        '[{"a": {"b": 1, "b": 2}}]',
        '"\\ud800"',
        '{"\\udfff": 1}',
        "[" * 100_000,
        "9" * 5000,
        "{} {}",
        "'a'",
        "[1,]",
        '"a\nb"',
    ],
)
def test_what_the_standard_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        load_strict(text)


@pytest.mark.parametrize("text", ["9" * 40, "[1e999]", "NaN", '{"a": 1, "a": 1}', '"\\ud800"', "[" * 100_000])
def test_a_value_within_a_text_is_read_as_strictly(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read_value(f"call: {text}, and so on", 5)


def test_a_value_within_a_text_ends_where_it_ends() -> None:
    assert read_value('f( {"a": [1]} )', 2) == ({"a": [1]}, 13)
    with pytest.raises(ValueError, match="Extra data"):
        load_strict("{} {}")
