"""`scope eval`: a checkpoint on a benchmark, whose results `scope report` shows. Heavy imports wait."""

from pathlib import Path
from typing import Any

import click

from scope_selfplay.base.terminal import PATH


@click.command("eval")
@click.argument("checkpoint")
@click.option(
    "--benchmark",
    "-b",
    "benchmarks",
    multiple=True,
    required=True,
    help="NAME=FILE (or its folder), a file of questions, or `embedded`; may be given again.",
)
@click.option(
    "--against", multiple=True, help="Another checkpoint, or a file of answers; may be given again."
)
@click.option("--root", type=PATH, default=Path("evaluations"), help="ROOT/BENCHMARK is written.")
@click.option("--out", type=PATH, help="Folder of the evaluation, instead of ROOT/BENCHMARK.")
@click.option("--items", type=click.IntRange(1), help="At most so many items, by chance.")
@click.option("--samples", type=click.IntRange(1), help="Answers per item.")
@click.option("--temperature", type=click.FloatRange(0), help="0 is greedy. Default: the model family's.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Share that is sampled from.")
@click.option("--thinking/--no-thinking", default=None, help="For models whose chat template has the choice.")
@click.option(
    "--pairwise", is_flag=True, help="Also judge answers beside those of each --against, both orders."
)
@click.option(
    "--by-criterion", is_flag=True, help="Pairwise, and also by each criterion of the rubric alone."
)
@click.option("--config", type=PATH, help="Settings for a checkpoint that is of no run.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting.")
@click.option("--seed", type=int, help="Seed of sampling and of the choice of items.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def evaluate(
    checkpoint: str, *, benchmarks: tuple[str, ...], against: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Let CHECKPOINT answer a benchmark, score its answers, and show it beside others.

    CHECKPOINT is RUN:S_2 (a run's Solver), a model directory, `embedded`, a server (http://HOST:PORT/v1), or a
    checkpoint with the server that has it (RUN:S_2@http://HOST:PORT/v1). The same command goes on after a kill.
    """
    from scope_selfplay.base.errors import UserError
    from scope_selfplay.base.terminal import end_on_sigterm, quiet_libraries, shown_progress
    from scope_selfplay.evaluation.evaluate import EvaluationRequest, open_evaluation
    from scope_selfplay.evaluation.folder import tables_of

    if options["out"] is not None and len(benchmarks) > 1:
        raise UserError(
            f"--out is the folder of one evaluation, found {len(benchmarks)} benchmarks; use --root"
        )
    end_on_sigterm()
    quiet_libraries()
    for benchmark in benchmarks:
        request = EvaluationRequest(benchmark=benchmark, checkpoints=(checkpoint, *against), **options)
        with shown_progress() as progress:
            result = open_evaluation(request, progress).run()
        click.echo(
            result.model_dump_json(indent=1)
            if as_json
            else "\n".join(line for table in tables_of(result) for line in table.text())
        )
        click.echo(f"scope report {request.folder} shows it again, and scope view", err=True)
