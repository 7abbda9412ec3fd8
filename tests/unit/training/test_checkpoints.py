"""Checkpoints are whole or passed over, and a policy that cannot be trained is refused with the numbers."""

import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from benchmarks.faults.counting import FaultCounts
from scope_selfplay.base.errors import CheckpointError, ConfigError
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import ModelConfig, RunConfig
from scope_selfplay.config.training import SolverConfig, check_shares
from scope_selfplay.dialects.families import dialect
from scope_selfplay.inference.checkpoints import check_context, check_tags, stored_dtype
from scope_selfplay.store.card import Lineage, model_card
from scope_selfplay.store.folder import SUMS, damage_of, weights_hash, write_receipt
from scope_selfplay.training import engines
from scope_selfplay.training.checkpoint import PARTS, Checkpoints
from scope_selfplay.training.engines import Colocated
from scope_selfplay.training.ranks import Ranks
from tests.word_codec import WordCodec


def saved(work: Path, *steps: int, keep: int = 2) -> Checkpoints:
    checkpoints = Checkpoints(work, Ranks(), keep)
    for step in steps:
        parts = work / ".staging" / PARTS
        parts.mkdir(parents=True)
        for name in ("__0_0.distcp", "__1_0.distcp", ".metadata"):
            (parts / name).write_text(f"{name} of step {step}")
        checkpoints.publish(step)
    return checkpoints


@pytest.mark.fault(11)
def test_a_damaged_checkpoint_is_said_passed_over_and_kept(tmp_path: Path, counts: FaultCounts) -> None:
    """Every file of the newest one in turn: a bit flipped, the end cut off, gone; then of both checkpoints."""
    checkpoints = saved(tmp_path, 1, 2)
    last, before, rng = tmp_path / "checkpoint-2", tmp_path / "checkpoint-1", Random(0)
    for file in sorted(path for path in last.rglob("*") if path.is_file()):
        content = file.read_bytes()
        place = rng.randrange(len(content))
        flipped = content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
        for damaged in (flipped, content[: len(content) // 2], None):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            said: list[str] = []
            found = checkpoints.newest(said.append)
            is_well = found == before and len(said) == 1 and f"{last}: damaged checkpoint" in said[0]
            is_well = is_well and (file.name == SUMS or file.name in said[0])
            counts.add(tried=1, survived=int(is_well), lost=int(not last.exists()))
            file.write_bytes(content)
    assert checkpoints.newest(print) == last
    for each in (last, before):
        (each / SUMS).unlink()
    assert checkpoints.newest([].append) is None
    counts.add(tried=1, survived=1)
    counts.check()
    # Going on makes the same step again: what was damaged moves aside and stays.
    assert saved(tmp_path, 2).newest(print) == last and damage_of(tmp_path / "checkpoint-2.damaged-1")


@pytest.mark.parametrize(
    ("since", "took", "due"),
    [(299.9, None, False), (300.0, None, True), (189.9, 10.0, False), (190.0, 10.0, True)],
)
def test_a_save_is_due_when_it_takes_a_twentieth_of_the_time(
    since: float, took: float | None, due: bool
) -> None:
    assert SolverConfig().is_save_due(7, since, took) is due
    given = SolverConfig(save_every=7)
    assert [step for step in range(1, 15) if given.is_save_due(step, since, took)] == [7, 14]


def test_a_checkpoint_of_another_version_is_said_and_passed_over(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    old = tmp_path / "checkpoint-2"
    old.mkdir()
    (old / "model.safetensors").write_text("weights")
    write_receipt(old)
    said: list[str] = []
    assert checkpoints.newest(said.append) == tmp_path / "checkpoint-1"
    assert len(said) == 1 and "another version of scope" in said[0]


def test_damaged_ones_take_the_place_of_no_whole_one(tmp_path: Path) -> None:
    saved(tmp_path, 5, 8)
    (tmp_path / "checkpoint-8" / PARTS / ".metadata").write_text("x")
    assert Checkpoints(tmp_path, Ranks()).newest(lambda line: None) == tmp_path / "checkpoint-5"
    saved(tmp_path, 6, 7)
    kept = {path.name for path in tmp_path.glob("checkpoint-*")}
    assert kept == {"checkpoint-6", "checkpoint-7", "checkpoint-8"}


def test_groups_are_dealt_out_whole_or_not_at_all() -> None:
    settings = SolverConfig(batch=12, group_size=8)
    assert (check_shares(settings, 1), check_shares(settings, 3)) == (12, 4)
    with pytest.raises(ConfigError, match=r"8 processes cannot share a batch of 12 groups of 8 rollouts"):
        check_shares(settings, 8)
    several = settings.model_copy(update={"updates": 6})
    assert check_shares(several, 2) == 6
    with pytest.raises(ConfigError, match=r"updates \(6\) must divide the 3 groups that each of 4 processes"):
        check_shares(several, 4)


def test_a_context_that_a_rollout_outgrows_is_refused_with_the_numbers(tmp_path: Path) -> None:
    def check(holds: int, config: RunConfig) -> None:
        (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": holds}))
        check_context(tmp_path, config)

    check(32_768, RunConfig())
    with pytest.raises(
        CheckpointError, match=r"holds 4096 tokens, a challenger rollout may have 9216 \(1024 of"
    ):
        check(4096, RunConfig())
    with pytest.raises(
        CheckpointError, match=r"max_length \(2048\) leaves no token to answer a prompt of solver"
    ):
        check(4096, load_config(None, ["model.max_length=2048"]))


def test_a_tokenizer_without_the_tags_of_the_family_is_refused() -> None:
    class Splitting(WordCodec):
        def encode_tag(self, tag: str) -> tuple[int, ...]:
            return tuple(each for letter in tag for each in super(Splitting, self).encode_tag(letter))

    check_tags(WordCodec(), dialect("qwen3"), where="model")
    with pytest.raises(CheckpointError, match=r"<think> is 7 tokens, and the qwen3 dialect cuts thinking"):
        check_tags(Splitting(), dialect("qwen3"), where="model")


def test_a_card_says_where_a_policy_is_from() -> None:
    card = model_card(Lineage("demo", "solver", 2, "abc", "S_1-def", "p123", "c456", "qwen3"))
    assert card.startswith("---\nlibrary_name: transformers\n")
    for part in ("solver of iteration 2", "`abc`", "`S_1-def`", "`p123`", "`c456`", "`qwen3`"):
        assert part in card


def test_a_vllm_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs vLLM, which is not installed; pip install"):
        Colocated(cast(Any, None), Path("m0"), ModelConfig(engine="vllm_colocated"), 300, 0)


def write_weights(file: Path, **tensors: tuple[str, int]) -> None:
    """A safetensors file of zeros; each tensor is given by its type and its bytes."""
    header, end = {}, 0
    for name, (dtype, size) in tensors.items():
        numbers = size // {"F32": 4, "BF16": 2, "F16": 2}.get(dtype, 1)
        header[name] = {"dtype": dtype, "shape": [numbers], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.truncate(8 + len(text) + end)


def test_the_name_of_weights_is_a_sum_over_all_their_files(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        write_weights(tmp_path / f"model-{number}.safetensors", weight=("F32", 4 * number))
    files = [path.read_bytes() for path in sorted(tmp_path.glob("*.safetensors"))]
    assert weights_hash(tmp_path) == hashlib.sha256(b"".join(files)).hexdigest()[:12]


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ({"weight": ("BF16", 1000), "norm": ("F32", 40)}, "bfloat16"),
        ({"weight": ("F32", 1000), "half": ("F16", 40)}, "float32"),
        ({"weight": ("F8_E4M3", 1000), "scale": ("F32", 40)}, "float32"),
    ],
)
def test_a_model_has_the_data_type_of_most_of_its_weights(
    tmp_path: Path, tensors: dict[str, tuple[str, int]], expected: str
) -> None:
    write_weights(tmp_path / "model-1.safetensors", **tensors)
    write_weights(tmp_path / "model-2.safetensors", other=("F32", 4))
    assert stored_dtype(tmp_path) == expected
