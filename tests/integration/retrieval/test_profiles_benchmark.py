"""The benchmark of the profiles: a row for each, also for one that its gate refuses, on vectors with neighbours."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.profiles import clustered, compare_profiles, train_cells, try_cells
from retrieval.profiles import ProfileName
from retrieval.recall_gate import exact

pytestmark = pytest.mark.integration


def test_every_profile_has_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare_profiles(tmp_path, 3000, 32)
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()[2:]}
    assert set(rows) == set(ProfileName)
    assert rows["bm25"][3] == rows["flat"][3] == "exact"
    assert float(rows["balanced"][3]) >= 0.98
    assert 0.99 <= float(rows["gpu"][3]) <= 1


def test_a_refused_profile_shows_the_best_that_it_reached(tmp_path: Path) -> None:
    """It printed the refusal in place of its row."""
    vectors = clustered(tmp_path / "vectors.npy", 2064, 32)
    corpus, queries = np.ascontiguousarray(vectors[:2000]), np.ascontiguousarray(vectors[2000:])
    of_others = exact(queries[::-1].copy(), [corpus]).rows
    row = try_cells(ProfileName.COMPACT, corpus, queries, of_others, train_cells(corpus))
    assert "its gate asks for 0.99 and refuses" in row.looking
    assert row.recall is not None and 0 <= row.recall < 0.9
    assert row.gigabytes > 0 and row.rate > 0


def test_made_up_vectors_vary_along_few_directions_and_have_neighbours(tmp_path: Path) -> None:
    vectors = clustered(tmp_path / "vectors.npy", 3000, 128)
    variances = np.linalg.eigvalsh(np.cov(vectors.T))
    directions = variances.sum() ** 2 / np.square(variances).sum()
    assert directions < 128 / 4
    near = exact(vectors[:200], [vectors], topk=4).scores[:, 1:].mean()
    far = (vectors[:200] @ vectors[200:400].T).mean()
    assert near > far + 0.3
