"""Source documents: what is read, skipped or refused and how it is said, and into how large chunks they are cut."""

import gzip
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from retrieval.corpus import read_documents as read_for_index
from scope_selfplay.base.errors import ConfigError, CorpusError
from scope_selfplay.base.sampling import Message
from scope_selfplay.base.terminal import LineProgress, Progress
from scope_selfplay.base.values import CorpusReader, Document
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import CorpusConfig
from scope_selfplay.corpus import read as reading
from scope_selfplay.corpus.cut import Chunker, CountTokens
from scope_selfplay.corpus.formats import Format
from scope_selfplay.corpus.read import read_documents, read_run_corpus, read_sample, survey
from scope_selfplay.corpus.screen import TaskSource, shuffled, take_unused
from scope_selfplay.dialects.families import dialect
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.report.commands import documents
from scope_selfplay.run.begin import chunk_size, open_run, prompt_tokens, run_documents, task_types_of
from scope_selfplay.run.candidate import challenger_prompts
from tests.models import write_model
from tests.word_codec import WordCodec

GOOD_LINE = b'{"id": "a", "title": "A", "text": "About a."}\n'


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_jsonl_file_is_read_in_its_order(tmp_path: Path) -> None:
    lines = (
        GOOD_LINE + b'\n{"id": "0", "title": "", "text": "\\n  z\xc3\xa9 ", "source": "s", "url": 1}\r\n  \n'
    )
    # In the form of wiki-18 the title is on the first line of the contents.
    lines += json.dumps({"id": "7", "contents": '"The "Great" Dam"\nIt stands.\nStill.'}).encode()
    assert read_documents(write(tmp_path / "c.jsonl", b"\xef\xbb\xbf" + lines)) == [
        Document(id="a", title="A", text="About a."),
        Document(id="0", title="", text="  zé", source="s", metadata={"url": "1"}),
        Document(id="7", title='The "Great" Dam', text="It stands.\nStill."),
    ]


def test_a_folder_gives_its_text_files_by_path(tmp_path: Path) -> None:
    write(tmp_path / "b.txt", "Späte Notiz.".encode())
    write(tmp_path / "a" / "old_mill-house.md", b"Just text.")
    write(tmp_path / "a" / "Dam.MD", b"\xef\xbb\xbf# The dam\n\nIt stands.\n")
    write(tmp_path / ".hidden" / "x.txt", b"\xff")
    write(tmp_path / "picture.png", b"\xff")
    assert read_documents(tmp_path) == [
        Document(id="a/Dam.MD", title="The dam", text="It stands.", source="a/Dam.MD"),
        Document(
            id="a/old_mill-house.md", title="old mill house", text="Just text.", source="a/old_mill-house.md"
        ),
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
    with pytest.raises(ConfigError, match="has 16 to 640 articles, found sample 5"):
        load_config(None, ["corpus.sample=5", "corpus.path=embedded"])


def count_bytes(texts: Sequence[str]) -> list[int]:
    """Every token boundary inside a character is a trap."""
    return [len(text.encode()) for text in texts]


def count_words(texts: Sequence[str]) -> list[int]:
    """However they are spaced."""
    return [len(text.split()) for text in texts]


def pieces_of(text: str, max_tokens: int, title: str = "", count: CountTokens = count_bytes) -> list[str]:
    pieces = Chunker(max_tokens, count).cut(Document(id="d", title=title, text=text, source="s"))
    assert all((piece.title, piece.source) == (title, "s") for piece in pieces)
    return [piece.text for piece in pieces]


@pytest.mark.parametrize("count", [count_bytes, count_words])
@given(
    text=st.text(st.sampled_from("ab.! \n\té東😀"), min_size=1, max_size=300),
    max_tokens=st.integers(8, 60),
    title=st.sampled_from(["", "T", "Ti"]),
)
def test_pieces_fit_and_lose_nothing_but_whitespace(
    count: CountTokens, text: str, max_tokens: int, title: str
) -> None:
    """Also where a tokenizer loses spacing."""
    pieces = pieces_of(text, max_tokens, title, count)
    assert max(count([f"{title}\n{piece}" if title else piece for piece in pieces])) <= max_tokens
    assert "".join("".join(pieces).split()) == "".join(text.split())


def test_a_document_that_fits_is_left_alone_and_pieces_are_numbered_after_theirs() -> None:
    document = Document(id="d", title="T", text="12345678")
    assert Chunker(10, count_bytes).cut(document) == [document]
    document = Document(id="d", title="", text="one two three")
    pieces = Chunker(5, count_bytes).cut(document)
    assert [(piece.id, piece.text) for piece in pieces] == [("d#0", "one"), ("d#1", "two"), ("d#2", "three")]


def test_cuts_prefer_sentences_then_words() -> None:
    for text, pieces in (
        ("One two. Three four five.", ["One two.", "Three four", "five."]),
        ("One two three four.", ["One two", "three four."]),
        ("abcdefghijklmnop", ["abcdefghijkl", "mnop"]),
    ):
        assert pieces_of(text, 12) == pieces
    words = " ".join(f"word{number}" for number in range(3000))
    assert len(pieces_of(words, 200)) <= 1.1 * len(words) / 200, "pieces are filled well"


def test_a_tokenizer_whose_words_do_not_add_up_has_every_piece_checked() -> None:
    def count(texts: Sequence[str]) -> list[int]:
        return [len(text) + text.count(" ") * 3 if len(text) > 20 else len(text) for text in texts]

    document = Document(id="d", title="T", text="some words of a text " * 2000)
    pieces = Chunker(60, count).cut(document)
    assert max(count([f"T\n{piece.text}" for piece in pieces])) <= 60
    assert "".join(piece.text for piece in pieces).split() != [] and len(pieces) > 500


@pytest.mark.parametrize(("title", "text", "limit"), [("A long title", "some text", 8), ("", "😀😀", 3)])
def test_a_limit_without_room_for_text_is_refused(title: str, text: str, limit: int) -> None:
    with pytest.raises(CorpusError, match=rf"document 'd': {limit} tokens leave no room for text"):
        pieces_of(text, limit, title)


OFFICE = Path(__file__).parents[2] / "fixtures" / "office"
"""A PDF with a line, one without any text, and a letter."""
HTML = (
    "<html><head><title>Pumps &amp; valves</title><script>let x = 1</script></head>"
    "<body><p>A pump lifts water.</p><h2>Care</h2><p>Oil it <b>often</b>.</p></body></html>"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in {
        "a.md": "# A\nText.",
        "b.txt": "Notes.",
        "c.rst": "Text.",
        "lines.jsonl": "{}",
        "no_suffix": "x",
        ".hidden.md": "x",
        ".git/config.md": "x",
        "page.html": HTML,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def test_everything_that_is_not_hidden_is_read_or_skipped_with_a_reason_that_a_run_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Format, "is_there", property(lambda self: not self.module))
    found = survey(folder, None)
    assert [path.name for path in found.read] == ["a.md", "b.txt", "lines.jsonl"]
    reasons = {path.name: reason for path, reason in found.skipped.items()}
    assert reasons == {
        "c.rst": "need pip install 'scope-selfplay[pandoc]'",
        "no_suffix": "have a suffix that no reader knows (none)",
        "page.html": "need pip install 'scope-selfplay[documents]'",
    }
    assert str(found).startswith(
        "3 files are read, 3 skipped: 1 need pip install 'scope-selfplay[pandoc]' (c.rst); "
    )
    sections = survey(folder, CorpusReader.MARKDOWN_SECTIONS)
    assert [path.name for path in sections.read] == ["a.md", "lines.jsonl"]
    shown = json.loads(CliRunner().invoke(documents, [str(folder), "--json"]).stdout)
    assert shown["Files"] == {".md": ["1", "a.md"], ".txt": ["1", "b.txt"]}
    lacking = 'line 1: the field "text" is missing, found none; name it in corpus.fields'
    assert len(shown["Files left out"]) == 4 and shown["Files left out"][lacking] == ["1", "lines.jsonl"]
    with pytest.raises(CorpusError, match=r"3 skipped: .*; take them out, or read without strict"):
        read_documents(folder, strict=True)
    said: list[str] = []
    monkeypatch.setattr(reading, "WORTH_A_LINE", 1)
    settings, progress = CorpusConfig(path=str(folder)), LineProgress(said.append)
    read = read_run_corpus(
        settings, None, 0, size=lambda: 99, count=lambda texts: list(map(len, texts)), progress=progress
    )
    assert [document.id for document in read] == ["a.md", "b.txt"]
    line, cutting, *_ = said
    assert cutting == "cut 2 documents, in kB ..."
    assert "4 skipped: 1 need pip install 'scope-selfplay[pandoc]' (c.rst); " in line
    assert "(page.html)" in line


def test_pdf_html_and_office_files_are_documents_and_broken_ones_are_named(tmp_path: Path) -> None:
    for module in ("markitdown", "trafilatura"):
        pytest.importorskip(module, reason="needs the documents extra")
    office = Path(shutil.copytree(OFFICE, tmp_path / "office"))
    (office / "page.html").write_text(HTML)
    (office / "broken.pdf").write_bytes(b"%PDF-1.4\nnothing more")
    (office / "broken.docx").write_bytes(b"PK\x03\x04 nothing more")
    files: dict[Path, str] = {}
    read = read_documents(office, None, files)
    skipped = {path.name: reason for path, reason in files.items()}
    texts = {document.id: document for document in read}
    assert set(texts) == {"letter.docx", "manual.pdf", "page.html"}
    assert texts["page.html"].title == "Pumps & valves" and "let x" not in texts["page.html"].text
    assert "A pump lifts water." in texts["manual.pdf"].text
    assert texts["letter.docx"].text == "Dear customer, oil it often."
    assert set(skipped) == {"broken.docx", "broken.pdf", "scan.pdf"}
    assert skipped["scan.pdf"] == "holds no text (a scan?)"
    assert skipped["broken.pdf"].startswith("is damaged or not what its suffix says (")
    # A web page section by section.
    sections = {document.id: document for document in read_documents(office, CorpusReader.MARKDOWN_SECTIONS)}
    assert sections["page.html"].title == "Pumps & valves"
    care = sections["page.html#care"]
    assert (care.title, care.text) == ("Pumps & valves > Care", "Oil it **often**.")


PACK = load_pack(Path(__file__).parents[3] / "prompts" / "wikipedia")


def test_a_chunk_takes_what_the_longest_prompt_leaves_and_at_most_700_tokens() -> None:
    """Table 9 gives the Challenger 1,024 tokens of prompt."""

    def size_of(*settings: str) -> int:
        config = load_config(None, list(settings))
        return chunk_size(config, PACK, task_types_of(config, PACK), WordCodec())

    config = load_config(None)
    prompt = prompt_tokens(config, PACK, task_types_of(config, PACK), WordCodec())
    assert size_of() == min(700, 1024 - prompt - 8) < 700
    assert size_of("challenger.max_prompt=2048") == 700
    assert size_of("corpus.chunk_tokens=100") == 100
    refused = "chunk_tokens=700 does not fit .*max_prompt is 1024.* set corpus.chunk_tokens to at most"
    with pytest.raises(ConfigError, match=refused):
        size_of("corpus.chunk_tokens=700")
    with pytest.raises(ConfigError, match=r"a document does not fit .* raise challenger.max_prompt to"):
        size_of("challenger.max_prompt=200")


def test_a_run_begins_with_chunks_that_fit_and_not_with_others(tmp_path: Path) -> None:
    text = " ".join(f"Sentence {number} is about the river." for number in range(400))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "river.md").write_text(f"# The river\n\n{text}\n")
    settings = [f"model.path={write_model(tmp_path / 'model')}", f"corpus.path={tmp_path / 'docs'}"]
    settings += ["domain=support", "challenger.max_prompt=4096"]
    with pytest.raises(ConfigError, match="does not fit into the Challenger's prompt"):
        open_run(load_config(None, [*settings, "corpus.chunk_tokens=4000"]), tmp_path / "runs", Progress())
    assert not (tmp_path / "runs").exists()
    run = open_run(load_config(None, settings), tmp_path / "runs", Progress())
    assert len(run.documents) > 1
    codec = run.codec
    for document in run.documents:
        for kind in task_types_of(run.config, run.pack):
            prompts = challenger_prompts(
                run.pack, dialect("qwen2.5").search_syntax, TaskSource(document, kind.name, 3)
            )
            assert len(codec.encode_prompt([Message("user", prompts.opening)])) <= 4096


def test_what_a_run_leaves_out_of_its_documents_is_reported(tmp_path: Path) -> None:
    words = [f"word{n}" for n in range(60)]
    texts = {
        "a.md": " ".join(words),
        "b.md": " ".join([*words[:-1], "other"]),
        "c.md": "short",
        "x/i.bin": "",
        "i.bin": "",
    }
    for name, text in {**texts, **{f"y{n}/i.bin": "" for n in range(3)}}.items():
        write(tmp_path / "docs" / name, text.encode())
    settings = {
        "corpus": {"path": str(tmp_path / "docs"), "min_characters": 20},
        "challenger": {"max_prompt": 8192},
    }
    run = tmp_path / "run.yaml"
    run.write_text(json.dumps({**settings, "model": {"path": str(write_model(tmp_path / "model"))}}))
    done = CliRunner().invoke(documents, [str(run), "--json", "--near"], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert found["Left out"] == {
        "shorter than 20 characters": ["1", "c.md"],
        "near copies": ["1", "b.md = a.md"],
    }
    (left,) = found["Files left out"].values()
    assert left[0] == "5" and left[1].endswith("docs/y2/i.bin") and left[1].count("i.bin") == 5
    assert found["Kept"]["documents"] == ["1 of 3", ""]
    assert "5 have a suffix that no reader knows (.bin) (i.bin, x/i.bin, y0/i.bin, ...)" in str(
        survey(tmp_path / "docs", None)
    )
    with pytest.raises(CorpusError, match="take them out, or read without strict"):
        CliRunner().invoke(documents, [str(run), "--strict"], catch_exceptions=False)


def test_a_run_reads_the_passages_that_an_index_is_built_from(tmp_path: Path) -> None:
    """The 2018 Wikipedia of DPR (Table 9): id, text and title, quoted as CSV is."""
    path = tmp_path / "psgs_w100.tsv.gz"
    lines = 'id\ttext\ttitle\n1\t"He said ""no"" twice."\t"A ""B"" C"\n2\tplain\tTitle\n'
    path.write_bytes(gzip.compress(lines.encode()))
    settings = [f"model.path={write_model(tmp_path / 'model')}", "challenger.max_prompt=8192"]
    config = load_config(None, [*settings, f"corpus.path={path}"])
    documents = run_documents(config, PACK)
    assert documents == list(read_for_index(path))
    assert [document.title for document in documents] == ['A "B" C', "Title"]
    path.with_name("own.TSV").write_text("id\ttitle\ttext\n1\tDam\tIt stands.\n")
    assert read_documents(path.with_name("own.TSV")) == [Document(id="1", title="Dam", text="It stands.")]
    sampled = config.model_copy(update={"corpus": config.corpus.model_copy(update={"sample": 1})})
    assert len(run_documents(sampled, PACK)) == 1
