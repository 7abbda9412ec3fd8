"""A person in the judge's place: what the judge of a run was asked, or two checkpoints' answers, blind.

Questions that were put to the judge are shown as it was shown them, without what it said; pairs are shuffled, sides as
well, and nameless. Every reply is kept at once, and the same command goes on with what is left.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from scope_selfplay.base.errors import RecordError
from scope_selfplay.base.values import Outcome, Rollout, Verdict, rng_from
from scope_selfplay.judge.fences import View, shown, shown_answer
from scope_selfplay.judge.protocol import GateQuestion, GradeQuestion, PairQuestion, Question, Reply, Style
from scope_selfplay.judge.questions import JudgePrompts
from scope_selfplay.play.person import Console, PersonLeftError, new_part
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.report.record import short_name
from scope_selfplay.store.columns import RecordKind
from scope_selfplay.store.human import HUMAN, HumanComparison, HumanFolder, HumanVerdict
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


class PersonJudge:
    """A `Judge` at a console; of a prompt, only what is new since the last one of its role is shown.

    Without `prompts` it is asked about pairs alone, which are shown as they are.
    """

    identity = HUMAN

    def __init__(self, console: Console, prompts: JudgePrompts | None = None) -> None:
        self._console, self._prompts = console, prompts
        self._seen: dict[PromptRole, str] = {}

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        """Without a value or a fault where the person cannot say. Raises PersonLeftError."""
        console, is_pair = self._console, isinstance(question, PairQuestion)
        words, said, line = (
            (_OUTCOMES, _PAIR_HELP, "1/2/=/?>") if is_pair else (_YES_OR_NO, _YES_OR_NO_HELP, "y/n/?>")
        )
        prompt = self._show(question)
        while True:
            word, _, reasoning = (await console.ask(line)).strip().partition(" ")
            match word.lower():
                case "/quit":
                    raise PersonLeftError
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

    def _show(self, question: Question[Any]) -> str:
        if isinstance(question, PairQuestion):
            self._console.show(question.task.text)
            for place, rollout in enumerate((question.first, question.second), start=1):
                self._console.title(f"answer {place}")
                self._console.show(shown_answer(rollout.answer))
            return question.task.text
        assert self._prompts is not None
        prompt = self._prompts.render(question).prompt
        self._console.show(new_part(prompt, self._seen.get(question.role, "")))
        self._seen[question.role] = prompt
        return prompt


@dataclass(frozen=True)
class ForPerson:
    """A question, its title, what the judge said to it, and what is kept of a person's reply."""

    question: Question[Any]
    title: str
    keep: Callable[[HumanFolder, Reply[Any]], None]
    name: tuple[str, ...] = ()
    judge: Verdict | None = None


async def put_to_person(
    asked: Sequence[ForPerson],
    human: HumanFolder,
    console: Console,
    prompts: JudgePrompts | None = None,
    *,
    reveal: bool = False,
) -> int:
    """How many replies were given. `reveal`: show what the judge said after each."""
    judge = PersonJudge(console, prompts)
    console.show(_PAIR_HELP if prompts is None else _YES_OR_NO_HELP, "dim")
    for number, each in enumerate(asked, start=1):
        what = "pair" if prompts is None else "question"
        console.title(f"{what} {number} of {len(asked)}: {each.title}")
        try:
            reply = await judge.ask(each.question)
        except PersonLeftError:
            return number - 1
        each.keep(human, reply)
        if reveal and each.judge is not None:
            said = {True: "yes", False: "no", None: "nothing"}[each.judge.value]
            console.show(f"the judge said {said}. {each.judge.reasoning}".rstrip(), "dim")
    return len(asked)


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
    for gate, verdict in candidate.gates.items():
        said = HumanVerdict(person=person, task_id=task.id, gate=gate, value=None)
        yield _for_verdict(GateQuestion(task, gate, record.document), verdict, said)
    criteria = candidate.rubric.criteria if candidate.rubric else ()
    for attempt in reader.attempts_on(task.id) if criteria else ():
        # An answer that is absent meets nothing, and nobody was asked.
        if attempt.grade is None or attempt.rollout.answer is None:
            continue
        for row, (criterion, verdict) in enumerate(zip(criteria, attempt.grade.verdicts, strict=False)):
            said = HumanVerdict(
                person=person, task_id=task.id, rollout_id=attempt.rollout.id, criterion=row, value=None
            )
            yield _for_verdict(GradeQuestion(task, criterion, attempt.rollout.answer), verdict, said)


def _for_verdict(question: Question[bool], judge: Verdict, said: HumanVerdict) -> ForPerson:
    def keep(human: HumanFolder, reply: Reply[bool]) -> None:
        changes = {"value": reply.value, "reasoning": reply.verdict.reasoning}
        human.add_verdicts([said.model_copy(update=changes)])

    return ForPerson(question, question.role.value, keep, said.question, judge)


def pairs_left(reader: RunReader, one: str, other: str, *, person: str) -> list[ForPerson]:
    """What this person has not compared of two checkpoints' answers to held-out tasks; equal answers are left out.

    Raises RecordError for a checkpoint that has no held-out answers.
    """
    mine, theirs = (_answers_of(reader, name) for name in (one, other))
    done = {
        frozenset((made.comparison.first_id, made.comparison.second_id))
        for made in HumanFolder(reader.folder).comparisons()
        if made.person == person
    }
    tasks = {made.task.id: made.task for made in reader.records(RecordKind.CANDIDATES, _HELD_OUT)}
    found: list[ForPerson] = []
    for task_id in sorted(mine.keys() & theirs.keys() & tasks.keys()):
        pair = [mine[task_id], theirs[task_id]]
        alike = len({shown(each, View.ANSWER).identity for each in pair}) == 1
        if frozenset(rollout.id for rollout in pair) in done or alike:
            continue
        rng_from("play compare", person, task_id, *sorted((one, other))).shuffle(pair)
        found.append(_for_comparison(PairQuestion(tasks[task_id], *pair, style=Style.ANSWERS), person))
    rng_from("play compare", person, *sorted((one, other))).shuffle(found)
    return found


def _for_comparison(question: PairQuestion, person: str) -> ForPerson:
    def keep(human: HumanFolder, reply: Reply[Outcome]) -> None:
        first, second = (short_name(each.checkpoint) for each in (question.first, question.second))
        human.add_comparison(
            HumanComparison(
                person=person,
                task_id=question.task.id,
                first=first,
                second=second,
                comparison=question.record(reply),
            )
        )

    return ForPerson(question, question.task.type, keep)


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
