"""Strict JSON: the standard and nothing else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.net.json import load_strict, read_value

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(values, st.booleans(), st.text(" \t\n\r", max_size=3), st.sampled_from(["", ")", ", b=1", " ]"]))
def test_what_json_writes_reads_back_alone_or_inside_a_text_and_ends_where_it_ends(
    value: object, ascii_only: bool, space: str, rest: str
) -> None:
    written = json.dumps(value, ensure_ascii=ascii_only)
    text = f"a={space}{written}{rest}"
    assert read_value(text, 2) == (value, len(text) - len(rest))
    assert load_strict(written) == value
    # Nothing may follow a whole document.
    with pytest.raises(json.JSONDecodeError, match="Extra data"):
        load_strict(f"{written} {written}")


@pytest.mark.parametrize(
    "text",
    [
        *"nothing NaN [Infinity] -Infinity 1e999 'a' [1,]".split(),
        *("", '{"a": 1, "a": 1}', '[{"a": {"b": 1, "b": 2}}]', '"\\ud800"', '{"\\udfff": 1}', '"a\nb"'),
        *("[" * 100_000, "9" * 40, "9" * 5000, str(1 << 63)),
    ],
)
def test_what_the_standard_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        load_strict(text)
    with pytest.raises(ValueError, match=r"\S"):
        read_value(f"a={text}", 2)
