"""One role's training in one iteration: where it starts, its settings, what it trains on and where it writes."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scope_selfplay.base.errors import ConfigError, OutsideError
from scope_selfplay.config.run import ModelConfig, TrackingConfig
from scope_selfplay.config.training import TrainConfig
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.run.engines import samples_exactly
from scope_selfplay.store.card import Lineage
from scope_selfplay.store.folder import StageFolder
from scope_selfplay.training.loss import AdvantageScale
from scope_selfplay.training.ranks import Ranks


@dataclass(frozen=True)
class TrainingStart:
    """`weights` is what training goes on from, `base` is M0, which the KL refers to."""

    weights: Path
    base: Path
    lineage: Lineage = field(default_factory=Lineage)


@dataclass(frozen=True)
class TrainingOptions:
    settings: TrainConfig
    temperature: float
    seed: int
    top_p: float = 1.0
    scale: AdvantageScale = AdvantageScale.GROUP
    model: ModelConfig = field(default_factory=ModelConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


@dataclass(frozen=True)
class TrainingCallbacks:
    """`on_step` gets a step (from 1), its metrics, and what `account` gave on every rank; the first rank calls it.

    `on_outage` is called when the server of the policy in training was down for longer than the retries last.
    """

    on_step: Callable[[int, dict[str, Any], Sequence[Any]], None] = field(
        default=lambda step, line, accounts: None
    )
    account: Callable[[], Any] = field(default=lambda: None)
    say: Callable[[str], None] = field(default=lambda line: print(line, file=sys.stderr))
    on_outage: Callable[[OutsideError], None] = field(default=lambda fault: None)


@dataclass(frozen=True)
class GrpoJob:
    """`records` are ids of what groups are sampled for, steps * batch of them, in the order of training."""

    start: TrainingStart
    options: TrainingOptions
    records: Sequence[str]
    folder: StageFolder
    codec: ChatCodec
    callbacks: TrainingCallbacks = field(default_factory=TrainingCallbacks)
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def settings(self) -> TrainConfig:
        return self.options.settings

    @property
    def max_length(self) -> int:
        """Tokens of prompt and response together."""
        return min(self.options.model.max_length, self.settings.max_prompt + self.settings.max_response)

    @property
    def exact(self) -> bool:
        """Whether an engine in this process computes what the trainer computes."""
        return samples_exactly(self.options.model, len(self.codec.tokenizer))

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
