"""Stored rollouts get their token ids back by being played again, and a policy learns from them."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.values import Rollout
from scope_selfplay.dialects.families import dialect
from scope_selfplay.inference.checkpoints import load_model, policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.stages.warm_start import replay
from scope_selfplay.store.card import Lineage
from scope_selfplay.training.rows import TrainingRow
from scope_selfplay.training.sft import WarmStart, sft
from tests.families import tokenizer_of
from tests.integration.loop.seam import same
from tests.integration.loop.test_faults_of_checkpoints import in_fork
from tests.integration.loop.test_token_rows import TURNS, begun, format_of, played


def recorded(codec: ChatCodec, name: str) -> Rollout:
    # Only Qwen3 ends its answers with the end of the turn; the others stop at their closing tag.
    return played(codec, dialect(name), ["".join(parts) for parts in TURNS[name]], ends=False)


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "olmo3"])
def test_a_stored_rollout_gets_the_ids_of_sampling_back(name: str) -> None:
    codec = ChatCodec(tokenizer_of(name))
    rollout, policy_format = recorded(codec, name), format_of(codec, dialect(name))
    again = replay(rollout.without_ids(), begun(policy_format), policy_format)
    assert again is not None
    for before, after in zip(rollout.turns, again.turns, strict=True):
        assert after.prompt_ids == before.prompt_ids
        stopped = before.text.endswith(policy_format.dialect.stop)
        assert after.ids == (before.ids if stopped else (*before.ids, codec.end_of_turn))


def test_a_rollout_of_another_family_is_refused() -> None:
    codec = ChatCodec(tokenizer_of("qwen3"))
    policy_format = format_of(codec, dialect("qwen3"))
    assert replay(recorded(codec, "qwen2.5").without_ids(), begun(policy_format), policy_format) is None


ROWS = [
    TrainingRow(
        [40, 41, 42 + place % 2],
        [60, 61, 62, 63][: 2 + place],
        [1, 0, 1, 1][: 2 + place],
        [0.0] * (2 + place),
    )
    for place in range(3)
]


def learn(policy: Path, out: Path, rows: Sequence[TrainingRow] = ROWS) -> list[float]:
    settings = WarmStart(epochs=6, learning_rate=1e-2, batch=3, micro_batch=2)
    codec = ChatCodec.load(policy)
    return sft(rows, policy, out, settings=settings, codec=codec, lineage=Lineage(role="warm start"))


def test_a_policy_learns_from_rows_and_is_written_as_a_plain_directory(
    random_policy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "warm"
    losses = learn(random_policy, out)
    assert len(losses) == 6 and losses[-1] < losses[0] / 2
    assert policy_path(str(out)) == out and not same(out, random_policy)
    assert not list(out.rglob("*.bin")) and "warm start" in (out / "README.md").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["warm"]
    with pytest.raises(CorpusError, match="nothing is left to learn from"):
        learn(random_policy, tmp_path / "no", [])


def test_its_loss_is_the_cross_entropy_of_transformers_over_sampled_tokens(
    random_policy: Path, tmp_path: Path
) -> None:
    longest = max(row.length for row in ROWS)
    ids = torch.tensor([row.prompt_ids + row.completion_ids + [0] * (longest - row.length) for row in ROWS])
    sampled = [[0] * len(row.prompt_ids) + row.mask + [0] * (longest - row.length) for row in ROWS]
    labels = ids.masked_fill(torch.tensor(sampled) == 0, -100)
    expected = load_model(random_policy)(input_ids=ids, labels=labels).loss.item()
    assert learn(random_policy, tmp_path / "warm")[0] == pytest.approx(expected, rel=1e-5)


def test_one_that_was_killed_goes_on_to_the_same_bytes(random_policy: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"

    def die_in_the_fourth_save() -> None:
        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "os.rename" and str(arguments[1]).endswith("checkpoint-4"):
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        learn(random_policy, killed)

    assert os.WTERMSIG(in_fork(die_in_the_fourth_save)) == signal.SIGKILL
    assert {path.name for path in tmp_path.rglob("checkpoint-*")} == {"checkpoint-2", "checkpoint-3"}
    assert learn(random_policy, killed) == learn(random_policy, whole)
    one, two = (folder / "model.safetensors" for folder in (whole, killed))
    assert one.read_bytes() == two.read_bytes()
