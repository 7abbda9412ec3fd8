import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from retrieval.passages import passage_line
from retrieval.rendering import TokenCap
from retrieval.wire import ResponseRow
from scope_selfplay.errors import CheckpointError
from scope_selfplay.schemas import Document


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Byte-level BPE with merges, so that a cut text can tokenise differently from its beginning."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate([*alphabet, "ab", "abc", "Ġab", "Ġabc"])}
    merges = [("a", "b"), ("ab", "c"), ("Ġ", "ab"), ("Ġab", "c")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module")
def cap(tokenizer_file: Path) -> TokenCap:
    return TokenCap(tokenizer_file.parent)


def row(text: str) -> ResponseRow:
    return ResponseRow(passage_line(Document(id="x", title="T", text=text)), 1.0)


texts = st.text(st.sampled_from(list('abc é日\n"')), max_size=30)


@given(st.lists(texts, max_size=4), st.integers(1, 60) | st.just(10**30))
def test_no_response_is_over_its_cap_and_lower_ranks_are_cut_first(
    cap: TokenCap, texts: list[str], tokens: int
) -> None:
    rows = [row(text) for text in texts]
    kept = list(cap.cut(rows, tokens))
    contents = [json.loads(row.line)["contents"] for row in kept]
    assert sum(map(cap.count, contents)) <= tokens
    whole = [json.loads(row.line)["contents"] for row in rows]
    assert contents[:-1] == whole[: len(contents)][:-1]
    assert all(text.startswith(part) for part, text in zip(contents, whole, strict=False))


def test_what_fits_is_passed_on_byte_for_byte(cap: TokenCap) -> None:
    rows = [row("abc"), row("ab")]
    assert list(cap.cut(rows, 1000)) == rows


class Counting(TokenCap):
    """Remembers what it tokenises."""

    def __init__(self, tokenizer_file: Path) -> None:
        super().__init__(tokenizer_file)
        self.encoded: list[str] = []

    def encode(self, text: str) -> Any:
        self.encoded.append(text)
        return super().encode(text)


def test_a_passage_that_fits_is_tokenised_once_for_all_responses(tokenizer_file: Path) -> None:
    counting, rows = Counting(tokenizer_file), [row("abc"), row("ab"), row("cab")]
    for _ in range(3):
        assert list(counting.cut(rows, 1000)) == rows
    assert counting.encoded == [json.loads(each.line)["contents"] for each in rows]


def test_a_cut_is_made_once_for_all_responses(tokenizer_file: Path) -> None:
    counting, rows = Counting(tokenizer_file), [row("ab"), row("cab " * 30)]
    first = list(counting.cut(rows, 20))
    encoded = len(counting.encoded)
    assert len(first) == 2
    assert first[1].line != rows[1].line
    assert list(counting.cut(rows, 20)) == first
    assert len(counting.encoded) == encoded
    assert list(counting.cut(rows, 21)) != first


def test_rows_after_the_one_that_crosses_the_limit_are_not_read(cap: TokenCap) -> None:
    read = []

    def rows() -> Iterator[ResponseRow]:
        for text in ("ab", "ab ab ab", "never"):
            read.append(text)
            yield row(text)

    first = cap.count('"T"\nab')
    assert len(list(cap.cut(rows(), first + 2))) == 2
    assert read == ["ab", "ab ab ab"]
    read.clear()
    assert len(list(cap.cut(rows(), first))) == 1
    assert read == ["ab"]


def test_a_long_text_is_counted_as_a_short_one(cap: TokenCap, tokenizer_file: Path) -> None:
    """It is encoded another way, so that other threads can run."""
    plain = Tokenizer.from_file(str(tokenizer_file))
    text = "abc ab " * 10_000
    assert cap.count(text) == len(plain.encode(text, add_special_tokens=False).ids)
    assert cap.count(text[:700]) == len(plain.encode(text[:700], add_special_tokens=False).ids)


def test_a_file_that_is_not_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"not a tokenizer\.json"):
        TokenCap(tmp_path)
