"""A retriever that its container cannot hold is refused at the start, with what it takes."""

import pytest

from retrieval.folder import ENCODER, PASSAGES, FileChecksum, IndexKind, IndexManifest
from retrieval.profiles import GIB, ProfileName, ServeMemory, check_memory, serve_memory
from scope_selfplay.base.errors import ConfigError

WIKIPEDIA = {
    "cells.faiss": 2_900_000_000,
    "fine.npy": 16_140_000_000,
    PASSAGES: 13_800_000_000,
    f"{ENCODER}/model.onnx": 440_000_000,
}


def manifest_of(profile: ProfileName, sizes: dict[str, int]) -> IndexManifest:
    files = {name: FileChecksum(size=size, sha256="0" * 64) for name, size in sizes.items()}
    return IndexManifest(kind=IndexKind.DENSE, profile=profile, rows=1, corpus_hash="c", files=files)


def test_search_processes_hold_an_encoder_each_and_share_the_index() -> None:
    one, many = (serve_memory(manifest_of(ProfileName.COMPACT, WIKIPEDIA), workers) for workers in (1, 15))
    assert many.mapped == one.mapped
    assert one.mapped == round(0.2 * (2_900_000_000 + 16_140_000_000)) + 13_800_000_000 // 4
    assert many.held - one.held == 14 * ((400 << 20) + 660_000_000)
    assert 20 < many.total / GIB < 25
    whole = serve_memory(manifest_of(ProfileName.BALANCED, WIKIPEDIA), 1)
    assert whole.mapped - one.mapped == round(0.8 * (2_900_000_000 + 16_140_000_000))
    assert serve_memory(manifest_of(ProfileName.COMPACT, WIKIPEDIA), 0) == one, "a thread of the server"


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
