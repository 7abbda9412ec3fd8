"""What a process may use: CPUs of its affinity and its container's quota, memory of its container's limit."""

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.machine import available_cpus, memory_left, memory_limit
from scope_selfplay.inference.in_process import check_room, free_bytes

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


QWEN3_1_7B = SimpleNamespace(num_hidden_layers=28, num_key_value_heads=8, head_dim=128, hidden_size=2048)
GIB = 2**30


def check(slots: int = 96, max_length: int = 16_384, free: int | None = None) -> None:
    check_room(QWEN3_1_7B, 4, slots=slots, max_length=max_length, free=free, where="cuda:0")


def test_the_cache_of_a_real_model_with_the_default_slots_is_counted() -> None:
    size = 229_376 * 96 * 16_385
    check(free=size)
    check(free=None)
    with pytest.raises(ConfigError):
        check(free=size - 1)
    with pytest.raises(ConfigError) as refused:
        check(free=70 * GIB)
    message = str(refused.value)
    for part in ("336.0 GiB", "96 slots x 16,384 tokens x 229,376 bytes", "70.0 GiB are free on cuda:0"):
        assert part in message
    assert "lower slots to 19 (model.slots, --slots) or max_length to 3,412" in message


@pytest.mark.parametrize(("slots", "length"), [(19, 16_384), (96, 3_412)])
def test_what_is_advised_fits(slots: int, length: int) -> None:
    check(slots, length, 70 * GIB)


def test_this_machine_says_what_it_has() -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = free_bytes(SimpleNamespace(type="cpu"))
    assert free is not None and 0 < free <= pages


def test_a_container_with_less_than_the_machine_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("1000000\n")
    (tmp_path / "memory/memory.usage_in_bytes").write_text("400000\n")
    left = partial(memory_left, tmp_path)
    monkeypatch.setattr("scope_selfplay.inference.in_process.memory_left", left)
    assert free_bytes(SimpleNamespace(type="cpu")) == 600_000
