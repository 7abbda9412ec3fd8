"""Search workers: what costs one, and how many there may be."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from retrieval.folder import MANIFEST, read_manifest
from retrieval.service import SearchService, ServiceSettings
from retrieval.workers import WorkerEngine
from scope_selfplay.base.errors import ConfigError, RecordError, SearchError

pytestmark = pytest.mark.integration


def changed(index: Path, folder: Path, **manifest: object) -> Path:
    """A copy whose manifest says something else, and fits its files all the same."""
    shutil.copytree(index, folder)
    changed = read_manifest(folder).model_copy(update=manifest)
    (folder / MANIFEST).write_text(changed.model_dump_json())
    return folder


async def test_a_worker_that_refuses_a_batch_stays_and_answers_the_next(index_folder: Path) -> None:
    """It was killed and its encoder loaded again."""
    engine = WorkerEngine(index_folder, 1)
    await engine.start()
    try:
        before = engine.pids()
        with pytest.raises(SearchError):
            await engine.search(["town1"], -1)
        ((hit,),) = await engine.search(["town1"], 1)
        assert (engine.pids(), engine.restarts) == (before, 0)
        assert hit.row == 1
    finally:
        await engine.close()


@pytest.mark.parametrize("workers", [0, 2])
async def test_a_damaged_index_is_the_users_error_with_workers_and_without(
    index_folder: Path, tmp_path: Path, workers: int
) -> None:
    """A worker's RecordError (exit 64) became a SearchError (75), which asks for another try."""
    # Only who opens the index can tell.
    folder = changed(index_folder, tmp_path / "index", rows=499)
    service = SearchService(ServiceSettings(folder=folder, workers=workers))
    with pytest.raises(RecordError, match="500 rows, the manifest says 499") as raised:
        await service.load()
    assert not str(raised.value).startswith("RecordError")


async def test_a_worker_is_started_again_until_the_index_is_whole(index_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    shutil.copytree(index_folder, folder)
    engine = WorkerEngine(folder, 1)
    await engine.start()
    try:
        (folder / "manifest.json").rename(tmp_path / "manifest.json")
        os.kill(engine.pids()[0], signal.SIGKILL)
        asked = asyncio.create_task(engine.search(["town1"], 1))
        await asyncio.sleep(1.5)
        (tmp_path / "manifest.json").rename(folder / "manifest.json")
        ((hit,),) = await asyncio.wait_for(asked, 30)
        assert hit.row == 1
    finally:
        await engine.close()


async def test_the_gpu_profile_is_served_by_one_worker_only(index_folder: Path, tmp_path: Path) -> None:
    folder = changed(index_folder, tmp_path / "index", profile="gpu")
    service = SearchService(ServiceSettings(folder=folder, workers=4))
    with pytest.raises(ConfigError, match=r"--workers 4.*serve the gpu profile with --workers 1"):
        await service.load()
