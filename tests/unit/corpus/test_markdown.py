"""Documentation pages become one document per section, with everything in the title that the section needs."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.values import CorpusReader, Document
from scope_selfplay.corpus.cut import headings, split_page
from scope_selfplay.corpus.read import read_documents
from scope_selfplay.report.commands import documents

PAGE = """\
---
title: Pairing a sensor
product: Halden H2
versions: [3.10, "3.20"]
keywords: ["Halden",
"pairing: sensors", [never closed
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
    """Deeper headings and code stay in their section, which knows its line."""
    found = sections(PAGE)
    assert [(each.id, each.title) for each in found] == [
        ("guide/pair.md", "Halden H2 (3.10, 3.20): Pairing a sensor"),
        ("guide/pair.md#start-pairing", "Halden H2 (3.10, 3.20): Pairing a sensor > Start pairing"),
        ("guide/pair.md#amber", "Halden H2 (3.10, 3.20): Pairing a sensor > The light stays amber"),
        ("guide/pair.md#start-pairing-1", "Halden H2 (3.10, 3.20): Pairing a sensor > Start pairing"),
        ("guide/pair.md#section", "Halden H2 (3.10, 3.20): Pairing a sensor"),
    ]
    assert {each.source for each in found} == {"guide/pair.md"}
    text, lines = found[1].text, PAGE.split("\n")
    assert text.startswith("1. Press **Pair**.") and "### Many at once" in text
    assert text.endswith("# not a heading\n## nor this\n```")
    other = "---\ntitle: Halden\n---\n## Start\n\nPress it.\n"
    ((_, whole),) = split_page(other, name="p", place="p", deepest=0)
    assert (whole.title, whole.text) == ("Halden", "## Start\n\nPress it.")
    for line, _ in split_page(PAGE, name="p", place="p")[1:]:
        assert lines[line - 1].startswith("##")


BOOK = "# One\n\nA.\n\n# Two\n\nB.\n\n## Setup\n\n    code = 1\n"


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        (BOOK, ["One", "Two", "Two > Setup"]),
        (f"---\ntitle: Book\n---\n{BOOK}", ["Book > One", "Book > Two", "Book > Two > Setup"]),
        (f"+++\ntitle = 'Book'\nversion = 3.10\n\n[menu]\na = 1\n+++\n{BOOK}", ["3.10: Book > One"]),
        ("---\ntitle: Foo: it's bar\nauthor: [{name: A}]\n\n# b\nx:\n- y\n---\nText.", ["Foo: it's bar"]),
        ("---\n\nA rule: it opens the page.\n\n---\n\nText.", ["pair"]),
        ("---\nDate: of old\n\nProse.\n\n---\n\nText.", ["pair"]),
        ("---\n\nText.", ["pair"]),
        ('---\ntitle: "half \\ud83d"\n---\nText.', ["half \ufffd"]),
    ],
)
def test_the_title_of_a_section_has_its_chapter_and_front_matter_is_what_reads_as_such(
    text: str, titles: list[str]
) -> None:
    found = sections(text)
    assert [each.title for each in found][: len(titles)] == titles
    assert found[-1].text.endswith("Text.") or found[-1].text == "    code = 1"
    assert (found[0].text == text) is (titles == ["pair"])


def test_front_matter_that_is_broken_is_named() -> None:
    with pytest.raises(CorpusError, match=r"pair\.md, line 2: front matter is not valid YAML"):
        sections("---\ntitle: [\n---\nText.")
    with pytest.raises(CorpusError, match=r"pair\.md, line 2: front matter is not valid TOML: Invalid value"):
        sections("+++\ntitle = [\n+++\nText.")


@given(st.lists(st.sampled_from(["# a", "## b", "## b-1", "### c", "```", "~~~", "text", "", "##", "{#x}"])))
def test_ids_are_unique_and_no_line_of_text_is_lost(lines: list[str]) -> None:
    text = "\n".join([*lines, "text"])
    found = split_page(text, name="p.md", place="p.md")
    assert len({document.id for _, document in found}) == len(found)
    kept = "\n".join(document.text for _, document in found).split("\n")
    assert kept.count("text") == [*lines, "text"].count("text")


COMMONMARK = MarkdownIt("commonmark").disable("reference")
BLOCKS = """text,* item,- **b**,  more,    deep,1. one,# a,  ## b,---,===,***,```,  ```,~~~,<div>,<!-- c,d -->,<pre>
> # q,a | b,--|--,- ,+ `c`,\tTab""".replace("\n", ",").split(",")


@given(st.lists(st.sampled_from([*[""] * len(BLOCKS), *["text", "* item"] * 5, *BLOCKS]), max_size=20))
def test_headings_are_those_of_commonmark_whatever_prose_is_around_them(lines: list[str]) -> None:
    tokens = COMMONMARK.parse("\n".join(lines))
    found = [
        (*token.map, int(token.tag[1]), tokens[place + 1].content)
        for place, token in enumerate(tokens)
        if token.type == "heading_open" and token.level == 0 and token.map
    ]
    assert list(headings("\n".join(lines))) == found


def test_a_folder_is_read_by_the_reader_that_is_asked_for(tmp_path: Path) -> None:
    folder, file, run = tmp_path / "docs", tmp_path / "corpus.jsonl", CliRunner()
    (folder / "guide").mkdir(parents=True)
    (folder / "guide" / "pair.md").write_text(PAGE, encoding="utf-8")
    (folder / "notes.txt").write_text("Notes.")
    (folder / ".draft.md").write_text("# Draft")
    assert [each.id for each in read_documents(folder)] == ["guide/pair.md", "notes.txt"]
    by_section = read_documents(folder, CorpusReader.MARKDOWN_SECTIONS)
    assert by_section == sections(PAGE)
    with pytest.raises(CorpusError, match="is a folder, and the reader jsonl reads a file"):
        read_documents(folder, CorpusReader.JSONL)
    # What the command writes is a corpus again: a file is JSON lines whatever the domain says about folders.
    assert not run.invoke(
        documents, [str(folder), "--reader", "markdown_sections", "-o", str(file)]
    ).exit_code
    assert read_documents(file) == read_documents(file, CorpusReader.MARKDOWN_SECTIONS) == by_section
    shown = run.invoke(documents, [str(folder), "--domain", "wikipedia"])
    assert shown.stdout.endswith("\tHalden H2 (3.10, 3.20): Pairing a sensor\nnotes.txt\t6\tnotes\n")
    assert re.search(r"\ncharacters +\d+ +median \d+, longest \d+\n", shown.stdout)
    wrong = run.invoke(documents, [str(folder), "--reader", "sections"])
    assert wrong.exit_code == 2 and "'jsonl', 'text_files', 'markdown_sections'" in wrong.output
