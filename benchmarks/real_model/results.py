"""What is kept in the repository, enough for every table of real-model.md, and how it is read off a seed's folder.

`kept/seed-N.jsonl`: a line about its training, then a line for each held-out question with what S_0 and S_1 searched
for and said.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from benchmarks.real_model_answers import read_lines
from scope_selfplay.base.values import Rollout, RolloutStatus, Value
from scope_selfplay.rewards.verify import exact_match, f1
from scope_selfplay.store.files import read_records, read_rows, write_atomic
from scope_selfplay.store.folder import RunFolder, Stage, read_manifest

KEPT = Path(__file__).parent / "kept"


class Behaviour(Value):
    """Shares of rollouts (of all turns: `parsed`, those that are one search or one answer), and the mean reward.

    `found`: the right answer stood in what the search showed.
    """

    parsed: float
    searched: float
    found: float
    answered: float
    right: float
    reward: float


class Step(Value):
    """`flat`: share of the groups from which nothing is learnt."""

    behaviour: Behaviour
    entropy: float
    flat: float
    seconds: float


class Training(Value):
    """`held_out`: sampled answers of S_0 and of S_1."""

    seed: int
    minutes: float
    held_out: tuple[Behaviour, Behaviour]
    steps: tuple[Step, ...]


class Said(NamedTuple):
    query: str | None
    answer: str | None


class Answered(Value):
    """A held-out question. S_0 comes first."""

    id: str
    greedy: tuple[Said, Said]
    sampled: tuple[tuple[Said, ...], tuple[Said, ...]]


class Marks(NamedTuple):
    exact: float
    f1: float


class Kept(NamedTuple):
    training: Training
    answered: Sequence[Answered]

    def greedy(self, iteration: int) -> dict[str, Marks]:
        return {each.id: marks_of([each.greedy[iteration]], each.id) for each in self.answered}

    def sampled(self, iteration: int) -> dict[str, Marks]:
        """Means over the samples of each question."""
        return {each.id: marks_of(each.sampled[iteration], each.id) for each in self.answered}


@cache
def held_out_questions() -> Mapping[str, dict[str, str]]:
    rows = read_lines("held_out")
    return {row["id"]: {**row, "right": row["answers"][0]} for row in rows}


def marks_of(said: Sequence[Said], question: str) -> Marks:
    """No answer has no marks to give."""
    right, known = (
        [held_out_questions()[question]["right"]],
        [each.answer for each in said if each.answer is not None],
    )
    exact, overlap = (sum(mark(each, right) for each in known) / len(said) for mark in (exact_match, f1))
    return Marks(exact, overlap)


def read_kept(folder: Path = KEPT) -> list[Kept]:
    """Of every seed."""
    found = []
    for file in sorted(folder.glob("seed-*.jsonl")):
        training, *answered = file.read_bytes().splitlines()
        lines = [Answered.model_validate_json(each) for each in answered]
        found.append(Kept(Training.model_validate_json(training), lines))
    return found


def keep_seed(seed: int, seed_folder: Path, folder: Path) -> None:
    """What its Solvers answered, and how it behaved step by step."""
    answers = [read_records(seed_folder / f"answers-{number}.jsonl", Rollout) for number in (0, 1)]
    # The greedy answers come first, in the order of the questions.
    before, after = (behaviour(each[len(held_out_questions()) :], "held_out") for each in answers)
    solver = RunFolder(seed_folder / "solver").stage(1, Stage.SOLVER)
    manifest, rows = read_manifest(solver.path), read_rows(solver.metrics)
    assert manifest is not None
    rollouts = read_records(solver.rollouts, Rollout)
    size = len(rollouts) // len(rows)
    steps = [
        Step(
            behaviour=behaviour(rollouts[number * size : (number + 1) * size], "train"),
            entropy=round(row["entropy"], 4),
            flat=row["zero_variance"],
            seconds=round(row["step_seconds"], 1),
        )
        for number, row in enumerate(rows)
    ]
    minutes = round(manifest.seconds / 60, 1)
    training = Training(seed=seed, minutes=minutes, held_out=(before, after), steps=tuple(steps))
    lines: list[Value] = [training, *_answered(*map(_said, answers))]
    text = "".join(f"{line.model_dump_json()}\n" for line in lines)
    write_atomic(folder / f"seed-{seed}.jsonl", text)


def _said(answers: Sequence[Rollout]) -> dict[str, list[Said]]:
    """What was said to each question, greedily first."""
    found: dict[str, list[Said]] = {}
    for each in answers:
        query = next((turn.query for turn in each.turns if turn.query is not None), None)
        found.setdefault(each.subject_id, []).append(Said(query, each.answer))
    return found


def _answered(before: Mapping[str, list[Said]], after: Mapping[str, list[Said]]) -> list[Answered]:
    pairs = [(name, said, after[name]) for name, said in before.items()]
    return [
        Answered(id=name, greedy=(one[0], two[0]), sampled=(tuple(one[1:]), tuple(two[1:])))
        for name, one, two in pairs
    ]


def behaviour(rollouts: Sequence[Rollout], questions: str) -> Behaviour:
    rights = {row["id"]: row["answers"][0] for row in read_lines(questions)}
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    last = {id(rollout.turns[-1]) for rollout in rollouts if rollout.answer is not None}
    shown = [
        "\n".join(found.text for turn in each.turns for found in turn.passages or ()) for each in rollouts
    ]
    right = [rights[each.subject_id] for each in rollouts]
    said = [(each.answer or "", [wanted]) for each, wanted in zip(rollouts, right, strict=True)]
    finished = [each.answer is not None and each.status is RolloutStatus.FINISHED for each in rollouts]
    shares = {
        "parsed": fmean(turn.query is not None or id(turn) in last for turn in turns),
        "searched": fmean(rollout.searches > 0 for rollout in rollouts),
        "found": fmean(wanted in text for wanted, text in zip(right, shown, strict=True)),
        "answered": fmean(finished),
        "right": fmean(exact_match(*each) for each in said),
        "reward": fmean(f1(*each) for each in said),
    }
    return Behaviour(**{name: round(share, 4) for name, share in shares.items()})
