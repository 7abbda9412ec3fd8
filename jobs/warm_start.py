"""Before iteration 1: SFT of a model on trajectories from outside, or of M0 on the accepted rollouts of a finished run.

python -m jobs.warm_start --start MODEL --out FOLDER --trajectories FILE [--trajectories FILE ...] [--dialect D]
    [--epochs E] [--processes P]
python -m jobs.warm_start --config FILE --root FOLDER --out FOLDER [--min-score S] [--epochs E] [--processes P]
"""

import os
from pathlib import Path
from typing import Any

import click

from jobs.stage_job import processes_option, run_as_ranks, run_job, run_options
from scope_selfplay.base.errors import UserError
from scope_selfplay.base.terminal import quiet_libraries, shown_progress

_PATH = click.Path(path_type=Path)


@click.command()
@run_options
@processes_option
@click.option("--out", type=_PATH, required=True, help="Folder of the trained model.")
@click.option(
    "--trajectories", type=_PATH, multiple=True, help="JSON lines with `messages`, instead of a run."
)
@click.option("--start", type=_PATH, help="Model that learns from the trajectories.")
@click.option(
    "--dialect",
    "family",
    type=click.Choice(["qwen2.5", "qwen3", "olmo3"]),
    default="qwen3",
    show_default=True,
    help="The run's model.dialect, in which the calls of trajectories must read as searches.",
)
@click.option(
    "--max-length", type=click.IntRange(64), default=32_768, show_default=True, help="Tokens of a row."
)
@click.option("--min-score", type=click.FloatRange(0, 1), default=0.6, show_default=True)
@click.option("--epochs", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True)
@click.option("--learning-rate", type=click.FloatRange(0, min_open=True), default=1e-5, show_default=True)
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True)
@click.option("--micro-batch", type=click.IntRange(1), default=4, show_default=True)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the order of trajectories."
)
@click.option(
    "--grace", type=click.IntRange(1), default=120, show_default=True, help="Seconds to end on SIGTERM."
)
def main(
    config: Path,
    root: Path,
    prompts: Path,
    overrides: tuple[str, ...],
    processes: int,
    out: Path,
    trajectories: tuple[Path, ...],
    start: Path | None,
    family: str,
    max_length: int,
    min_score: float,
    grace: int,
    **training: Any,
) -> None:
    """SFT before iteration 1, on trajectories from outside or on the accepted rollouts of a finished run."""
    quiet_libraries()
    from jobs.launch import node_of
    from scope_selfplay.training.sft import WarmStart

    how = WarmStart(**training)
    if "RANK" not in os.environ and (node := node_of(os.environ, processes)).world > 1:
        run_as_ranks("jobs.warm_start", node, grace)
    if trajectories and start is None:
        raise UserError("--trajectories needs --start, the folder of the model that learns from them")
    from scope_selfplay.config.load import load_config
    from scope_selfplay.dialects.families import dialect
    from scope_selfplay.run.begin import open_run
    from scope_selfplay.stages.warm_start import learn_from_trajectories, warm_start

    with shown_progress() as progress:
        if start is not None and trajectories:
            losses = learn_from_trajectories(
                trajectories,
                start,
                out,
                family=dialect(family),
                max_length=max_length,
                settings=how,
                say=progress.say,
            )
        else:
            run = open_run(load_config(config, overrides), root, progress, packs=prompts)
            losses = warm_start(run, out, min_score=min_score, settings=how)
        if losses:
            progress.say(f"{out}: loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps")


if __name__ == "__main__":
    run_job(main, "warm_start")
