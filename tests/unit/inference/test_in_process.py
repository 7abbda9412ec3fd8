"""Whether the cache of an engine in the trainer's process has room."""

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.machine import memory_left
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.in_process import check_room, free_bytes

QWEN3_1_7B = SimpleNamespace(num_hidden_layers=28, num_key_value_heads=8, head_dim=128, hidden_size=2048)
GIB = 2**30


def check(slots: int = 96, max_length: int = 16_384, free: int | None = None) -> None:
    check_room(QWEN3_1_7B, 4, slots=slots, max_length=max_length, free=free, where="cuda:0")


def test_the_cache_of_a_real_model_is_counted_and_what_is_advised_fits() -> None:
    size = 229_376 * 96 * 16_385
    check(free=size)
    check(free=None)
    with pytest.raises(ConfigError):
        check(free=size - 1)
    with pytest.raises(ConfigError) as refused:
        check(free=70 * GIB)
    for part in (
        "336.0 GiB",
        "96 slots x 16,384 tokens x 229,376 bytes",
        "70.0 GiB are free on cuda:0",
        "lower model.slots to 19 (`scope serve-model`: --slots) or, but for a benchmark, model.max_length to 3,412",
    ):
        assert part in str(refused.value)
    check(19, 16_384, 70 * GIB)
    check(96, 3_412, 70 * GIB)


def test_a_container_with_less_than_the_machine_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = free_bytes(SimpleNamespace(type="cpu"))
    assert free is not None and 0 < free <= pages
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    left = partial(memory_left, tmp_path)
    monkeypatch.setattr("scope_selfplay.inference.in_process.memory_left", left)
    assert free_bytes(SimpleNamespace(type="cpu")) == 600_000


def test_words_that_a_tokenizer_adds_stay_its_tokens() -> None:
    codec = ChatCodec.load(policy_path("embedded"))
    said = " Ask of Aldmoor's heir. [1] Write:"
    assert codec.count(said) == len(codec.tokenizer(said, add_special_tokens=False).input_ids) < 12
