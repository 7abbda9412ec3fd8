from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.corpus import chunked, token_counter
from scope_selfplay.base.errors import CheckpointError
from scope_selfplay.base.values import Document


@given(
    st.lists(st.sampled_from(["word", "end.", "x", "stop!\n"]), max_size=80), st.integers(1, 20), st.data()
)
def test_every_word_lands_in_a_chunk_of_the_allowed_size(
    words: list[str], size: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, size - 1))
    document = Document(id="d", title="T", text=" ".join(words))
    chunks = list(chunked([document], size, overlap, None))
    assert all(1 <= len(chunk.text.split()) <= size and chunk.title == "T" for chunk in chunks)
    assert all(chunk.text in document.text for chunk in chunks)
    kept = [
        word for number, chunk in enumerate(chunks) for word in chunk.text.split()[overlap if number else 0 :]
    ]
    assert kept == " ".join(words).split()


def test_chunks_of_tokens_are_counted_with_the_tokenizer(model: Path) -> None:
    count = token_counter(model / "tokenizer.json")
    document = Document(id="d", title="", text="salt, wool and fish")
    chunks = list(chunked([document], 6, 0, model / "tokenizer.json"))
    assert len(chunks) > 1 and max(count([chunk.text for chunk in chunks])) <= 6


def test_a_file_that_is_not_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"not a tokenizer\.json"):
        token_counter(tmp_path / "tokenizer.json")
