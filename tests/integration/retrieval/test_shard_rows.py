"""ShardConnections out of `scope index build --rows`, served: a router takes all of them in order, and nothing else."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from retrieval.cli import index
from retrieval.router import ShardRouter
from scope_selfplay.errors import RunMismatchError
from scope_selfplay.testing.random_encoder import write_random_encoder

from .conftest import Running

pytestmark = pytest.mark.integration


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    source = tmp_path / "corpus.jsonl"
    words = ["ab", "cd", "ef", "gh"]
    source.write_text("".join(json.dumps({"text": f"{words[n % 4]} {n}"}) + "\n" for n in range(40)))
    model = write_random_encoder(tmp_path / "e5", np.random.default_rng(1), layers=1, hidden=32, heads=2)
    made = []
    for rows in ("0:15", "15:30", "30:"):
        folder = tmp_path / rows.replace(":", "-")
        options = ["--profile", "flat", "--encoder", str(model), "--rows", rows]
        CliRunner().invoke(index, ["build", str(source), str(folder), *options], catch_exceptions=False)
        made.append(folder)
    return made


async def test_a_router_takes_every_row_once_and_in_order(running: Running, folders: list[Path]) -> None:
    async with running(folders[0]) as a, running(folders[1]) as b, running(folders[2]) as c:
        whole = ShardRouter([a, b, c])
        await whole.load()
        assert whole.current.info["rows"] == 40
        await whole.close()
        for urls in ([a, b], [b, c], [a, c], [a, c, b]):
            with pytest.raises(RunMismatchError, match="the shards hold rows"):
                await ShardRouter(urls).load()
