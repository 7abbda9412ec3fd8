"""`scope math new FOLDER`: files of problems and a run on them."""

import json
from pathlib import Path

import click

from scope_selfplay.errors import UserError
from scope_selfplay.keys import rng_from
from scope_selfplay.maths.problems import LEVELS, MathProblem, ProblemKind, problems

RUN_FILE = Path(__file__).parent / "run.yaml"
ARENA_FILE = Path(__file__).parent / "reasoning_arena.yaml"


@click.group()
def math() -> None:
    """Maths problems with exact answers, and a run that is rewarded by them."""


@math.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--count", type=click.IntRange(1), default=1000, show_default=True, help="Problems to train on."
)
@click.option(
    "--held-out",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="Problems to compare checkpoints on.",
)
@click.option("--seed", default=0, show_default=True, help="Another seed, other problems.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([kind.value for kind in ProblemKind]),
    help="Only these kinds.",
)
@click.option("--level", "levels", multiple=True, type=click.IntRange(1, 3), help="Only these levels.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def new(
    folder: Path,
    count: int,
    held_out: int,
    seed: int,
    kinds: tuple[str, ...],
    levels: tuple[int, ...],
    *,
    as_json: bool,
) -> None:
    """Write train.jsonl, held_out.jsonl, run.yaml and reasoning_arena.yaml into FOLDER."""
    configs = (RUN_FILE, ARENA_FILE)
    names = ("train.jsonl", "held_out.jsonl", *(config.name for config in configs))
    files = {name: folder / name for name in names}
    there = [str(path) for path in files.values() if path.exists()]
    if there:
        raise UserError(f"{there[0]}: is there already, and nothing is written over; give another folder")
    chosen, grades = tuple(map(ProblemKind, kinds)) or tuple(ProblemKind), levels or LEVELS
    try:
        kept = problems(rng_from(seed, "held-out"), held_out, kinds=chosen, levels=grades)
        unseen = frozenset(problem.question for problem in kept)
        train = problems(rng_from(seed, "train"), count, kinds=chosen, levels=grades, without=unseen)
    except ValueError as error:
        raise UserError(f"scope math new: {error}; ask for fewer, or for more kinds and levels") from None
    folder.mkdir(parents=True, exist_ok=True)
    files["train.jsonl"].write_text(_lines(train), encoding="utf-8")
    files["held_out.jsonl"].write_text(_lines(kept), encoding="utf-8")
    for config in configs:
        run = config.read_text(encoding="utf-8")
        for mark, name in (("TRAIN_FILE", "train.jsonl"), ("HELD_OUT_FILE", "held_out.jsonl")):
            run = run.replace(mark, json.dumps(str(files[name])))
        files[config.name].write_text(run, encoding="utf-8")
    if as_json:
        click.echo(json.dumps({"train": count, "held_out": held_out, "run": str(files["run.yaml"])}))
    else:
        click.echo(f"{count} problems to train on, {held_out} held out: {folder}/")
        click.echo(f"scope run --config {files['run.yaml']} --name math --set model.path=MODEL")


def _lines(found: list[MathProblem]) -> str:
    rows = [
        {"question": problem.question, "answer": problem.answer, "type": f"{problem.kind}_{problem.level}"}
        for problem in found
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)
