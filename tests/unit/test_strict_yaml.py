"""YAML with one value for each key, and lines to point at."""

import pytest

from scope_selfplay.base.errors import did_you_mean, nearest
from scope_selfplay.base.yaml import RepeatedKeyError, YamlError, parse_yaml


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "a"),
        ("a:\n  - b: 1\n    b: 2\n", 3, "b"),
        ("a: {b: {c: {d: {e: {f: {g: {h: 1, h: 2}}}}}}}\n", 1, "h"),
    ],
)
def test_a_repeated_key_is_refused_with_its_line_at_any_depth(text: str, line: int, key: str) -> None:
    with pytest.raises(RepeatedKeyError) as caught:
        parse_yaml(text)
    assert (caught.value.line, caught.value.key) == (line, key)


def test_keys_that_a_merge_brings_may_be_overridden() -> None:
    assert parse_yaml("base: &base {a: 1, b: 2}\nown:\n  <<: *base\n  a: 3\n").values["own"] == {
        "a": 3,
        "b": 2,
    }


def test_values_know_their_lines_counted_from_where_the_text_begins_in_its_file() -> None:
    parsed = parse_yaml("a: 1\nb:\n  - x\n  - y\n", first_line=2)
    assert parsed.values == {"a": 1, "b": ["x", "y"]}
    assert (parsed.line("a"), parsed.line("b", 1), parsed.line("b", 7)) == (2, 5, 3)


@pytest.mark.parametrize(
    ("text", "line"), [("a: [", 1), ("a: 1\n b: 2\n", 2), ("a: \x00", None), ("a: 2024-13-45", None)]
)
def test_what_is_not_yaml_is_one_error_with_the_line_where_it_is_known(text: str, line: int | None) -> None:
    with pytest.raises(YamlError) as caught:
        parse_yaml(text)
    assert caught.value.line == line and caught.value.details


def test_scalars_are_kept_as_they_are_written_where_that_is_asked_for() -> None:
    assert parse_yaml("version: 3.10\nyes: no\n", as_text=True).values == {"version": "3.10", "yes": "no"}


def test_a_list_that_holds_itself_ends() -> None:
    assert parse_yaml("a: &a\n  - *a\n").line("a", 0) == 1
    assert parse_yaml("").values is None


def test_the_nearest_known_word_ends_a_message_about_an_unknown_one() -> None:
    assert nearest("solvr", ["judge", "solver"]) == "solver"
    assert did_you_mean("solvr", ["judge", "solver"]) == " (did you mean solver?)"
    assert did_you_mean("solvr", ["solver"], "; did you mean {}?") == "; did you mean solver?"
    assert did_you_mean("zzz", ["solver"]) == ""
