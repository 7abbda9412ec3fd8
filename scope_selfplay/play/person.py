"""A person in the judge's place: answers what it was asked, without seeing what it said, or compares two Solvers blind.

Questions are shown as the judge was shown them; pairs of answers are shuffled, sides as well, and nameless. Every reply
is kept at once, and the same command goes on with what is left.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rich.console import Console as RichConsole
from rich.rule import Rule
from rich.text import Text

from scope_selfplay.base.errors import UserError
from scope_selfplay.base.text import printable
from scope_selfplay.base.values import Outcome, Rollout, Verdict, rng_from
from scope_selfplay.evaluation.pairs import are_alike
from scope_selfplay.judge.fences import shown_answer
from scope_selfplay.judge.protocol import GateQuestion, GradeQuestion, PairQuestion, Question, Reply, Style
from scope_selfplay.judge.questions import JudgePrompts
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.report.record import scores_of, short_name
from scope_selfplay.store.columns import RecordKind
from scope_selfplay.store.query import HeldOutScore, HumanComparison, HumanFolder, HumanVerdict
from scope_selfplay.store.reader import RunReader

_JUDGED = "stage = 'tasks' AND task IS NOT NULL"
_HELD_OUT = f"iteration = 0 AND {_JUDGED}"
_PER_TASK = 3
"""Questions about one task where several are sampled: more of them say little more about the judge."""
_YES_OR_NO: Mapping[str, Any] = {
    **dict.fromkeys(("y", "yes", "1"), True),
    **dict.fromkeys(("n", "no", "0"), False),
    **dict.fromkeys(("?", "skip")),
}
_OUTCOMES: Mapping[str, Any] = {
    "1": Outcome(1.0, 0.0),
    "2": Outcome(0.0, 1.0),
    "=": Outcome(0.5, 0.5),
    "?": None,
}
_YES_OR_NO_HELP = (
    "y or 1: yes   n or 0: no   ?: cannot say   each with a reason if you like   /prompt: all of it   /quit"
)
_PAIR_HELP = (
    "1 or 2: the better answer   =: equally good   ?: cannot say   each with a reason if you like   /quit"
)


@dataclass(frozen=True)
class ForPerson:
    """A question, its title, and what a reply to it is kept as."""

    question: Question[Any]
    title: str
    kept: Callable[[Reply[Any]], HumanVerdict | HumanComparison]
    name: tuple[str, ...] = ()


def put_to_person(
    asked: Sequence[ForPerson], human: HumanFolder, console: "Console", prompts: JudgePrompts | None = None
) -> int:
    """How many replies were given.

    Of a prompt, only what is new since the last one of its role is shown. Without `prompts` all are pairs of answers,
    which are shown as they are.
    """
    what, help_line = ("pair", _PAIR_HELP) if prompts is None else ("question", _YES_OR_NO_HELP)
    seen: dict[PromptRole, str] = {}
    console.show(help_line, "dim")
    for number, each in enumerate(asked, start=1):
        console.title(f"{what} {number} of {len(asked)}: {each.title}")
        if prompts is None:
            prompt = _show_pair(console, each.question)
        else:
            prompt, role = prompts.render(each.question).prompt, each.question.role
            console.show(new_part(prompt, seen.get(role, "")))
            seen[role] = prompt
        try:
            reply = _reply(console, each.question, prompt)
        except EOFError:
            return number - 1
        human.keep(each.kept(reply))
    return len(asked)


def _show_pair(console: "Console", question: Question[Any]) -> str:
    assert isinstance(question, PairQuestion)
    console.show(question.task.text)
    for place, rollout in enumerate((question.first, question.second), start=1):
        console.title(f"answer {place}")
        console.show(shown_answer(rollout.answer))
    return question.task.text


def _reply(console: "Console", question: Question[Any], prompt: str) -> Reply[Any]:
    """Without a value or a fault where the person cannot say. Raises EOFError when the person leaves."""
    words, said, line = (
        (_OUTCOMES, _PAIR_HELP, "1/2/=/?>")
        if isinstance(question, PairQuestion)
        else (_YES_OR_NO, _YES_OR_NO_HELP, "y/n/?>")
    )
    while True:
        word, _, reasoning = console.ask(line).strip().partition(" ")
        match word.lower():
            case "/quit":
                raise EOFError
            case "/prompt":
                console.show(prompt, "dim")
            case "" | "/help":
                console.show(said, "dim")
            case known if known in words:
                value = words[known]
                holds = None if value is None else question.holds(value)
                return Reply(value, Verdict(value=holds, reasoning=reasoning.strip(), attempts=0))
            case _:
                console.complain(f"{word!r} is no reply; {said}")


def sampled(reader: RunReader, count: int, person: str, answered: Sequence[HumanVerdict]) -> list[ForPerson]:
    """Up to `count` that this person has not answered, of tasks in an order of the person's own.

    Nothing of the judge's verdicts decides which: agreement on a selection says nothing about the rest.
    """
    done = {verdict.question for verdict in answered if verdict.person == person}
    rows = reader.sql(f"SELECT DISTINCT task.id AS id FROM candidates WHERE {_JUDGED} ORDER BY id")
    ids = [row["id"] for row in rows]
    rng_from("play judge", person).shuffle(ids)

    def of_task(task_id: str) -> Iterator[ForPerson]:
        # Equal answers are one question to whoever reads them.
        found = list({each.question: each for each in asked_on(reader, task_id, person)}.values())
        rng_from("play judge", person, task_id).shuffle(found)
        return (each for each in found[:_PER_TASK] if each.name not in done)

    return list(islice((each for task_id in ids for each in of_task(task_id)), count))


def asked_on(reader: RunReader, task_id: str, person: str) -> Iterator[ForPerson]:
    """All that the judge was asked about one task: its gates, then every criterion of every answer that was graded."""
    record = reader.task(task_id)
    candidate, task = record.candidate, record.candidate.task
    if task is None:
        return
    for gate in candidate.gates:
        said = HumanVerdict(person=person, task_id=task.id, gate=gate, value=None)
        yield _for_verdict(GateQuestion(task, gate, record.document), said)
    criteria = candidate.rubric.criteria if candidate.rubric else ()
    for attempt in reader.attempts_on(task.id) if criteria else ():
        # An answer that is absent meets nothing, and nobody was asked.
        if attempt.grade is None or attempt.rollout.answer is None:
            continue
        for row, criterion in enumerate(criteria[: len(attempt.grade.verdicts)]):
            said = HumanVerdict(
                person=person, task_id=task.id, rollout_id=attempt.rollout.id, criterion=row, value=None
            )
            yield _for_verdict(GradeQuestion(task, criterion, attempt.rollout.answer), said)


def _for_verdict(question: Question[bool], said: HumanVerdict) -> ForPerson:
    def kept(reply: Reply[bool]) -> HumanVerdict:
        return said.model_copy(update={"value": reply.value, "reasoning": reply.verdict.reasoning})

    return ForPerson(question, question.role.value, kept, said.question)


def pairs_left(reader: RunReader, one: str, other: str, *, person: str) -> list[ForPerson]:
    """What this person has not compared of two checkpoints' answers to held-out tasks; equal answers are left out.

    Raises RecordError for a checkpoint that has no held-out answers.
    """
    scores = reader.scores()
    mine, theirs = (_answers_of(reader, scores, name) for name in (one, other))
    done = {
        frozenset((made.comparison.first_id, made.comparison.second_id))
        for made in HumanFolder(reader.folder).comparisons()
        if made.person == person
    }
    tasks = {made.task.id: made.task for made in reader.records(RecordKind.CANDIDATES, _HELD_OUT)}
    found: list[ForPerson] = []
    for task_id in sorted(mine.keys() & theirs.keys() & tasks.keys()):
        pair = [mine[task_id], theirs[task_id]]
        if frozenset(rollout.id for rollout in pair) in done or are_alike(*pair):
            continue
        rng_from("play compare", person, task_id, *sorted((one, other))).shuffle(pair)
        found.append(_for_comparison(PairQuestion(tasks[task_id], *pair, style=Style.ANSWERS), person))
    rng_from("play compare", person, *sorted((one, other))).shuffle(found)
    return found


def _for_comparison(question: PairQuestion, person: str) -> ForPerson:
    def kept(reply: Reply[Outcome]) -> HumanComparison:
        return HumanComparison(
            person=person,
            task_id=question.task.id,
            first=short_name(question.first.checkpoint),
            second=short_name(question.second.checkpoint),
            comparison=question.record(reply),
        )

    return ForPerson(question, question.task.type, kept)


def _answers_of(reader: RunReader, scores: Sequence[HeldOutScore], name: str) -> dict[str, Rollout]:
    """By held-out task."""
    ids = [score.rollout_id for score in scores_of(scores, name).values()]
    return {made.subject_id: made for made in reader.with_ids(RecordKind.ROLLOUTS, "id", ids)}


class Console:
    """Prints to stdout and reads replies from stdin, a line each."""

    def __init__(self) -> None:
        self._console = RichConsole(highlight=False)

    def title(self, text: str) -> None:
        self._console.print()
        self._console.print(Rule(Text(printable(text), style="bold cyan"), align="left", style="cyan"))

    def show(self, text: str, style: str = "") -> None:
        """A text, perhaps by a model: it cannot move the cursor or recolour anything."""
        self._console.print(Text(printable(text), style=style), soft_wrap=False)

    def complain(self, text: str) -> None:
        """Say why the last reply cannot be taken; a person is asked again. Raises UserError for a script's reply: those
        that follow would answer other questions.
        """
        if not sys.stdin.isatty():
            raise UserError(text)
        self.show(text, "yellow")

    def ask(self, question: str) -> str:
        """Raises EOFError where the person leaves."""
        return self._console.input(f"{question} ", markup=False)


def new_part(prompt: str, seen: str) -> str:
    """What a prompt adds to the one before it, from the beginning of a line; all of it where it adds nothing."""
    pairs = enumerate(zip(prompt, seen, strict=False))
    same = next((place for place, (one, other) in pairs if one != other), min(len(prompt), len(seen)))
    return prompt[same if same == len(seen) else prompt[:same].rfind("\n") + 1 :].strip("\n") or prompt
