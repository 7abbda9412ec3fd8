"""Documentation pages become one document per section, with everything in the title that the section needs."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.values import CorpusReader, Document
from scope_selfplay.corpus.markdown import split_page
from scope_selfplay.corpus.read import read_documents
from scope_selfplay.run.commands import documents

PAGE = """\
---
title: Pairing a sensor
product: Halden H2
versions: [3.10, "3.20"]
audience: installers
---
# Pairing a sensor

Before you begin, charge the bridge.

## Start pairing

1. Press **Pair**.

### Many at once

Repeat it.

```ini
# not a heading
## nor this
```

## The light stays amber {#amber}

Wait.
## Start pairing ##
Again.
##
Nameless.
## Empty
"""


def sections(text: str, name: str = "guide/pair.md") -> list[Document]:
    return [document for _, document in split_page(text, name=name, place=name)]


def test_every_section_is_a_document_with_product_version_and_page() -> None:
    found = sections(PAGE)
    assert [(each.id, each.title) for each in found] == [
        ("guide/pair.md", "Halden H2 (3.10, 3.20): Pairing a sensor"),
        ("guide/pair.md#start-pairing", "Halden H2 (3.10, 3.20): Pairing a sensor > Start pairing"),
        ("guide/pair.md#amber", "Halden H2 (3.10, 3.20): Pairing a sensor > The light stays amber"),
        ("guide/pair.md#start-pairing-1", "Halden H2 (3.10, 3.20): Pairing a sensor > Start pairing"),
        ("guide/pair.md#section", "Halden H2 (3.10, 3.20): Pairing a sensor"),
    ]
    assert {each.source for each in found} == {"guide/pair.md"}


def test_deeper_headings_and_code_stay_in_their_section_which_knows_its_line() -> None:
    text, lines = sections(PAGE)[1].text, PAGE.split("\n")
    assert text.startswith("1. Press **Pair**.") and "### Many at once" in text
    assert text.endswith("# not a heading\n## nor this\n```")
    for line, _ in split_page(PAGE, name="p", place="p")[1:]:
        assert lines[line - 1].startswith("##")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# Top\nText.", "Top"),
        ("Text.", "old mill"),
        ("---\nproduct: H2\n---\nText.", "H2: old mill"),
        ("---\ntitle: Mine\nversion: 1.0\n---\n# Top\nText.", "1.0: Mine"),
        ("---\n---\nText.", "old mill"),
        ("---\r\ntitle: Mine\r\n---\r\nText.", "Mine"),
    ],
)
def test_a_page_without_some_of_it_takes_what_there_is(text: str, title: str) -> None:
    (document,) = sections(text, "guide/old-mill.md")
    assert (document.title, document.text) == (title, "Text.")


def test_text_above_the_first_heading_keeps_a_document_of_its_own() -> None:
    assert [each.id for each in sections("Above.\n# Top\nBelow.", "p.md")] == ["p.md", "p.md#top"]


@pytest.mark.parametrize("fence", ["```", "~~~~", "  ````"])
def test_a_fence_ends_at_one_of_its_kind_that_is_as_long(fence: str) -> None:
    text = (
        f"# Top\n{fence}\n``\n## inside\n{fence}`\n" if "`" in fence else f"# Top\n{fence}\n```\n## inside\n"
    )
    assert len(sections(text)) == 1


@given(st.lists(st.sampled_from(["# a", "## b", "## b-1", "### c", "```", "~~~", "text", "", "##", "{#x}"])))
def test_ids_are_unique_and_no_line_of_text_is_lost(lines: list[str]) -> None:
    text = "\n".join([*lines, "text"])
    found = split_page(text, name="p.md", place="p.md")
    assert len({document.id for _, document in found}) == len(found)
    kept = "\n".join(document.text for _, document in found).split("\n")
    assert kept.count("text") == [*lines, "text"].count("text")


def test_a_folder_is_read_by_the_reader_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "guide").mkdir()
    (tmp_path / "guide" / "pair.md").write_text(PAGE, encoding="utf-8")
    (tmp_path / "notes.txt").write_text("Notes.")
    (tmp_path / ".draft.md").write_text("# Draft")
    assert [each.id for each in read_documents(tmp_path)] == ["guide/pair.md", "notes.txt"]
    by_section = read_documents(tmp_path, CorpusReader.MARKDOWN_SECTIONS)
    assert by_section == sections(PAGE)
    with pytest.raises(CorpusError, match="is a folder, and the reader jsonl reads a file"):
        read_documents(tmp_path, CorpusReader.JSONL)


def test_what_the_command_prints_is_a_corpus_again(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "pair.md").write_text(PAGE, encoding="utf-8")
    run = CliRunner()
    printed = run.invoke(documents, [str(folder), "--reader", "markdown_sections", "--json"])
    file = tmp_path / "corpus.jsonl"
    file.write_text(printed.stdout, encoding="utf-8")
    read = read_documents(folder, CorpusReader.MARKDOWN_SECTIONS)
    # A file is JSON lines whatever the domain says about folders.
    assert read_documents(file) == read_documents(file, CorpusReader.MARKDOWN_SECTIONS) == read
    shown = run.invoke(documents, [str(folder), "--domain", "wikipedia"])
    assert (
        shown.stdout
        == f"pair.md\t{len(read_documents(folder)[0].text)}\tHalden H2 (3.10, 3.20): Pairing a sensor\n"
    )
    assert shown.stderr.startswith("1 documents; characters: median ")
    wrong = run.invoke(documents, [str(folder), "--reader", "sections"])
    assert wrong.exit_code == 2 and "'jsonl', 'text_files', 'markdown_sections'" in wrong.output
