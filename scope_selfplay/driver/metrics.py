"""What a run has reached, read from the volume: for Prometheus `scope_run_*` and `scope_training_*` at /metrics of the
controller's pod, for the status how far a training is. A controller that starts again shows the same.
"""

from collections.abc import Iterator
from contextlib import suppress

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scope_selfplay.base.errors import ScopeError
from scope_selfplay.cluster.pods import RunStage
from scope_selfplay.config.run import RunConfig
from scope_selfplay.driver.parts import last_rows, steps_of
from scope_selfplay.store.folder import RunFolder, Stage, parse_manifest
from scope_selfplay.store.ratings import read_ratings

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
_OF_STAGE = ("iteration", "stage")
_GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "run_stages": ("Stages of the run", ()),
    "run_stages_done": ("Finished stages", ()),
    "run_stage_seconds": ("Seconds that a finished stage took", _OF_STAGE),
    "run_rows": ("Records of a finished stage by file", (*_OF_STAGE, "file")),
    "run_rating": ("Rating of a checkpoint, S_0 at 0", ("checkpoint",)),
    "run_held_out_score": ("Mean held-out score", ("checkpoint",)),
    "run_stage": ("1 for the stage that is next or goes on", _OF_STAGE),
    **{f"training_{column}": (text, _OF_STAGE) for column, text in TRAINING.items()},
}
"""Name after `scope_` -> what it says, and its labels."""


class RunCollector(Collector):
    """Reads the volume at every scrape. What cannot be read is the controller's to report, and left out here."""

    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        self._folder = folder
        self._steps = steps_of(config)

    def collect(self) -> Iterator[Metric]:
        found = {
            name: GaugeMetricFamily(f"scope_{name}", text, labels=labels)
            for name, (text, labels) in _GAUGES.items()
        }
        for name, labels, value in self._samples():
            found[name].add_metric(labels, value)
        yield from found.values()

    def _samples(self) -> Iterator[tuple[str, list[str], float]]:
        done: set[RunStage] = set()
        for step in self._steps:
            with suppress(OSError, ScopeError):
                if (manifest := parse_manifest(self._folder.stage(*step).path)) is not None:
                    done.add(step)
                    yield "run_stage_seconds", _labels(step), manifest.seconds
                    for name, count in manifest.rows.items():
                        yield "run_rows", [*_labels(step), name], count
        yield "run_stages", [], len(self._steps)
        yield "run_stages_done", [], len(done)
        compared = [step.iteration for step in done if step.stage is Stage.COMPARE]
        with suppress(OSError, ScopeError):
            if compared:
                newest = read_ratings(self._folder, max(compared))
                yield from (("run_rating", [name], value) for name, value in newest.ratings.items())
                for name, groups in newest.held_out.items():
                    if "all" in groups:
                        yield "run_held_out_score", [name], groups["all"].value
        going_on = next((step for step in self._steps if step not in done), None)
        if going_on is not None:
            yield "run_stage", _labels(going_on), 1
            for row in last_rows(self._folder.stage(*going_on).metrics)[-1:]:
                for column in TRAINING:
                    if isinstance(value := row.get(column), int | float):
                        yield f"training_{column}", _labels(going_on), value


def serve_run_metrics(folder: RunFolder, config: RunConfig, port: int | None) -> None:
    """In threads of their own, for as long as the process lives; not at all without a port."""
    if port is not None:
        registry = CollectorRegistry()
        registry.register(RunCollector(folder, config))
        start_http_server(port, registry=registry)


def _labels(step: RunStage) -> list[str]:
    return [f"{step.iteration:02d}", step.stage.job_name]
