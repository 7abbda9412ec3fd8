"""Before iteration 1: SFT of M0 on the accepted rollouts of a finished run.

python -m jobs.warm_start --config FILE --root FOLDER --out FOLDER [--min-score S] [--epochs E] [--set KEY=VALUE ...]
"""

from pathlib import Path
from typing import Any

import click

from jobs.stage_job import run_job, run_options
from scope_selfplay.terminal import quiet_libraries, shown_progress


@click.command()
@run_options
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the trained model.")
@click.option("--min-score", type=click.FloatRange(0, 1), default=0.6, show_default=True)
@click.option("--epochs", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True)
@click.option("--learning-rate", type=click.FloatRange(0, min_open=True), default=1e-5, show_default=True)
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True)
@click.option("--micro-batch", type=click.IntRange(1), default=4, show_default=True)
def main(
    config: Path,
    root: Path,
    prompts: Path,
    overrides: tuple[str, ...],
    out: Path,
    min_score: float,
    **training: Any,
) -> None:
    """SFT of M0 on the accepted rollouts of a finished run."""
    quiet_libraries()
    from scope_selfplay.config import load_config
    from scope_selfplay.run import open_run
    from scope_selfplay.stages.warm_start import warm_start
    from scope_selfplay.training.warm_start import WarmStart

    settings = load_config(config, overrides)
    with shown_progress() as progress:
        run = open_run(settings, root, progress, packs=prompts)
        how = WarmStart(**training, seed=settings.seed)
        losses = warm_start(run, out, min_score=min_score, settings=how)
        progress.say(f"{out}: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps")


if __name__ == "__main__":
    run_job(main, "warm_start")
