"""What a process may use: CPUs of its affinity and its container's quota, memory of its container's limit."""

import os
from pathlib import Path

import pytest

from scope_selfplay.base.machine import available_cpus, memory_left, memory_limit

MINE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, min(2, MINE)),
        ({"cpu.max": "25000 100000\n"}, 1),
        ({"cpu.max": "9900000 100000\n"}, MINE),
        ({"cpu.max": "max 100000\n"}, MINE),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, MINE),
        ({"cpu.max": "what is this"}, MINE),
        ({}, MINE),
    ],
)
def test_the_quota_of_a_container_counts(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_cpus(tmp_path) == expected


V2, V1 = ("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")


@pytest.mark.parametrize(
    ("names", "texts", "limit", "left"),
    [
        (V2, ("17179869184\n", "7179869184\n"), 17_179_869_184, 10_000_000_000),
        (V2, ("max\n", "7179869184\n"), None, None),
        (V1, ("1073741824\n", "73741824\n"), 1_073_741_824, 1_000_000_000),
        (V1, ("1073741824\n", "1073741825\n"), 1_073_741_824, 0),
        (V1, ("9223372036854771712\n", "73741824\n"), None, None),
        (("other", "another"), ("", ""), None, None),
    ],
)
def test_memory_is_read_as_either_version_writes_it(
    names: tuple[str, str], texts: tuple[str, str], limit: int | None, left: int | None, tmp_path: Path
) -> None:
    for name, text in zip(names, texts, strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert (memory_limit(tmp_path), memory_left(tmp_path)) == (limit, left)


@pytest.mark.parametrize(("names", "folder"), [(V2, "."), (V1, "memory")])
def test_files_that_are_merely_cached_use_no_memory(
    names: tuple[str, str], folder: str, tmp_path: Path
) -> None:
    """Weights that were read from a volume count as used until something else wants the room."""
    (tmp_path / folder).mkdir(exist_ok=True)
    for name, text in zip(names, ("1073741824\n", "1000000000\n"), strict=True):
        (tmp_path / name).write_text(text)
    before = memory_left(tmp_path)
    own = "total_inactive_file" if folder == "memory" else "inactive_file"
    (tmp_path / folder / "memory.stat").write_text(f"cache 9\ninactive_anon 5\n{own} 900000000\n")
    assert (before, memory_left(tmp_path)) == (73_741_824, 973_741_824)


def test_an_index_is_built_with_no_more_threads_than_the_container_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from click.testing import CliRunner

    from retrieval.commands import build

    (tmp_path / "passages.jsonl").write_text('{"id": "a", "text": "stone"}\n')
    threads: list[int] = []
    monkeypatch.setattr("retrieval.commands.estimate_build", lambda *given, **_: threads.append(given[2]))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        done = CliRunner().invoke(
            build, [str(tmp_path / "passages.jsonl"), str(tmp_path / "i"), "--estimate-only"]
        )
    finally:
        os.sched_setaffinity(0, before)
    assert done.exit_code == 0, done.output
    assert threads == [1]
