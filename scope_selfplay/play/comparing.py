"""A person compares two checkpoints' answers to held-out tasks, blind: shuffled tasks, shuffled sides, no names."""

from collections.abc import Sequence
from dataclasses import dataclass

from scope_selfplay.errors import RecordError
from scope_selfplay.inspection.comparing import short_name
from scope_selfplay.judge import same_text
from scope_selfplay.judge.shown import shown_answer
from scope_selfplay.keys import rng_from
from scope_selfplay.play.console import Console, PersonLeftError
from scope_selfplay.schemas import Comparison, Outcome, Rollout, Task, Verdict
from scope_selfplay.store.human import HumanComparison, HumanFolder
from scope_selfplay.store.parquet import RecordKind
from scope_selfplay.store.reader import RunReader

OUTCOMES = {"1": Outcome(1.0, 0.0), "2": Outcome(0.0, 1.0), "=": Outcome(0.5, 0.5), "?": None}
_HELD_OUT = "iteration = 0 AND stage = 'tasks' AND task IS NOT NULL"
HELP = "1 or 2: the better answer   =: equally good   ?: cannot say   each with a reason if you like   /quit"


@dataclass(frozen=True)
class Pair:
    """Two answers to one task, in the order in which they are shown."""

    task: Task
    first: Rollout
    second: Rollout


def pairs_left(reader: RunReader, one: str, other: str, *, person: str) -> list[Pair]:
    """What this person has not compared of two checkpoints' answers; equal answers are left out.

    Raises RecordError for a checkpoint that has no held-out answers.
    """
    mine, theirs = (_answers_of(reader, name) for name in (one, other))
    done = {
        frozenset((made.comparison.first_id, made.comparison.second_id))
        for made in HumanFolder(reader.folder).comparisons()
        if made.person == person
    }
    tasks = {made.task.id: made.task for made in reader.records(RecordKind.CANDIDATES, _HELD_OUT)}
    found: list[Pair] = []
    for task_id in sorted(mine.keys() & theirs.keys() & tasks.keys()):
        pair = [mine[task_id], theirs[task_id]]
        if frozenset(rollout.id for rollout in pair) in done or same_text(
            *(shown_answer(each.answer) for each in pair)
        ):
            continue
        rng_from("play compare", person, task_id, *sorted((one, other))).shuffle(pair)
        found.append(Pair(tasks[task_id], *pair))
    rng_from("play compare", person, *sorted((one, other))).shuffle(found)
    return found


async def compare_blind(pairs: Sequence[Pair], human: HumanFolder, console: Console, *, person: str) -> int:
    """Ask, and keep every reply at once; how many were given."""
    console.show(HELP, "dim")
    for number, pair in enumerate(pairs, start=1):
        console.title(f"pair {number} of {len(pairs)}: {pair.task.type}")
        console.show(pair.task.text)
        for place, rollout in enumerate((pair.first, pair.second), start=1):
            console.title(f"answer {place}")
            console.show(shown_answer(rollout.answer))
        try:
            comparison = await _comparison(console, pair)
        except PersonLeftError:
            return number - 1
        names = (short_name(rollout.checkpoint) for rollout in (pair.first, pair.second))
        human.add_comparison(
            HumanComparison(
                person=person,
                task_id=pair.task.id,
                first=next(names),
                second=next(names),
                comparison=comparison,
            )
        )
    return len(pairs)


async def _comparison(console: Console, pair: Pair) -> Comparison:
    while True:
        word, _, reasoning = (await console.ask("1/2/=/?>")).strip().partition(" ")
        if word == "/quit":
            raise PersonLeftError
        if word in OUTCOMES:
            outcome = OUTCOMES[word]
            value = None if outcome is None else outcome.first >= outcome.second
            verdict = Verdict(value=value, reasoning=reasoning.strip(), attempts=0)
            return Comparison(
                first_id=pair.first.id, second_id=pair.second.id, outcome=outcome, verdict=verdict
            )
        console.complain(f"{word!r} is no reply; {HELP}") if word else console.show(HELP, "dim")


def _answers_of(reader: RunReader, name: str) -> dict[str, Rollout]:
    """By held-out task."""
    condition = "stage = 'compare' AND (checkpoint = ? OR starts_with(checkpoint, ?))"
    found = {
        rollout.subject_id: rollout
        for rollout in reader.records(RecordKind.ROLLOUTS, condition, [name, f"{name}-"])
    }
    if not found:
        known = ", ".join(dict.fromkeys(short_name(score.checkpoint) for score in reader.scores())) or "none"
        raise RecordError(f"{name}: has no held-out answers; checkpoints that have: {known}")
    return found
