"""The secret of a run's fences: random, kept, and the same for every process of the run."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scope_selfplay.base.errors import RecordError
from scope_selfplay.judge.fences import fence_key
from scope_selfplay.judge.model import KEY_FILE, run_key


def test_two_runs_of_one_seed_have_different_keys_that_nobody_can_derive(tmp_path: Path) -> None:
    one, other = (run_key(tmp_path / name) for name in ("one", "other"))

    assert len(one) == 32 and len({one, other, fence_key(0)}) == 3
    assert run_key(tmp_path / "one") == one
    assert stat.S_IMODE((tmp_path / "one" / KEY_FILE).stat().st_mode) == 0o600


def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        keys = list(pool.map(lambda _: run_key(tmp_path), range(64)))

    assert len(set(keys)) == 1 and [path.name for path in tmp_path.iterdir()] == [KEY_FILE]


@pytest.mark.parametrize("content", ["", "not hex", "ab" * 31, "ab" * 33])
def test_a_damaged_key_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / KEY_FILE).write_text(content)
    with pytest.raises(RecordError, match="64 hex digits"):
        run_key(tmp_path)
