from hypothesis import given
from hypothesis import strategies as st

from retrieval.corpus import chunked
from scope_selfplay.base.values import Document


@given(st.lists(st.sampled_from(["word", "end.", "x", "stop!\n"]), max_size=80), st.integers(1, 20))
def test_every_word_lands_in_a_chunk_of_the_allowed_size(words: list[str], size: int) -> None:
    document = Document(id="d", title="T", text=" ".join(words))
    chunks = list(chunked([document], size))
    assert all(1 <= len(chunk.text.split()) <= size and chunk.title == "T" for chunk in chunks)
    assert all(chunk.text in document.text for chunk in chunks)
    assert [word for chunk in chunks for word in chunk.text.split()] == " ".join(words).split()
