"""Checkpoints are whole or passed over, and a policy that cannot be trained is refused with the numbers."""

import hashlib
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from scope_selfplay.base.errors import CheckpointError, ConfigError
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import ModelConfig, RunConfig
from scope_selfplay.config.training import SolverConfig, check_shares
from scope_selfplay.dialects.families import dialect
from scope_selfplay.inference.checkpoints import check_context, check_tags, stored_dtype
from scope_selfplay.run.engines import vllm_base
from scope_selfplay.store.card import Lineage, model_card
from scope_selfplay.store.folder import damage_of, weights_hash, write_receipt
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
    several = settings.model_copy(update={"updates": 6})
    assert check_shares(several, 2) == 6
    with pytest.raises(ConfigError, match=r"updates \(6\) must divide the 3 groups that each of 4 processes"):
        check_shares(several, 4)


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


class Splitting(WordCodec):
    def encode_tag(self, tag: str) -> tuple[int, ...]:
        return super().encode_tag(
            tag.replace("<think>", "<think> ").rstrip() if tag != "<think>" else "<thi nk>"
        )

    def decode(self, ids: object) -> str:
        return super().decode(ids).replace("<thi nk>", "<think>")  # type: ignore[arg-type]


def test_a_tokenizer_without_the_tags_of_the_family_is_refused() -> None:
    check_tags(WordCodec(), dialect("qwen3"), where="model")
    with pytest.raises(CheckpointError, match=r"<think> is 3 tokens, and the qwen3 dialect cuts thinking"):
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


@pytest.mark.parametrize("url", ["http://gpu:8000", "http://gpu:8000/", "http://gpu:8000/v1"])
def test_a_server_may_be_named_with_its_path_or_without(url: str) -> None:
    assert vllm_base(ModelConfig(engine="vllm_server", vllm_url=url)) == "http://gpu:8000"


def test_the_engine_is_what_a_run_computes_and_where_it_is_is_not() -> None:
    here = load_config(None, ["model.engine=vllm_server", "model.vllm_url=http://a:8000"])
    there = load_config(None, ["model.engine=vllm_server", "model.vllm_url=http://b:8000"])
    assert here.hash == there.hash != load_config(None).hash


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


def test_a_model_larger_than_the_memory_gets_its_name(tmp_path: Path) -> None:
    size, room = 640 << 20, 512 << 20
    write_weights(tmp_path / "model.safetensors", weight=("F32", size))
    assert (tmp_path / "model.safetensors").stat().st_blocks * 512 < 1 << 20, "needs a file with holes"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (room, room))

    program = f"from scope_selfplay.store.folder import *; print(weights_hash(Path({str(tmp_path)!r})))"
    ended = subprocess.run(
        [sys.executable, "-c", program], preexec_fn=limit, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr[-500:]
    assert len(ended.stdout.strip()) == 12


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ({"weight": ("BF16", 1000), "norm": ("F32", 40)}, "bfloat16"),
        ({"weight": ("F32", 1000), "half": ("F16", 40)}, "float32"),
        ({"weight": ("F16", 1000)}, "float16"),
        ({"weight": ("F8_E4M3", 1000), "scale": ("F32", 40)}, "float32"),
    ],
)
def test_a_model_has_the_data_type_of_most_of_its_weights(
    tmp_path: Path, tensors: dict[str, tuple[str, int]], expected: str
) -> None:
    write_weights(tmp_path / "model-1.safetensors", **tensors)
    write_weights(tmp_path / "model-2.safetensors", other=("F32", 4))
    assert stored_dtype(tmp_path) == expected
