"""Problems and their answers: each is computed again from its text, by other means."""

import random
import re
from fractions import Fraction

import pytest

from scope_selfplay.rewards.problems import LEVELS, MathProblem, ProblemKind, latex, problems


def read(answer: str) -> Fraction:
    found = re.fullmatch(r"(-?)\\frac\{(\d+)\}\{(\d+)\}", answer)
    if found:
        return Fraction(int(found[2]), int(found[3])) * (-1 if found[1] else 1)
    return Fraction(answer)


def value(expression: str) -> Fraction:
    exact = re.sub(r"(\d+)", r"Fraction(\1)", expression)
    return Fraction(eval(exact, {"Fraction": Fraction}))


def solution_holds(problem: MathProblem) -> bool:
    x, text = read(problem.answer), problem.question
    match ProblemKind(problem.kind):
        case ProblemKind.ARITHMETIC | ProblemKind.FRACTIONS:
            return value(text) == x
        case ProblemKind.EQUATION:
            left, right = text.removeprefix("Solve for x: ").split("=")
            return all_at(left, x) == all_at(right, x)
        case ProblemKind.WORDS:
            a, b, *c = map(int, re.findall(r"\d+", text))
            expected = {1: a + b, 2: a * b + (c or [0])[0], 3: Fraction(b * (c or [0])[0], a)}
            return expected[problem.level] == x


def all_at(side: str, x: Fraction) -> Fraction:
    total = Fraction(0)
    for sign, number, unknown in re.findall(r"(-?)\s*(\d+)(x?)", side):
        total += int(number) * (x if unknown else 1) * (-1 if sign else 1)
    return total


@pytest.mark.parametrize("kind", ProblemKind)
def test_every_answer_solves_its_problem(kind: ProblemKind) -> None:
    found = problems(random.Random(1), 150, kinds=[kind])
    assert len({each.question for each in found}) == 150
    assert all(solution_holds(each) for each in found)
    assert {each.level for each in found} == set(LEVELS)


def test_kinds_and_levels_come_in_turn() -> None:
    found = problems(random.Random(0), 24)
    for kind in ProblemKind:
        assert sorted(each.level for each in found if each.kind == kind) == [1, 1, 2, 2, 3, 3]


def test_equal_seeds_give_equal_problems() -> None:
    assert problems(random.Random(3), 20) == problems(random.Random(3), 20)
    assert problems(random.Random(3), 20) != problems(random.Random(4), 20)


def test_held_out_problems_are_left_out() -> None:
    kept = problems(random.Random(0), 30, kinds=[ProblemKind.ARITHMETIC], levels=[1])
    unseen = frozenset(each.question for each in kept)
    rest = problems(random.Random(1), 40, kinds=[ProblemKind.ARITHMETIC], levels=[1], without=unseen)
    assert not unseen & {each.question for each in rest}


def test_more_problems_than_there_are_is_refused() -> None:
    every = frozenset(f"{a} {sign} {b}" for a in range(2, 31) for b in range(2, 31) for sign in "+-")
    with pytest.raises(ValueError, match="no 1 different problems of arithmetic"):
        problems(random.Random(0), 1, kinds=[ProblemKind.ARITHMETIC], levels=[1], without=every)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Fraction(6, 3), "2"),
        (Fraction(-3, 4), r"-\frac{3}{4}"),
        (Fraction(0), "0"),
        (Fraction(10, 4), r"\frac{5}{2}"),
    ],
)
def test_answers_are_reduced(number: Fraction, text: str) -> None:
    assert latex(number) == text and read(text) == number
