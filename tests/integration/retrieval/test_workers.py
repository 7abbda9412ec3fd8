"""Worker processes: what costs one, and how many there may be."""

import shutil
from pathlib import Path

import pytest

from retrieval.manifest import read_manifest, write_manifest
from retrieval.metrics import Metrics
from retrieval.service import Service, Settings
from retrieval.workers import WorkerEngine
from scope_selfplay.errors import ConfigError, SearchError

pytestmark = pytest.mark.integration


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


async def test_the_gpu_profile_is_served_by_one_worker_only(index_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    shutil.copytree(index_folder, folder)
    write_manifest(folder, read_manifest(folder).model_copy(update={"profile": "gpu"}))
    service = Service(Settings(folder=folder, workers=4), Metrics())
    with pytest.raises(ConfigError, match=r"--workers 4.*serve the gpu profile with --workers 1"):
        await service.load()
