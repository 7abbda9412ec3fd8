"""Source documents: what is read, what is refused and how it is said, and how long ones are cut."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.base.errors import ConfigError, CorpusError
from scope_selfplay.base.values import Document
from scope_selfplay.config.load import load_config
from scope_selfplay.corpus import read as reading
from scope_selfplay.corpus.cut import Chunker, CountTokens
from scope_selfplay.corpus.read import read_documents, read_sample
from scope_selfplay.corpus.sample import shuffled, take_unused

GOOD_LINE = b'{"id": "a", "title": "A", "text": "About a."}\n'


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_jsonl_file_is_read_in_its_order(tmp_path: Path) -> None:
    lines = GOOD_LINE + b'\n{"id": "0", "title": "", "text": " z\xc3\xa9 ", "source": "s", "url": 1}\r\n  \n'
    assert read_documents(write(tmp_path / "c.jsonl", b"\xef\xbb\xbf" + lines)) == [
        Document(id="a", title="A", text="About a."),
        Document(id="0", title="", text="zé", source="s"),
    ]


def test_the_wiki_18_form_has_its_title_on_the_first_line_of_the_contents(tmp_path: Path) -> None:
    line = json.dumps({"id": "7", "contents": '"The "Great" Dam"\nIt stands.\nStill.'})
    (document,) = read_documents(write(tmp_path / "c.jsonl", line.encode()))
    assert document == Document(id="7", title='The "Great" Dam', text="It stands.\nStill.")


def test_a_folder_gives_its_text_files_by_path(tmp_path: Path) -> None:
    write(tmp_path / "b.txt", "Späte Notiz.".encode())
    write(tmp_path / "a" / "old_mill-house.md", b"Just text.")
    write(tmp_path / "a" / "Dam.MD", b"\xef\xbb\xbf# The dam\n\nIt stands.\n")
    write(tmp_path / ".hidden" / "x.txt", b"\xff")
    write(tmp_path / "picture.png", b"\xff")
    assert read_documents(tmp_path) == [
        Document(id="a/Dam.MD", title="The dam", text="It stands."),
        Document(id="a/old_mill-house.md", title="old mill house", text="Just text."),
        Document(id="b.txt", title="b", text="Späte Notiz."),
    ]


def lines_of(ids: Sequence[str]) -> bytes:
    return b"".join(
        json.dumps({"id": each, "title": each, "text": f"About {each}."}).encode() + b"\n" for each in ids
    )


def test_a_sample_is_the_beginning_of_all_shuffled_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", lines_of([f"d{number}" for number in range(500)]))
    sample = read_sample(path, None, 40, seed=7)
    assert len(sample) == 40
    whole, of_sample = shuffled(read_documents(path), seed=7), shuffled(sample, seed=7)
    taken = [each.id for each in take_unused(whole, count=10, taken=(), wanted_by="first")]
    assert take_unused(of_sample, count=30, taken=taken, wanted_by="second") == take_unused(
        whole, count=30, taken=taken, wanted_by="second"
    )
    assert read_sample(path, None, 40, seed=8) != sample
    assert read_sample(path, None, 1000, seed=7) == whole


def test_a_sample_checks_every_line_and_finds_ids_that_occur_twice(tmp_path: Path) -> None:
    ids = [f"d{number}" for number in range(50)]
    first = read_sample(write(tmp_path / "c.jsonl", lines_of(ids)), None, 3, seed=1)[0]
    damaged = write(tmp_path / "damaged.jsonl", lines_of(ids) + b"{\n")
    with pytest.raises(CorpusError, match="line 51: damaged"):
        read_sample(damaged, None, 3, seed=1)
    twice = write(tmp_path / "twice.jsonl", lines_of([*ids, first.id]))
    with pytest.raises(CorpusError, match=f"the id '{first.id}' occurs twice"):
        read_sample(twice, None, 3, seed=1)
    with pytest.raises(CorpusError, match=f"the id '{first.id}' occurs twice"):
        shuffled([first, first], seed=0)


def test_a_file_that_memory_would_not_hold_is_refused_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "c.jsonl", lines_of(["a", "b"]))
    monkeypatch.setattr(reading, "LARGEST_WHOLE", 10)
    with pytest.raises(CorpusError, match=r"c\.jsonl: has 0\.0 GB, .* set corpus\.sample"):
        read_documents(path)
    assert len(read_sample(path, None, 1, seed=1)) == 1


def test_the_embedded_world_has_a_size_of_its_own() -> None:
    with pytest.raises(ConfigError, match="has 16 to 640 articles, found sample 5"):
        load_config(None, ["corpus.sample=5", "corpus.path=embedded"])


def count_bytes(texts: Sequence[str]) -> list[int]:
    """Every token boundary inside a character is a trap."""
    return [len(text.encode()) for text in texts]


class Words:
    """Counts words, however they are spaced, and the characters that it was asked about."""

    asked = 0

    def __call__(self, texts: Sequence[str]) -> list[int]:
        self.asked += sum(map(len, texts))
        return [len(text.split()) for text in texts]


def pieces_of(text: str, max_tokens: int, title: str = "", count: CountTokens = count_bytes) -> list[str]:
    document = Document(id="d", title=title, text=text, source="s")
    pieces = Chunker(max_tokens, count).cut(document)
    assert all((piece.title, piece.source) == (title, "s") for piece in pieces)
    return [piece.text for piece in pieces]


texts = st.text(st.sampled_from("ab.! \n\té東😀"), min_size=1, max_size=300)


@given(texts, st.integers(8, 60), st.sampled_from(["", "T", "Ti"]))
def test_pieces_fit_and_lose_nothing_but_whitespace(text: str, max_tokens: int, title: str) -> None:
    pieces = pieces_of(text, max_tokens, title)
    room = max_tokens - (len(title) + 1 if title else 0)
    assert all(len(piece.encode()) <= room for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


@given(texts, st.integers(1, 20))
def test_a_tokenizer_that_loses_spacing_still_gives_pieces_that_fit(text: str, max_tokens: int) -> None:
    pieces = pieces_of(text, max_tokens, count=Words())
    assert all(len(piece.split()) <= max_tokens for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


def test_a_document_that_fits_is_left_alone_and_pieces_are_numbered_after_theirs() -> None:
    document = Document(id="d", title="T", text="12345678")
    assert Chunker(10, count_bytes).cut(document) == [document]
    document = Document(id="d", title="", text="one two three")
    pieces = Chunker(5, count_bytes).cut(document)
    assert [(piece.id, piece.text) for piece in pieces] == [("d#0", "one"), ("d#1", "two"), ("d#2", "three")]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("One two. Three four five.", ["One two.", "Three four", "five."]),
        ("One two three four.", ["One two", "three four."]),
        ("abcdefghijklmnop", ["abcdefghijkl", "mnop"]),
        ("東京東京東", ["東京東京", "東"]),
    ],
)
def test_cuts_prefer_sentences_then_words(text: str, pieces: list[str]) -> None:
    assert pieces_of(text, 12) == pieces


def test_pieces_are_filled_well() -> None:
    words = " ".join(f"word{number}" for number in range(3000))
    pieces = pieces_of(words, 200)
    assert len(pieces) <= 1.1 * len(words) / 200


@pytest.mark.parametrize(("title", "text", "limit"), [("A long title", "some text", 8), ("", "😀😀", 3)])
def test_a_limit_without_room_for_text_is_refused(title: str, text: str, limit: int) -> None:
    with pytest.raises(CorpusError, match=rf"document 'd': {limit} tokens leave no room for text"):
        pieces_of(text, limit, title)


def test_a_tokenizer_whose_words_do_not_add_up_has_every_piece_checked() -> None:
    def count(texts: Sequence[str]) -> list[int]:
        return [len(text) + text.count(" ") * 3 if len(text) > 20 else len(text) for text in texts]

    document = Document(id="d", title="T", text="some words of a text " * 2000)
    pieces = Chunker(60, count).cut(document)
    assert max(count([f"T\n{piece.text}" for piece in pieces])) <= 60
    assert "".join(piece.text for piece in pieces).split() != [] and len(pieces) > 500


def test_long_texts_are_cut_by_the_words_that_they_repeat() -> None:
    """A tokenizer is asked for a word once, not for every place where it stands."""
    count = Words()
    text = "One or two sentences that a corpus repeats. They are many. " * 20_000
    pieces = Chunker(100, count).cut(Document(id="d", title="", text=text))
    assert sum(len(piece.text.split()) for piece in pieces) == len(text.split())
    # The first pieces are checked as a whole; without remembering, all of it would be asked for.
    assert count.asked < len(text) / 10


def test_pages_are_not_encoded_whole_to_see_whether_they_fit() -> None:
    count = Words()
    page, note = "Words of a page that others have as well. " * 40, "A short note."
    chunker = Chunker(100, count)
    pieces = [
        piece
        for number in range(500)
        for text in (page, note)
        for piece in chunker.cut(Document(id=f"{number}{text[0]}", title="", text=text))
    ]
    assert len(pieces) == 500 * 5 and all(len(piece.text.split()) <= 100 for piece in pieces)
    assert count.asked < 500 * len(page + note) / 10
