"""One role's training in one iteration: where it starts, its settings, what it trains on, where it writes, and
the metrics of its steps: of rollouts and rows, of the update, and a line in metrics.jsonl.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from scope_selfplay.base.errors import ConfigError, OutsideError
from scope_selfplay.config.run import ModelConfig, TrackingConfig
from scope_selfplay.config.training import TrainConfig
from scope_selfplay.dialects.families import dialect
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.rewards.measures import Mean, Measure
from scope_selfplay.run.run import samples_exactly
from scope_selfplay.store.card import Lineage
from scope_selfplay.store.files import Appender, read_rows, write_records
from scope_selfplay.store.folder import StageFolder
from scope_selfplay.training.loss import AdvantageScale, PassTotals, scale_of
from scope_selfplay.training.passes import RewardedRollout, RolloutShare
from scope_selfplay.training.ranks import Ranks


@dataclass(frozen=True)
class TrainingStart:
    """`weights` is what training goes on from, `base` is M0, which the KL refers to."""

    weights: Path
    base: Path
    lineage: Lineage = field(default_factory=Lineage)


@dataclass(frozen=True)
class TrainingCallbacks:
    """`on_step` gets a step (from 1), its metrics, and what `account` gave on every rank; the first rank calls it.

    `on_outage` is called when the server of the policy in training was down for longer than the retries last.
    """

    on_step: Callable[[int, dict[str, Any], Sequence[Any]], None] = lambda step, line, accounts: None
    account: Callable[[], Any] = lambda: None
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr)
    on_outage: Callable[[OutsideError], None] = lambda fault: None


@dataclass(frozen=True)
class GrpoJob:
    """`records` are ids of what groups are sampled for, steps * batch of them, in the order of training.

    `given_advantages`: rewards are advantages already.
    """

    start: TrainingStart
    settings: TrainConfig
    records: Sequence[str]
    folder: StageFolder
    codec: ChatCodec
    temperature: float
    seed: int
    top_p: float = 1.0
    given_advantages: bool = False
    model: ModelConfig = field(default_factory=ModelConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    callbacks: TrainingCallbacks = field(default_factory=TrainingCallbacks)
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def scale(self) -> AdvantageScale:
        """What advantages are divided by."""
        return AdvantageScale.GIVEN if self.given_advantages else scale_of(self.settings)

    @property
    def max_length(self) -> int:
        """Tokens of prompt and response together."""
        return min(self.model.max_length, self.settings.max_prompt + self.settings.max_response)

    @property
    def exact(self) -> bool:
        """Whether an engine in this process computes what the trainer computes."""
        return samples_exactly(self.model, len(self.codec.tokenizer))

    @property
    def rewrites_history(self) -> bool:
        """Whether the policy's family does, so that a rollout becomes a row per turn."""
        return dialect(self.model.dialect, self.model.earlier_thinking).drops_earlier_thinking

    @property
    def records_folder(self) -> StageFolder:
        """Where this rank keeps its rollouts and grades; the first one's is the stage folder itself."""
        own = self.folder.work / f"rank-{self.ranks.number}"
        return self.folder if self.ranks.leads else StageFolder(own)

    def records_of(self, step: int) -> Sequence[str]:
        """Those of this rank in a step (from 0). Raises ConfigError where there are none for any."""
        of_step = self.records[step * self.settings.batch :][: self.settings.batch]
        if not of_step:
            raise ConfigError(
                f"found {len(self.records)} records, none for step {step + 1} of {self.settings.steps}; give steps * "
                f"batch ({self.settings.batch}) of them"
            )
        share = -(-self.settings.batch // self.ranks.processes)
        return of_step[self.ranks.number * share :][:share]


Line = dict[str, float | None]


class StepLog:
    """One line a step in metrics.jsonl and in every tracker; the first rank's business."""

    def __init__(self, job: GrpoJob) -> None:
        self._job = job
        self._report: Callable[[int, Mapping[str, float]], None] | None = None

    def begin(self, done: int) -> None:
        """Forget the steps after the first `done`: they are made again."""
        kept = [row for row in read_rows(self._job.folder.metrics) if row["step"] <= done]
        write_records(self._job.folder.metrics, kept)
        if self._job.tracking.report_to:
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


def row_metrics(rollouts: Sequence[RewardedRollout], *, rewrites_history: bool) -> dict[str, Measure]:
    """How rollouts became rows: rows per rollout, the share that was split against expectation, and truncated."""
    sampled = [rollout for rollout in rollouts if rollout.rows]
    return {
        "rows": Mean.of(len(rollout.rows) for rollout in sampled),
        "split": Mean.of(len(rollout.rows) > 1 and not rewrites_history for rollout in sampled),
        "truncated": Mean.of(rollout.truncated for rollout in sampled),
    }


def _trackers(job: GrpoJob) -> Callable[[int, Mapping[str, float]], None]:
    """What reports to all of tracking.report_to, through transformers' own integrations."""
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.integrations import get_reporting_integration_callbacks

    lineage, names = job.start.lineage, list(job.tracking.report_to)
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
