"""What a run has reached, for Prometheus: `scope_run_*` and `scope_training_*` at /metrics of the controller's pod.

Read from the volume at every scrape, so that a controller that starts again shows the same.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.manifests import RunStage
from scope_selfplay.controller.plan_parts import steps_of
from scope_selfplay.controller.training_progress import last_rows
from scope_selfplay.errors import ScopeError
from scope_selfplay.store import RunFolder, Stage
from scope_selfplay.store.folders import parse_manifest
from scope_selfplay.store.ratings import Ratings, read_ratings

TRAINING = {
    "step": "Steps done",
    "reward": "Mean reward of the last step",
    "reward_std": "Standard deviation of the last step's rewards",
    "zero_variance": "Share of groups whose rewards are all equal",
    "kl": "KL to the reference",
    "entropy": "Entropy of the policy",
    "clipped": "Share of tokens whose gradient a clip took away",
    "grad_norm": "Norm of the gradient",
    "completion_tokens": "Mean tokens of a completion",
    "step_seconds": "Seconds of the last step",
    "sampling_drift": "Mean drift of log-probabilities between the sampler and the trainer",
}
"""Columns of metrics.jsonl that are shown, as `scope_training_<column>`."""


class RunCollector(Collector):
    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        self._folder = folder
        self._steps = steps_of(config)

    def collect(self) -> Iterator[Metric]:
        stage = ["iteration", "stage"]
        seconds = GaugeMetricFamily(
            "scope_run_stage_seconds", "Seconds that a finished stage took", labels=stage
        )
        current = GaugeMetricFamily(
            "scope_run_stage", "1 for the stage that is next or goes on", labels=stage
        )
        rating = GaugeMetricFamily(
            "scope_run_rating", "Rating of a checkpoint, S_0 at 0", labels=["checkpoint"]
        )
        score = GaugeMetricFamily("scope_run_held_out_score", "Mean held-out score", labels=["checkpoint"])
        rows = GaugeMetricFamily(
            "scope_run_rows", "Records of a finished stage by file", labels=[*stage, "file"]
        )
        done = {step: found for step in self._steps if (found := self._manifest(step)) is not None}
        for step, manifest in done.items():
            seconds.add_metric(_labels(step), manifest.seconds)
            for name, count in manifest.rows.items():
                rows.add_metric([*_labels(step), name], count)
        if (newest := self._ratings(done)) is not None:
            for checkpoint, value in newest.ratings.items():
                rating.add_metric([checkpoint], value)
            for checkpoint, groups in newest.held_out.items():
                if "all" in groups:
                    score.add_metric([checkpoint], groups["all"].mean_score)
        going_on = next((step for step in self._steps if step not in done), None)
        if going_on is not None:
            current.add_metric(_labels(going_on), 1)
        yield GaugeMetricFamily("scope_run_stages", "Stages of the run", value=len(self._steps))
        yield GaugeMetricFamily("scope_run_stages_done", "Finished stages", value=len(done))
        yield from (seconds, rows, rating, score, current)
        yield from self._training(going_on)

    def _manifest(self, step: RunStage) -> Any:
        # What cannot be read is the controller's to report, not Prometheus's to stumble over.
        with suppress(OSError, ScopeError):
            return parse_manifest(self._folder.stage(*step).path)
        return None

    def _ratings(self, done: Iterable[RunStage]) -> Ratings | None:
        """What the newest comparison found."""
        compared = [step.iteration for step in done if step.stage is Stage.COMPARE]
        with suppress(OSError, ScopeError):
            return read_ratings(self._folder, max(compared)) if compared else None
        return None

    def _training(self, step: RunStage | None) -> Iterator[Metric]:
        rows = last_rows(self._folder.stage(*step).metrics) if step else []
        for column, text in TRAINING.items():
            family = GaugeMetricFamily(f"scope_training_{column}", text, labels=["iteration", "stage"])
            value = rows[-1].get(column) if rows else None
            if step is not None and isinstance(value, int | float):
                family.add_metric(_labels(step), value)
            yield family


def serve_run_metrics(folder: RunFolder, config: RunConfig, port: int | None) -> None:
    """In threads of their own, for as long as the process lives; not at all without a port."""
    if port is None:
        return
    registry = CollectorRegistry()
    registry.register(RunCollector(folder, config))
    start_http_server(port, registry=registry)


def _labels(step: RunStage) -> list[str]:
    return [f"{step.iteration:02d}", step.stage.job_name]
