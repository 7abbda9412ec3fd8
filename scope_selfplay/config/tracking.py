"""Where training reports beside its own metrics.jsonl. None of it changes what a run computes."""

from scope_selfplay.config.base import ConfigSection


class TrackingConfig(ConfigSection):
    report_to: tuple[str, ...] = ()
    """Trackers that the trainer also reports to, by transformers' names (`wandb`, `trackio`, `tensorboard`, ...)."""
    log_completions: bool = False
    """Keep the texts of every step with rewards and advantages, as parquet in the stage's `completions/`."""
