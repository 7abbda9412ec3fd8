"""Problems with exact reference answers, made by rule from a generator: arithmetic, equations, word problems.

Every kind has three levels of difficulty. The answer is computed with whole numbers and fractions, never parsed back
from the text.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from pathlib import Path

import click

from scope_selfplay.base.errors import UserError
from scope_selfplay.base.values import rng_from


@dataclass(frozen=True)
class MathProblem:
    question: str
    answer: str
    kind: str
    level: int


class ProblemKind(StrEnum):
    ARITHMETIC = "arithmetic"
    FRACTIONS = "fractions"
    EQUATION = "equation"
    WORDS = "words"


LEVELS = (1, 2, 3)
_DIGITS = {1: 30, 2: 40, 3: 400}


def problems(
    rng: random.Random,
    count: int,
    *,
    kinds: Sequence[ProblemKind] = tuple(ProblemKind),
    levels: Sequence[int] = LEVELS,
    without: frozenset[str] = frozenset(),
) -> list[MathProblem]:
    """`count` different problems, kinds and levels in turn; none whose question is in `without`.

    Raises ValueError where there are not as many.
    """
    found: list[MathProblem] = []
    seen, tries = set(without), iter(range(200 * count))
    while len(found) < count:
        if next(tries, None) is None:
            asked = f"{', '.join(kinds)} at levels {levels}"
            raise ValueError(f"there are no {count} different problems of {asked}")
        kind, level = kinds[len(found) % len(kinds)], levels[len(found) // len(kinds) % len(levels)]
        question, answer = _MAKERS[kind](rng, level)
        if question not in seen:
            seen.add(question)
            found.append(MathProblem(question, latex(answer), kind.value, level))
    return found


def latex(value: Fraction) -> str:
    """A whole number, or a reduced fraction in LaTeX."""
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _arithmetic(rng: random.Random, level: int) -> tuple[str, Fraction]:
    """Level 1: one operation; 2: two, products before sums; 3: with brackets."""
    top = _DIGITS[level]
    a, b, c = (rng.randint(2, top) for _ in range(3))
    sign = rng.choice("+-")
    signed = b if sign == "+" else -b
    match level:
        case 1:
            return f"{a} {sign} {b}", Fraction(a + signed)
        case 2:
            return f"{a} {sign} {b} * {c}", Fraction(a + signed * c)
        case _:
            return f"({a} {sign} {b}) * {c}", Fraction((a + signed) * c)


def _fractions(rng: random.Random, level: int) -> tuple[str, Fraction]:
    """Levels 1 and 2: a sum or a difference, first of like parts; 3: a product less a fraction."""
    top = 3 + 4 * level
    one, other = (Fraction(rng.randint(1, top), rng.randint(2, top)) for _ in range(2))
    if level == 1:
        other = Fraction(rng.randint(1, top), one.denominator)
    if level < 3:
        sign = rng.choice("+-")
        return f"{one} {sign} {other}", one + other if sign == "+" else one - other
    third = Fraction(rng.randint(1, top), rng.randint(2, top))
    return f"{one} * {other} - {third}", one * other - third


def _equation(rng: random.Random, level: int) -> tuple[str, Fraction]:
    """Level 1: a x = c; 2: a x + b = c; 3: a x + b = d x + e. The solution is whole except on level 3."""
    top = _DIGITS[level]
    a, x = rng.randint(2, 9 * level), rng.randint(-top, top)
    b = rng.choice([-1, 1]) * rng.randint(1, top)
    if level == 1:
        return f"Solve for x: {a}x = {a * x}", Fraction(x)
    left = f"{a}x {'+' if b > 0 else '-'} {abs(b)}"
    if level == 2:
        return f"Solve for x: {left} = {a * x + b}", Fraction(x)
    d = rng.choice([factor for factor in range(2, 19) if factor != a])
    e = rng.randint(1, top)
    return f"Solve for x: {left} = {d}x + {e}", Fraction(e - b, a - d)


def _words(rng: random.Random, level: int) -> tuple[str, Fraction]:
    top = _DIGITS[level]
    a, b, c = (rng.randint(2, top) for _ in range(3))
    match level:
        case 1:
            return f"A box holds {a} pens and {b} more are put in. How many pens are in it?", Fraction(a + b)
        case 2:
            return (
                f"A shop sells {a} boxes of {b} pens and then {c} single pens. How many pens is that?",
                Fraction(a * b + c),
            )
        case _:
            return (
                f"{a} litres of paint cover {b} square metres. How many square metres do {c} litres cover?",
                Fraction(b * c, a),
            )


_MAKERS: dict[ProblemKind, Callable[[random.Random, int], tuple[str, Fraction]]] = {
    ProblemKind.ARITHMETIC: _arithmetic,
    ProblemKind.FRACTIONS: _fractions,
    ProblemKind.EQUATION: _equation,
    ProblemKind.WORDS: _words,
}


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
    files["train.jsonl"].write_bytes(_lines(train))
    files["held_out.jsonl"].write_bytes(_lines(kept))
    for config in configs:
        run = config.read_bytes()
        for mark, name in ((b"TRAIN_FILE", "train.jsonl"), (b"HELD_OUT_FILE", "held_out.jsonl")):
            run = run.replace(mark, json.dumps(str(files[name])).encode())
        files[config.name].write_bytes(run)
    if as_json:
        click.echo(json.dumps({"train": count, "held_out": held_out, "run": str(files["run.yaml"])}))
    else:
        click.echo(f"{count} problems to train on, {held_out} held out: {folder}/")
        click.echo(f"scope run --config {files['run.yaml']} --name math --set model.path=MODEL")


def _lines(found: list[MathProblem]) -> bytes:
    rows = [
        {"question": problem.question, "answer": problem.answer, "type": f"{problem.kind}_{problem.level}"}
        for problem in found
    ]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()
