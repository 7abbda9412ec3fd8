import json
from pathlib import Path

import pytest

from scope_selfplay.base.values import Document
from scope_selfplay.testing.random_encoder import write_random_encoder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A random encoder of E5's family, of one layer."""
    return write_random_encoder(tmp_path / "e5", layers=1, hidden=64, heads=4)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """JSON lines of ten towns with 30 words each."""
    path = tmp_path / "corpus.jsonl"
    lines = [{"id": str(n), "title": f"Town {n}", "text": f"word{n} " * 30} for n in range(10)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


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
