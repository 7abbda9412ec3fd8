"""Checkpoints that a killed training goes on from, and the model that it ends with: whole or absent, never partial.

Every rank writes its part of weights and optimizer, once and in float32, into a hidden folder (torch's distributed
checkpoint, in one process as in many, so that a stage may go on with another number of them). The folder gets a receipt
with a checksum of every file, each made by the rank that wrote it, and is renamed to `checkpoint-<step>` when all is
on disk. A damaged one stays where it is for a person to look at, and training goes on from the one before.

What is exported has the data type of M0, or the one of `model.export_dtype`, and is served as M0 is. Weights are
gathered one at a time: the first rank holds them once, in the data type that is written.
"""

import errno
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scope_selfplay.config.training import KEPT_CHECKPOINTS
from scope_selfplay.inference.checkpoints import ADAPTER, stored_dtype
from scope_selfplay.store.card import model_card
from scope_selfplay.store.files import disk_faults, sync_folder, write_atomic
from scope_selfplay.store.folder import damage_of, sign, write_receipt
from scope_selfplay.training.ranks import Ranks

if TYPE_CHECKING:
    from scope_selfplay.training.job import GrpoJob
    from scope_selfplay.training.model import TrainedModel

PARTS = "parts"
"""The folder of the ranks' parts, `__<rank>_<number>.distcp` each."""
LARGEST_FILE = "5GB"
_PREFIX = "checkpoint-"
# What torch says where a file could not be written to its end.
_CUT_OFF = ("inline_container", "iostream", "StreamWriter")


class Checkpoints:
    """The checkpoints of one stage in its work folder; the newest `keep` that are whole stay."""

    def __init__(self, work: Path, ranks: Ranks, keep: int = KEPT_CHECKPOINTS) -> None:
        self._work = work
        self._ranks = ranks
        self._keep = keep
        self._staging = work / ".staging"
        self._whole: set[str] = set()

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Make `state`, tensors by name in nested dicts, the newest checkpoint. All ranks; raises StorageError."""
        from torch.distributed.checkpoint.state_dict_saver import save

        self._ranks.leader("clear", self._clear, completing=True)
        with disk_faults(self._staging), _faults_of_torch():
            (self._staging / PARTS).mkdir(parents=True, exist_ok=True)
            save(dict(state), checkpoint_id=self._staging / PARTS, process_group=self._ranks.files_group)
            sign(self._staging, self._ranks.number, (self._staging / PARTS).glob(f"__{self._ranks.number}_*"))
        self._ranks.agree("written", True, completing=True)
        self._ranks.leader("publish", lambda: self.publish(step), completing=True)

    def restore(self, state: Callable[[], Mapping[str, Any]], say: Callable[[str], None]) -> int:
        """Fill the tensors of `state()` from the newest checkpoint that is whole; its step, 0 without one. All ranks:
        the first reads all sums, which takes minutes, and tells the others.
        """
        from torch.distributed.checkpoint.state_dict_loader import load

        newest = self._ranks.leader("newest", lambda: self.newest(say))
        if newest is None:
            return 0
        with _faults_of_torch():
            load(dict(state()), checkpoint_id=newest / PARTS, process_group=self._ranks.files_group)
        return step_of(newest)

    def newest(self, say: Callable[[str], None]) -> Path | None:
        """The newest checkpoint that is whole; every damaged one on the way is reported, none is removed."""
        for path in reversed(self._all()):
            damage = damage_of(path)
            if damage is None and not (path / PARTS).is_dir():
                damage = f"no {PARTS}: another version of scope wrote it"
            if damage is None:
                self._whole.add(path.name)
                return path
            say(f"{path}: damaged checkpoint ({damage}); going back to the one before, nothing is removed")
        return None

    def publish(self, step: int) -> None:
        """Make what is staged, signed by all, the newest. Raises StorageError."""
        final = self._work / f"{_PREFIX}{step}"
        with disk_faults(self._staging):
            write_receipt(self._staging)
            if final.exists():
                asides = (final.with_name(f"{final.name}.damaged-{number}") for number in count(1))
                final.rename(next(path for path in asides if not path.exists()))
            self._staging.rename(final)
            sync_folder(self._work)
            self._whole.add(final.name)
            self._rotate(step)

    def _clear(self) -> None:
        """Remove what a killed save or removal left behind."""
        for path in (self._staging, self._work / ".removing"):
            shutil.rmtree(path, ignore_errors=True)

    def _all(self) -> list[Path]:
        """Whole or not, in the order of their steps."""
        paths = self._work.glob(f"{_PREFIX}*")
        return sorted((path for path in paths if path.name.removeprefix(_PREFIX).isdigit()), key=step_of)

    def _rotate(self, step: int) -> None:
        """Keep the one of `step` and the newest whole ones below it; damaged ones count for nothing and stay."""
        # Those above were passed over when training went on from below.
        below = [path for path in self._all() if step_of(path) < step and self._is_whole(path)]
        for path in below[: max(0, len(below) + 1 - self._keep)]:
            # Renamed first: what is half removed must not look like a damaged checkpoint.
            path.rename(self._work / ".removing")
            shutil.rmtree(self._work / ".removing")

    def _is_whole(self, path: Path) -> bool:
        """Reads a checkpoint once in the life of this object: checksums of large ones take minutes."""
        if path.name not in self._whole and damage_of(path) is None:
            self._whole.add(path.name)
        return path.name in self._whole


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(_PREFIX))


@contextmanager
def _faults_of_torch() -> Iterator[None]:
    """Raises an OSError where a file was cut off, which torch notices by its own position in it.

    Faults of all processes come in one BaseException of torch's, also Ctrl-C in the middle of a write, which leaves a
    file cut off behind it and is raised as itself.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            # torch remarks that one process saves or loads alone.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            yield
    except (CheckpointException, RuntimeError) as error:
        met: Sequence[BaseException] = [error]
        if isinstance(error, CheckpointException):
            met = [each for each, _ in error.failures.values()]
        if any(isinstance(each, KeyboardInterrupt) for one in met for each in (one, one.__context__)):
            raise KeyboardInterrupt from error
        if any(word in str(each) for each in met for word in _CUT_OFF):
            raise OSError(errno.ENOSPC, "a file was cut off") from error
        raise next((each for each in met if isinstance(each, OSError)), met[0]) from error


def export(job: "GrpoJob", model: "TrainedModel") -> None:
    """Write `checkpoint/`, a plain model directory that is whole or absent. All ranks; raises StorageError.

    An adapter stays beside the weights that it is added to, for the next iteration, where it is over M0.
    """
    import torch

    def gathered(kind: str, *, trained_only: bool = False) -> dict[str, Any]:
        weights = model.whole_weights(getattr(torch, kind), trained_only=trained_only)
        # All ranks gather; the first one keeps.
        return {name: weight.cpu() for name, weight in weights if model.ranks.leads}

    out, part, dtype = job.folder.checkpoint, job.folder.work / "final", job.model.export_dtype
    weights = gathered(stored_dtype(model.base) if dtype == "base" else dtype)
    adapter = gathered("float32", trained_only=True) if model.under is not None else {}

    def write() -> None:
        with disk_faults(part):
            shutil.rmtree(part, ignore_errors=True)
            model.network.save_pretrained(str(part), state_dict=weights, max_shard_size=LARGEST_FILE)
            # transformers names the data type that the model was trained in.
            model.network.config.dtype = stored_dtype(model.base)
            model.network.config.save_pretrained(str(part))
            if adapter and model.under == model.base:
                model.model.save_pretrained(str(part / ADAPTER), state_dict=adapter)
                for file in (part / ADAPTER).iterdir():
                    if file.name not in ("adapter_config.json", "adapter_model.safetensors"):
                        file.unlink()
            job.codec.tokenizer.save_pretrained(str(part))
            write_atomic(part / "README.md", model_card(job.start.lineage))
            write_receipt(part)
            shutil.rmtree(out, ignore_errors=True)
            part.rename(out)
            sync_folder(out.parent)

    model.ranks.leader("export", write, completing=True)
