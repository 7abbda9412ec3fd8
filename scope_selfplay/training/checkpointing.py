"""How a trainer saves and goes on: every process writes its part of weights and optimizer, once and in float32.

The parts are torch's distributed checkpoint, in one process as in many, so that a stage may go on with another number
of processes. They are written into a hidden folder, which becomes a checkpoint when all is on disk (`checkpoints`).
"""

import errno
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import Trainer, TrainerCallback
from trl import GRPOTrainer

from scope_selfplay.store.files import disk_faults
from scope_selfplay.training.checkpoints import SHARDS, Checkpoints
from scope_selfplay.training.termination import Termination

_SCHEDULER = "scheduler.pt"
# What torch says where a file could not be written to its end.
_CUT_OFF = ("inline_container", "iostream", "StreamWriter")
# Under an adapter the weights of M0 stay as they are, and are not saved.
_OPTIONS = StateDictOptions(ignore_frozen_params=True, strict=False)


class CheckpointedTrainer(GRPOTrainer):
    """TRL's GRPOTrainer with sharded checkpoints that are whole or absent."""

    checkpoints: Checkpoints
    termination: Termination
    _staging = False
    _saved = 0

    def newest_checkpoint(self, say: Callable[[str], None]) -> Path | None:
        """The newest that is whole. One process reads it all, which takes minutes, and tells the others: collective."""
        found = [self.checkpoints.newest(say) if self.accelerator.is_main_process else None]
        newest: Path | None = broadcast_object_list(found)[0]
        return newest

    def _maybe_log_save_evaluate(self, *arguments: Any, **options: Any) -> None:
        super()._maybe_log_save_evaluate(*arguments, **options)
        if self._saved < self.state.global_step and self._is_ending():
            _, _, model, trial, *_ = arguments
            self._save_checkpoint(model, trial)
        self.termination.release()

    def _is_ending(self) -> bool:
        """Whether SIGTERM has reached any process: collective, because all save or none."""
        told = torch.tensor(float(self.termination.requested), device=self.accelerator.device)
        return bool(self.accelerator.reduce(told).item())

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.checkpoints.staging) if self._staging else super()._get_output_dir(trial)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step, leads = int(self.state.global_step), self.accelerator.is_main_process
        if leads:
            self.checkpoints.clear()
        self.accelerator.wait_for_everyone()
        self.termination.all_hold()
        self._staging = True
        try:
            # TRL's own override adds a model card and nothing else.
            with disk_faults(self.checkpoints.staging), _faults_of_torch():
                Trainer._save_checkpoint(self, model, trial)
        finally:
            self._staging = False
        self.checkpoints.sign(step, self.accelerator.process_index)
        self.accelerator.wait_for_everyone()
        if leads:
            self.checkpoints.publish(step)
        self._saved = step
        self.accelerator.wait_for_everyone()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        # In a checkpoint the weights are beside the optimizer's state.
        if not self._staging:
            super().save_model(output_dir, _internal_call)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), folder / _SCHEDULER)
        with _quiet_alone():
            save(self._state(), checkpoint_id=folder / SHARDS)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Nothing yet: the weights are loaded with the optimizer's state, when both are sharded."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        folder, state = Path(checkpoint), self._state()
        with _quiet_alone():
            load(state, checkpoint_id=folder / SHARDS)
        set_state_dict(
            self.model_wrapped,
            self.optimizer.optimizer,
            model_state_dict=state["weights"],
            optim_state_dict=state["optimizer"],
            options=_OPTIONS,
        )
        self.lr_scheduler.load_state_dict(torch.load(folder / _SCHEDULER, weights_only=True))

    def _state(self) -> dict[str, Any]:
        weights, optimizer = get_state_dict(self.model_wrapped, self.optimizer.optimizer, options=_OPTIONS)
        return {"weights": weights, "optimizer": optimizer}


class HoldCompleteSteps(TrainerCallback):
    """A step is complete when its gradients are: all processes have met to clip them, and what follows is short."""

    def __init__(self, termination: Termination) -> None:
        self._termination = termination

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._termination.hold()


@contextmanager
def _quiet_alone() -> Iterator[None]:
    with warnings.catch_warnings():
        # torch remarks that one process saves or loads alone.
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


@contextmanager
def _faults_of_torch() -> Iterator[None]:
    """Raises an OSError where a file was cut off, which torch notices by its own position in it.

    Faults of all processes come in one BaseException of torch's, also Ctrl-C in the middle of a write, which leaves a
    file cut off behind it and is raised as itself.
    """
    try:
        yield
    except (CheckpointException, RuntimeError) as error:
        met = (
            [each for each, _ in error.failures.values()]
            if isinstance(error, CheckpointException)
            else [error]
        )
        if any(isinstance(each, KeyboardInterrupt) for one in met for each in (one, one.__context__)):
            raise KeyboardInterrupt from error
        if any(word in str(each) for each in met for word in _CUT_OFF):
            raise OSError(errno.ENOSPC, "a file was cut off") from error
        raise next((each for each in met if isinstance(each, OSError)), met[0]) from error
