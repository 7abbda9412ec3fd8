import os
from pathlib import Path

import numpy as np
import pytest

from scope_selfplay.schemas import Document
from scope_selfplay.testing.random_encoder import write_random_encoder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real passages and questions, which stay outside the repository."""
    root = Path(os.environ.get("SCOPE_SHARED", Path(__file__).parents[4] / "shared"))
    if not (root / "data" / "passages.jsonl").is_file():
        pytest.skip("the shared folder with real passages is absent (SCOPE_SHARED names it)")
    return root / "data"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A random encoder of E5's family, of one layer."""
    return write_random_encoder(tmp_path / "e5", np.random.default_rng(1), layers=1, hidden=64, heads=4)


@pytest.fixture
def coast() -> list[Document]:
    """A small world in which one town is named more often outside its own article than inside."""
    gossip = "Aldmoor traders. Aldmoor ships. Aldmoor bread, Aldmoor wool, Aldmoor songs and Aldmoor rain."
    return [
        Document(id="harbour", title="Harbour of the north", text=gossip),
        Document(id="aldmoor", title="Aldmoor", text="A town on the coast, founded in 1204 by fishermen."),
        Document(
            id="lamp", title="Lighthouse of Aldmoor", text="The lamp of the lighthouse was lit in 1871."
        ),
        Document(id="verrin", title="Verrin", text="A river that meets the sea near Aldmoor."),
        Document(id="twin-b", title="Twin", text="The same words in both."),
        Document(id="twin-a", title="Twin", text="The same words in both."),
    ]
