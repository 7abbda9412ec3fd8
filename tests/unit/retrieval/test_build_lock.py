"""Two equal builds at once: one builds, the other waits and finds the index."""

import os
import threading
from pathlib import Path

import pytest

from retrieval.build import build_bm25
from retrieval.folder import read_manifest
from scope_selfplay.base.values import Document


def test_a_second_build_waits_and_finds_the_index_of_the_first(
    tmp_path: Path, coast: list[Document], capsys: pytest.CaptureFixture[str]
) -> None:
    """The loser crashed: its passages had been renamed under it."""
    reading, go_on = threading.Event(), threading.Event()
    second: list[str] = []

    def slowly() -> object:
        reading.set()
        assert go_on.wait(20)
        yield from coast

    def build_too() -> None:
        second.append(build_bm25([], tmp_path).identity)

    first = threading.Thread(target=build_bm25, args=(slowly(), tmp_path))
    first.start()
    assert reading.wait(20)
    other = threading.Thread(target=build_too)
    other.start()
    other.join(0.2)
    assert other.is_alive()
    go_on.set()
    first.join(20)
    other.join(20)
    assert second == [read_manifest(tmp_path).identity]
    assert f"waiting up to 60 s for process {os.getpid()} on" in capsys.readouterr().err


def test_a_finished_index_that_cannot_be_written_is_found(
    tmp_path: Path, coast: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build_bm25(coast, tmp_path)

    def refuse(folder: Path) -> None:
        raise AssertionError("the lock of a finished index was asked for")

    monkeypatch.setattr("retrieval.build.lock_folder", refuse)
    assert build_bm25(coast, tmp_path) == built
