"""What an index takes on the disk and in memory, at the size of Wikipedia."""

import pytest

from retrieval.folder import ENCODER, PASSAGES, FileChecksum, IndexKind, IndexManifest
from retrieval.profiles import (
    GIB,
    ProfileName,
    ServeMemory,
    busy_bytes,
    check_memory,
    index_bytes,
    serve_memory,
)
from scope_selfplay.base.errors import ConfigError

WIKIPEDIA = 21_015_324
CELLS, FINE = 2_900_000_000, 16_140_000_000
FILES = {
    "cells.faiss": CELLS,
    "fine.npy": FINE,
    PASSAGES: 13_800_000_000,
    f"{ENCODER}/model.onnx": 440_000_000,
}


def test_wikipedia_needs_the_sizes_that_the_docs_say() -> None:
    gigabytes = {"flat": 64.6, "compact": 18.5, "balanced": 16.3, "gpu": 32.3}
    for name, size in gigabytes.items():
        assert index_bytes(ProfileName(name), WIKIPEDIA, 768) / 1e9 == pytest.approx(size, rel=0.04)
    size = {"rows": WIKIPEDIA, "dimensions": 768, "corpus_bytes": 14 * 10**9}
    assert 8e9 < busy_bytes(ProfileName.COMPACT, **size) < 16e9
    assert busy_bytes(ProfileName.BM25, **size) == WIKIPEDIA * 480 + 14 * 10**9 // 4


def served(profile: ProfileName, workers: int) -> ServeMemory:
    files = {name: FileChecksum(size=size, sha256="0" * 64) for name, size in FILES.items()}
    manifest = IndexManifest(kind=IndexKind.DENSE, profile=profile, rows=1, files=files)
    return serve_memory(manifest, workers)


def test_search_processes_hold_an_encoder_each_and_share_the_index() -> None:
    one, many = (served(ProfileName.COMPACT, workers) for workers in (1, 15))
    assert one.mapped == many.mapped == round(0.2 * (CELLS + FINE)) + 13_800_000_000 // 4
    assert many.held - one.held == 14 * ((400 << 20) + 660_000_000)
    assert 20 < many.total / GIB < 25
    assert served(ProfileName.BALANCED, 1).mapped - one.mapped == round(0.8 * (CELLS + FINE))
    assert served(ProfileName.COMPACT, 0) == one, "a thread of the server"


def test_processes_that_do_not_fit_are_refused_and_an_index_that_does_not_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    needed = ServeMemory(held=15 * GIB, mapped=7 * GIB)
    for enough in (None, 22 * GIB):
        check_memory(needed, 15, enough)
    assert capsys.readouterr().err == ""
    check_memory(needed, 15, 16 * GIB)
    assert capsys.readouterr().err == (
        "warning: processes hold 15.0 GiB, the index takes 7.0 more and the container has 16.0 GiB: searches will "
        "wait for the disk; 22Gi would hold it\n"
    )
    with pytest.raises(
        ConfigError, match=r"15 search processes hold 15\.0 GiB and the container has 8\.0 GiB: give"
    ):
        check_memory(needed, 15, 8 * GIB)
