"""Checkpoints are whole or passed over, and a policy that cannot be trained is refused with the numbers."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from scope_selfplay.base.errors import CheckpointError, ConfigError
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.config.training import SolverConfig, check_shares
from scope_selfplay.dialects.families import dialect
from scope_selfplay.inference.checkpoints import check_context, check_tags
from scope_selfplay.store.card import Lineage, model_card
from scope_selfplay.store.folder import damage_of, write_receipt
from scope_selfplay.training.checkpoint import PARTS, Checkpoints
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


@pytest.mark.parametrize(("keep", "kept"), [(1, [10]), (2, [9, 10]), (3, [5, 9, 10]), (9, [2, 5, 9, 10])])
def test_the_newest_are_kept_and_nothing_else_is_touched(tmp_path: Path, keep: int, kept: list[int]) -> None:
    others = ("final", "checkpoint", "checkpoint-old", "rank-1")
    for name in others:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("weights")
    said: list[str] = []
    newest = saved(tmp_path, 2, 5, 9, 10, keep=keep).newest(said.append)
    assert newest == tmp_path / "checkpoint-10" and said == []
    left = {path.name for path in tmp_path.iterdir()} - {".staging"}
    assert left == {*others, *(f"checkpoint-{step}" for step in kept)}
    assert all((tmp_path / name / "model.safetensors").exists() for name in others)


@pytest.mark.parametrize(
    ("harm", "damage"),
    [
        (lambda folder: (folder / PARTS / ".metadata").write_text("x"), ".metadata has changed"),
        (lambda folder: (folder / PARTS / "__1_0.distcp").unlink(), "parts/__1_0.distcp was removed"),
        (lambda folder: (folder / PARTS / "__0_0.distcp").write_text("x"), "__0_0.distcp has changed"),
        (lambda folder: (folder / "receipt.json").unlink(), "no receipt.json"),
        (lambda folder: (folder / "receipt.json").write_text('{"files":'), "receipt.json is unreadable"),
        (lambda folder: (folder / "receipt.json").write_text("[]"), "receipt.json is unreadable"),
    ],
)
def test_a_damaged_one_is_said_passed_over_and_kept(
    tmp_path: Path, harm: Callable[[Path], object], damage: str
) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    harm(tmp_path / "checkpoint-2")
    said: list[str] = []
    assert checkpoints.newest(said.append) == tmp_path / "checkpoint-1"
    assert [damage in line and "checkpoint-2" in line for line in said] == [True]
    # Going on makes the same step again: what was damaged moves aside and stays.
    saved(tmp_path, 2)
    assert checkpoints.newest(said.append) == tmp_path / "checkpoint-2" and len(said) == 1
    assert damage_of(tmp_path / "checkpoint-2.damaged-1") is not None


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
    (tmp_path / "checkpoint-7" / PARTS / ".metadata").write_text("x")
    assert Checkpoints(tmp_path, Ranks()).newest(lambda line: None) == tmp_path / "checkpoint-6"


def test_groups_are_dealt_out_whole_or_not_at_all() -> None:
    settings = SolverConfig(batch=12, group_size=8)
    assert (check_shares(settings, 1), check_shares(settings, 3)) == (12, 4)
    with pytest.raises(ConfigError, match=r"8 processes cannot share a batch of 12 groups of 8 rollouts"):
        check_shares(settings, 8)


def model_of(folder: Path, holds: int) -> Path:
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": holds}))
    return folder


def test_a_context_that_a_rollout_outgrows_is_refused_with_the_numbers(tmp_path: Path) -> None:
    check_context(model_of(tmp_path, 32_768), RunConfig())
    with pytest.raises(
        CheckpointError, match=r"holds 4096 tokens, a challenger rollout may have 9216 \(1024 of"
    ):
        check_context(model_of(tmp_path, 4096), RunConfig())
    small = load_config(None, ["model.max_length=2048"])
    with pytest.raises(
        CheckpointError, match=r"max_length \(2048\) leaves no token to answer a prompt of solver"
    ):
        check_context(model_of(tmp_path, 4096), small)


class Hiding(WordCodec):
    """A tokenizer with special tokens that decoding leaves out."""

    def decode(self, ids: object) -> str:
        return super().decode(ids).replace("</tool_call>", "")  # type: ignore[arg-type]


class Splitting(WordCodec):
    def encode_tag(self, tag: str) -> tuple[int, ...]:
        return super().encode_tag(
            tag.replace("<think>", "<think> ").rstrip() if tag != "<think>" else "<thi nk>"
        )

    def decode(self, ids: object) -> str:
        return super().decode(ids).replace("<thi nk>", "<think>")  # type: ignore[arg-type]


def test_a_tokenizer_without_the_tags_of_the_family_is_refused() -> None:
    check_tags(WordCodec(), dialect("qwen3"), where="model")
    with pytest.raises(
        CheckpointError, match=r"reads </tool_call> back as '', and the qwen3 dialect needs it"
    ):
        check_tags(Hiding(), dialect("qwen3"), where="model")
    with pytest.raises(CheckpointError, match=r"<think> is 3 tokens, and the qwen3 dialect cuts thinking"):
        check_tags(Splitting(), dialect("qwen3"), where="model")


def test_a_card_says_where_a_policy_is_from() -> None:
    card = model_card(Lineage("demo", "solver", 2, "abc", "S_1-def", "p123", "c456", "qwen3"))
    assert card.startswith("---\nlibrary_name: transformers\n")
    for part in ("solver of iteration 2", "`abc`", "`S_1-def`", "`p123`", "`c456`", "`qwen3`"):
        assert part in card
