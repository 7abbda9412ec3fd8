"""What of a folder is read, what is not and why; PDF, HTML and Office files where the extra is there."""

import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from scope_selfplay.base.terminal import LineProgress
from scope_selfplay.base.values import CorpusReader
from scope_selfplay.config.run import CorpusConfig
from scope_selfplay.corpus.read import read_documents, read_run_corpus, survey
from scope_selfplay.run.commands import documents

HTML = (
    "<html><head><title>Pumps &amp; valves</title><script>let x = 1</script></head>"
    "<body><p>A pump lifts water.</p><h2>Care</h2><p>Oil it <b>often</b>.</p></body></html>"
)
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
RELATED = "http://schemas.openxmlformats.org/package/2006"
TYPE = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"


def pdf(text: str) -> bytes:
    """One page with one line."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
    ]
    body, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"trailer << /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % len(body)
    return body + b"xref\n0 5\n0000000000 65535 f \n" + table + end


def write_docx(path: Path, text: str) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{RELATED}/content-types"><Default Extension="rels" '
            f'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Override PartName="/word/document.xml" ContentType="{TYPE}"/></Types>',
        )
        file.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{RELATED}/relationships">'
            f'<Relationship Id="a" Type="{OFFICE}" Target="word/document.xml"/></Relationships>',
        )
        file.writestr(
            "word/document.xml",
            f'<w:document xmlns:w="{WORD}"><w:body><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:body></w:document>',
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
    monkeypatch.setattr("scope_selfplay.corpus.read.can_convert", lambda: False)
    found = survey(folder, None)
    assert [path.name for path in found.read] == ["a.md", "b.txt"]
    reasons = {path.name: reason for path, reason in found.skipped.items()}
    assert reasons == {
        "c.rst": "have a suffix that no reader knows (.rst)",
        "lines.jsonl": "are files of documents, which are given themselves and not in a folder",
        "no_suffix": "have a suffix that no reader knows (none)",
        "page.html": "need pip install 'scope-selfplay[documents]'",
    }
    assert str(found).startswith(
        "2 files are read, 4 skipped: 1 have a suffix that no reader knows (.rst) (c.rst); "
    )
    sections = survey(folder, CorpusReader.MARKDOWN_SECTIONS)
    assert [path.name for path in sections.read] == ["a.md"]
    shown = CliRunner().invoke(documents, [str(folder)])
    assert "4 skipped: 1 have a suffix" in shown.stderr and "(c.rst)" in shown.stderr
    said: list[str] = []
    settings, progress = CorpusConfig(path=str(folder)), LineProgress(said.append)
    read = read_run_corpus(
        settings, None, 0, size=lambda: 99, count=lambda texts: list(map(len, texts)), progress=progress
    )
    assert [document.id for document in read] == ["a.md", "b.txt"]
    (line,) = said
    assert "4 skipped: 1 have a suffix that no reader knows (.rst) (c.rst); " in line
    assert "(page.html)" in line


def test_front_matter_gives_a_text_its_title(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\ntitle: Pumps\nproduct: H2\n---\nA pump lifts water.\n")
    (tmp_path / "b.md").write_text("---\nA rule above, and no front matter.\n")
    first, second = read_documents(tmp_path)
    assert (first.title, first.text) == ("H2: Pumps", "A pump lifts water.")
    assert second.title == "b" and second.text.startswith("---\nA rule above")


@pytest.fixture
def office(tmp_path: Path) -> Path:
    pytest.importorskip("markitdown", reason="needs the documents extra")
    (tmp_path / "manual.pdf").write_bytes(pdf("A pump lifts water."))
    (tmp_path / "page.html").write_text(HTML)
    write_docx(tmp_path / "letter.docx", "Dear customer, oil it often.")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4\nnothing more")
    (tmp_path / "broken.docx").write_bytes(b"PK\x03\x04 nothing more")
    (tmp_path / "scan.pdf").write_bytes(pdf(""))
    return tmp_path


def test_pdf_html_and_office_files_are_documents_and_broken_ones_are_named(office: Path) -> None:
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
