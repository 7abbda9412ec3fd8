"""SFT before reinforcement learning (ArenaRL starts so): a policy learns from trajectories of a
stronger model (`trajectories`), or from rollouts that a run has kept.

The corpus keeps text, because token ids depend on the tokenizer. So `replay` runs an episode again with the recorded
texts as its samples and the recorded passages as its search results: prompts, masks and turn ends come out as in
sampling, for whatever policy is trained on it. A rollout that does not read back as it was recorded is refused.

Rows are those of training: exact ids through the policy's own template, and loss only on what the policy samples.
"""

import asyncio
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scope_selfplay.config import ModelConfig
from scope_selfplay.episodes import Episode, PolicyFormat, run_episode
from scope_selfplay.errors import ConfigError, CorpusError, InferenceError, SearchError
from scope_selfplay.inference import Generate, Sample, ids_of_turn
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.draws import LARGE_VOCABULARY
from scope_selfplay.keys import Key
from scope_selfplay.schemas import Finish, Rollout, Turn
from scope_selfplay.tools import SEARCH, ToolResult, UseTool
from scope_selfplay.tools.showing import replayed
from scope_selfplay.training.policy import load_model
from scope_selfplay.training.ranks import ranks
from scope_selfplay.training.rows import TrainingRow
from scope_selfplay.training.sharding import join_ranks, keep_full_precision, sharded, trainer_devices
from scope_selfplay.training.trained_model import Lineage, finish_checkpoint

_IGNORED = -100
_COLLECTIVE_SECONDS = 7200


@dataclass(frozen=True)
class WarmStart:
    """How long and how fast; `micro_batch` rows per pass and process, gradients accumulated up to `batch` rows."""

    epochs: float = 1.0
    learning_rate: float = 1e-5
    batch: int = 32
    micro_batch: int = 4
    seed: int = 0


def replay(recorded: Rollout, episode: Episode, policy_format: PolicyFormat, *, end: int) -> Rollout | None:
    """The rollout with ids, or None where this policy's family would read it otherwise than it was recorded.

    `end` is the token that ends a turn where no stop text does.
    """
    recording = _RecordedTurns(recorded, policy_format, end)
    rollout = asyncio.run(run_episode(episode, recording, recording, key=("replay", recorded.id)))
    same = (
        rollout.status is recorded.status
        and (rollout.answer, rollout.task) == (recorded.answer, recorded.task)
        and list(map(_as_read, rollout.turns)) == list(map(_as_read, recorded.turns))
    )
    return rollout if same else None


def _as_read(turn: Turn) -> tuple[object, ...]:
    return turn.text, turn.query, turn.call and (turn.call.tool, turn.call.arguments, turn.call.fault)


class _RecordedTurns:
    """Engine and tools in one: gives back, turn by turn, what is recorded."""

    def __init__(self, recorded: Rollout, policy_format: PolicyFormat, end: int) -> None:
        self.identity = self.index = recorded.index
        self._recorded = recorded
        self._policy_format = policy_format
        self._end = end
        self._turn = -1

    async def generate(self, request: Generate, key: Key) -> Sample:
        self._turn += 1
        if self._turn >= len(self._recorded.turns):
            raise InferenceError("the recording is over")
        text = self._recorded.turns[self._turn].text
        ids = ids_of_turn(self._policy_format.codec, request, text, end=self._end)
        finish = Finish.STOP if len(ids) <= request.max_tokens else Finish.LENGTH
        return Sample(ids[: request.max_tokens], None, finish)

    async def use(self, request: UseTool) -> ToolResult:
        turn = self._recorded.turns[self._turn]
        called = SEARCH.name if turn.query is not None else turn.call and turn.call.tool
        if called != request.tool or (turn.query is not None and turn.query != request.arguments["query"]):
            raise SearchError("the recording called for something else")
        return replayed(turn)


def sft(
    rows: Sequence[TrainingRow],
    start: Path,
    out: Path,
    *,
    settings: WarmStart,
    codec: ChatCodec,
    lineage: Lineage,
) -> list[float]:
    """Train `start` on rows and write a plain model directory; returns the loss of each step.

    Every process of the training calls it with the same rows. Raises CorpusError without rows.
    """
    if not rows:
        raise CorpusError(
            "nothing is left to learn from; lower --min-score, raise --max-length, or give other trajectories"
        )
    if sharded():
        join_ranks(_COLLECTIVE_SECONDS)
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import SFTTrainer

    from scope_selfplay.training.exporting import export_dtype, save_weights, whole_weights

    work = out.with_name(f".{out.name}.work")
    exact = len(codec.tokenizer) <= LARGE_VOCABULARY
    trainer = SFTTrainer(
        model=load_model(start, to_be_sharded=True),
        args=_sft_config(work, settings, longest=max(row.length for row in rows), exact=exact),
        train_dataset=Dataset.from_list([labelled(row) for row in rows]),
        processing_class=codec.tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    if sharded():
        keep_full_precision(trainer.accelerator)
    trainer.train()
    weights = whole_weights(trainer, export_dtype(ModelConfig(), start))
    if trainer.accelerator.is_main_process:
        part = work / "final"
        save_weights(trainer.accelerator.unwrap_model(trainer.model), weights, part, start)
        finish_checkpoint(part, codec.tokenizer, lineage)
        part.rename(out)
        shutil.rmtree(work, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    return [float(line["loss"]) for line in trainer.state.log_history if "loss" in line]


def accumulated_passes(settings: WarmStart, processes: int) -> int:
    """Forward passes of each process per step. Raises ConfigError where the batch cannot be shared evenly."""
    together = settings.micro_batch * processes
    if settings.batch % together:
        raise ConfigError(
            f"--batch {settings.batch}: {processes} processes with --micro-batch {settings.micro_batch} take "
            f"{together} rows at a time; use a batch that {together} divides"
        )
    return settings.batch // together


def labelled(row: TrainingRow) -> dict[str, list[int]]:
    """A row as the columns that TRL takes as they are; -100 marks what carries no loss."""
    labels = [token if kept else _IGNORED for token, kept in zip(row.completion_ids, row.mask, strict=True)]
    return {
        "input_ids": [*row.prompt_ids, *row.completion_ids],
        "labels": [_IGNORED] * len(row.prompt_ids) + labels,
    }


def _sft_config(work: Path, settings: WarmStart, *, longest: int, exact: bool) -> Any:
    from trl import SFTConfig

    return SFTConfig(
        output_dir=str(work),
        num_train_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        per_device_train_batch_size=settings.micro_batch,
        gradient_accumulation_steps=accumulated_passes(settings, ranks().processes),
        lr_scheduler_type="constant",
        # Nothing is cut: a row that lost its end would teach to stop anywhere.
        max_length=longest,
        seed=settings.seed % 2**31,
        **trainer_devices(exact=exact),
        ddp_timeout=_COLLECTIVE_SECONDS,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
