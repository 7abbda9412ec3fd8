"""What a corpus is read from, and what tells one state of it from another."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from retrieval.commands import index
from retrieval.corpus import source_bytes, source_hash
from scope_selfplay.base.errors import CorpusError


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.md").write_text("# Heading\nBody")
    (folder / "sub" / "b.txt").write_text("Plain")
    return folder


def test_only_what_is_read_of_a_folder_counts(notes: Path) -> None:
    before = source_bytes(notes)
    (notes / "picture.bin").write_bytes(b"x" * 99)
    assert source_bytes(notes) == before == 19


def test_an_index_inside_its_source_is_built_once_and_found_again(notes: Path) -> None:
    """The index was counted as a part of its own source: the same command never found it again."""
    arguments = ["build", str(notes), str(notes / "index")]
    first, second = (CliRunner().invoke(index, arguments, catch_exceptions=False) for _ in range(2))
    assert first.exit_code == second.exit_code == 0
    assert first.stdout == second.stdout


def test_a_source_is_what_its_files_hold_whatever_their_times_and_place(notes: Path, tmp_path: Path) -> None:
    before = source_hash(notes)
    copy = tmp_path / "copy"
    shutil.copytree(notes, copy, copy_function=shutil.copyfile)
    assert source_hash(copy) == before
    (notes / "a.md").write_text("# Heading\nbody")
    assert source_hash(notes) != before
    (copy / "a.md").rename(copy / "c.md")
    assert source_hash(copy) != before


def test_a_source_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"gone\.jsonl: cannot be read"):
        source_hash(tmp_path / "gone.jsonl")
