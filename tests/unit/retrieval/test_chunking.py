from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.corpus import chunk_documents, token_spans, word_spans
from scope_selfplay.errors import CheckpointError
from scope_selfplay.schemas import Document


@given(
    st.lists(st.sampled_from(["word", "end.", "x", "stop!\n"]), max_size=80), st.integers(1, 20), st.data()
)
def test_every_word_lands_in_a_chunk_of_the_allowed_size(
    words: list[str], size: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, size - 1))
    document = Document(id="d", title="T", text=" ".join(words))
    chunks = list(chunk_documents([document], size=size, overlap=overlap))
    assert all(1 <= len(word_spans(chunk.text)) <= size and chunk.title == "T" for chunk in chunks)
    assert all(chunk.text in document.text for chunk in chunks)
    kept = [
        word for number, chunk in enumerate(chunks) for word in chunk.text.split()[overlap if number else 0 :]
    ]
    assert kept == " ".join(words).split()


def test_a_chunk_ends_with_a_sentence_when_one_ends_late_enough() -> None:
    text = "one two three four five six seven eight. nine ten eleven"
    first, second = chunk_documents([Document(id="d", title="", text=text)], size=9)
    assert first.text.endswith("eight.")
    assert (first.id, second.id, second.source) == ("d#0", "d#1", "d")


def test_a_short_document_keeps_its_id() -> None:
    (only,) = chunk_documents([Document(id="d", title="", text="one two")])
    assert only.id == "d"


def test_an_overlap_as_large_as_the_chunk_is_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        list(chunk_documents([], size=5, overlap=5))


def test_chunks_of_tokens_are_counted_with_the_tokenizer(model: Path) -> None:
    spans = token_spans(model / "tokenizer.json")
    document = Document(id="d", title="", text="salt, wool and fish")
    chunks = list(chunk_documents([document], size=6, spans=spans))
    assert len(chunks) > 1 and max(len(spans(chunk.text)) for chunk in chunks) <= 6


def test_a_file_that_is_not_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"not a tokenizer\.json"):
        token_spans(tmp_path / "tokenizer.json")
