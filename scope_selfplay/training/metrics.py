"""The metrics of a training step: of its rollouts and rows, of its update, and its line in metrics.jsonl."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from scope_selfplay.rewards.measures import Mean, Measure
from scope_selfplay.store.files import Appender, read_rows, write_records
from scope_selfplay.training.loss import PassTotals
from scope_selfplay.training.passes import RolloutShare
from scope_selfplay.training.rows import RewardedRollout

if TYPE_CHECKING:
    from scope_selfplay.training.job import GrpoJob

Line = dict[str, float | None]


class StepLog:
    """One line a step in metrics.jsonl and in every tracker; the first rank's business."""

    def __init__(self, job: "GrpoJob") -> None:
        self._job = job
        self._report: Callable[[int, Mapping[str, float]], None] | None = None

    def begin(self, done: int) -> None:
        """Forget the steps after the first `done`: they are made again."""
        kept = [row for row in read_rows(self._job.folder.metrics) if row["step"] <= done]
        write_records(self._job.folder.metrics, kept)
        if self._job.options.tracking.report_to:
            self._report = _trackers(self._job)

    def write(self, step: int, line: Line, accounts: Sequence[Any]) -> None:
        """What was agreed of a step (from 1); a number that is none is left out."""
        known = {name: value for name, value in line.items() if value is not None and value == value}
        row = {"step": step, **known}
        with Appender(self._job.folder.metrics) as file:
            file.append(row)
        if self._report is not None:
            self._report(step, known)
        self._job.callbacks.on_step(step, row, accounts)


def update_metrics(measured: PassTotals, gradient_norm: float) -> Line:
    """What the passes of an update measured, all ranks together."""
    weight, drawn = measured.weight or float("nan"), measured.drawn or float("nan")
    return {
        "loss": measured.loss,
        "grad_norm": gradient_norm,
        "kl": measured.kl / weight,
        "entropy": measured.entropy / weight,
        "clipped": measured.clipped / weight,
        "sampling_drift": measured.drift / drawn,
        "sampling_drift_max": measured.drift_max if measured.drawn else None,
    }


def group_metrics(groups: Sequence[Sequence[RolloutShare]], advantages: Sequence[Sequence[float]]) -> Line:
    """Of a step's groups and the advantages that they are trained on, all ranks together."""
    known = [[each.reward for each in group if each.reward is not None] for group in groups]
    rewards = [reward for group in known for reward in group]
    taught = [advantage for group in advantages for advantage in group]
    return {
        "reward": fmean(rewards) if rewards else None,
        "reward_std": fmean(pstdev(group) for group in known if group) if rewards else None,
        "zero_variance": fmean(not any(group) for group in advantages),
        "non_zero_advantage": fmean(map(bool, taught)),
        "absolute_advantage": fmean(map(abs, taught)),
        "completion_tokens": fmean(each.sampled for group in groups for each in group),
    }


def row_metrics(rollouts: Sequence[RewardedRollout]) -> dict[str, Measure]:
    """How rollouts became rows: rows per rollout, the share that was split against expectation, and truncated."""
    sampled = [rollout for rollout in rollouts if rollout.rows]
    return {
        "rows": Mean.of(len(rollout.rows) for rollout in sampled),
        "split": Mean.of(rollout.split for rollout in sampled),
        "truncated": Mean.of(rollout.truncated for rollout in sampled),
    }


def _trackers(job: "GrpoJob") -> Callable[[int, Mapping[str, float]], None]:
    """What reports to all of tracking.report_to, through transformers' own integrations."""
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.integrations import get_reporting_integration_callbacks

    lineage, names = job.start.lineage, list(job.options.tracking.report_to)
    name = f"{lineage.run}-{lineage.iteration:02d}-{lineage.role}"
    arguments = TrainingArguments(str(job.folder.work), run_name=name, report_to=names, use_cpu=True)
    state, control = TrainerState(is_world_process_zero=True, is_local_process_zero=True), TrainerControl()
    callbacks = [kind() for kind in get_reporting_integration_callbacks(names)]
    for callback in callbacks:
        callback.on_train_begin(arguments, state, control)

    def report(step: int, line: Mapping[str, float]) -> None:
        state.global_step = step
        logs = {f"scope/{name}": value for name, value in line.items()}
        for callback in callbacks:
            callback.on_log(arguments, state, control, logs=logs)
            if step == job.settings.steps:
                callback.on_train_end(arguments, state, control)

    return report
