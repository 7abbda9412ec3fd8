"""The embedded lexical judge over the wire of a model judge: `scope serve-judge`.

It reads what a model would read: the fields by the visible names of their fences, the role by the fields and
by the form that the prompt asks for. So client, cache and faults run the same code with either judge. What
it cannot read it refuses with status 400, as an engine does a prompt that is too long.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from scope_selfplay.gates import GATES, Gate
from scope_selfplay.inference.chat_server import (
    ServedReply,
    ServedRequest,
    chat_app,
    completion,
    json_response,
    refuse,
)
from scope_selfplay.judge.fences import Fenced, read_fences, text_outside
from scope_selfplay.judge.lexical import LexicalJudge
from scope_selfplay.judge.prompts import PREFERENCES, SCORES
from scope_selfplay.judge.protocol import Scale, Style
from scope_selfplay.schemas import Criterion, Document, Outcome, Role, Rollout, Rubric, Task

SURE = 0.99
"""Probability of its verdict where one token is asked for."""


def lexical_app(documents: Sequence[Document], api_key: str | None = None) -> Starlette:
    """An application that judges by the facts of `documents`; the model's name is the judge's identity."""
    judge = LexicalJudge(documents)

    async def answer(request: Request, served: ServedRequest) -> Response:
        try:
            reply = await lexical_reply(judge, served)
        except ValueError as error:
            return refuse(400, f"this judge reads prompts of the embedded world only: {error}")
        return json_response(completion(served, reply, judge.identity))

    return chat_app(answer, model=judge.identity, api_key=api_key)


async def lexical_reply(judge: LexicalJudge, served: ServedRequest) -> ServedReply:
    """Raises ValueError for a prompt without the fields of a role."""
    if served.body.get("max_tokens") == 1 and not served.choices:
        return ServedReply("1", finish="length")  # a canary
    fields: dict[str, list[Fenced]] = {}
    for fenced in read_fences(served.prompt):
        fields.setdefault(fenced.name, []).append(fenced)
    wanted = text_outside(served.prompt)
    for names, asks, role in _ROLES:
        if fields.keys() - {"rubric", "reference"} == set(names) and asks in wanted:
            return await role(judge, _Fields(fields, wanted), served)
    raise ValueError(f"no role has the fields {sorted(fields)} and this form of reply")


class _Fields:
    """The slots of one prompt as the values that a judge takes."""

    def __init__(self, fields: Mapping[str, Sequence[Fenced]], outside: str) -> None:
        self._fields = fields
        self.outside = outside

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    @property
    def task(self) -> Task:
        return Task(id="served", text=self._text("task"), type="", document_id="")

    @property
    def document(self) -> Document | None:
        if "document" not in self:
            return None
        title, _, text = self._text("document").partition("\n")
        return Document(id="served", title=title, text=text)

    @property
    def answer(self) -> str:
        return self._text("answer")

    @property
    def criterion(self) -> Criterion:
        return Criterion(text=_first_field(self._text("criterion")))

    @property
    def rubric(self) -> Rubric | None:
        if "rubric" not in self:
            return None
        lines = self._text("rubric").split("\n")
        criteria = [Criterion(text=_first_field(line.partition(". ")[2])) for line in lines]
        return Rubric(task_id="served", criteria=tuple(criteria))

    @property
    def labels(self) -> list[str]:
        return [fenced.mark for fenced in self._fields["candidate"]]

    @property
    def candidates(self) -> list[Rollout]:
        return [
            Rollout(
                id=fenced.mark,
                role=Role.SOLVER,
                checkpoint="",
                subject_id="served",
                turns=(),
                answer=next(part.text for part in fenced.inner if part.name == "answer"),
            )
            for fenced in self._fields["candidate"]
        ]

    def _text(self, name: str) -> str:
        return self._fields[name][0].text


async def _gate(judge: LexicalJudge, fields: _Fields, served: ServedRequest) -> ServedReply:
    # A prompt does not name its gate: the first one that is shown the same answers.
    document = fields.document
    gate = next(gate for gate in Gate if ("document" in GATES[gate].shows) is (document is not None))
    verdict = await judge.gate(gate, fields.task, document)
    return _scored(bool(verdict.value), verdict.reasoning, served)


async def _grade(judge: LexicalJudge, fields: _Fields, served: ServedRequest) -> ServedReply:
    verdict = await judge.grade(fields.task, fields.criterion, fields.answer, key=())
    return _scored(bool(verdict.value), verdict.reasoning, served)


async def _rubric(judge: LexicalJudge, fields: _Fields, served: ServedRequest) -> ServedReply:
    rubric = await judge.write_rubric(fields.task, [fields.document] if fields.document else ())
    if rubric is None:
        return ServedReply("There is nothing in this world to write criteria about.")
    items = [
        {"text": criterion.text, "priority": criterion.priority.value, "dimension": criterion.dimension}
        for criterion in rubric.criteria
    ]
    return ServedReply(f"<rubric>\n{json.dumps(items, indent=1)}\n</rubric>")


async def _compare_scores(judge: LexicalJudge, fields: _Fields, served: ServedRequest) -> ServedReply:
    first, second = await _outcome(judge, fields, Style.SCORES)
    return ServedReply(
        f"<think>By the facts that are stated.</think>\n<first>{10 * first:.3f}</first>\n"
        f"<second>{10 * second:.3f}</second>"
    )


async def _compare_preference(judge: LexicalJudge, fields: _Fields, served: ServedRequest) -> ServedReply:
    first, second = await _outcome(judge, fields, Style.PREFERENCE)
    winner = "T" if first == second else "A" if first > second else "B"
    if served.choices == tuple(PREFERENCES):
        return _token(winner, tuple(PREFERENCES))
    return ServedReply(f"{first:.2f} to {second:.2f}. \\boxed{{{'Tie' if winner == 'T' else winner}}}")


async def _outcome(judge: LexicalJudge, fields: _Fields, style: Style) -> Outcome:
    first, second = fields.candidates
    try:
        comparison = await judge.compare(fields.task, first, second, style=style, rubric=fields.rubric)
    except ValueError:
        # A task from outside the world: neither states anything that can be checked.
        return Outcome(0.0, 0.0)
    assert comparison.outcome is not None
    return comparison.outcome


async def _select(judge: LexicalJudge, fields: _Fields, served: ServedRequest) -> ServedReply:
    numbers = [word for word in fields.outside.split() if word.isdecimal()]
    if not numbers:
        raise ValueError("the prompt does not say how many to select")
    chosen = (await judge.select(fields.task, fields.rubric, fields.candidates, int(numbers[-1]))).numbers
    labels = fields.labels
    return ServedReply(json.dumps({"winners": [labels[row] for row in chosen or ()]}))


async def _rating(judge: LexicalJudge, fields: _Fields, served: ServedRequest) -> ServedReply:
    if "criterion" in fields:
        score = await judge.score(fields.task, fields.answer, fields.criterion, scale=Scale.EXPLICIT)
    else:
        score = await judge.score(fields.task, fields.answer, fields.rubric, scale=Scale.IMPLICIT)
    return ServedReply(json.dumps({"score": score.value}))


async def _score_correctness(judge: LexicalJudge, fields: _Fields, served: ServedRequest) -> ServedReply:
    score = (await judge.score(fields.task, fields.answer, fields.rubric, scale=Scale.CORRECTNESS)).value
    return ServedReply("No facts are known." if score is None else f"\\boxed{{{score:g}}}")


_Role = Callable[[LexicalJudge, _Fields, ServedRequest], Awaitable[ServedReply]]
_ROLES: tuple[tuple[tuple[str, ...], str, _Role], ...] = (
    *((terms.shows, "<score>", _gate) for terms in GATES.values()),
    (("document", "task"), "<rubric>", _rubric),
    (("task",), "<rubric>", _rubric),
    (("task", "answer", "criterion"), "<score>", _grade),
    (("task", "candidate"), "<first>", _compare_scores),
    (("task", "candidate"), r"\boxed{Tie}", _compare_preference),
    (("task", "candidate"), '"winners"', _select),
    (("task", "answer", "criterion"), '"score"', _rating),
    (("task", "answer"), '"score"', _rating),
    (("task", "answer"), r"\boxed{0.5}", _score_correctness),
)
"""Fields, what the prompt's own text mentions (its pack's contract), and who answers; first match counts."""


def _scored(value: bool, reasoning: str, served: ServedRequest) -> ServedReply:
    digit = str(int(value))
    if set(served.choices) == set(SCORES):
        return _token(digit, tuple(SCORES))
    return ServedReply(f"<think>{reasoning}</think>\n<score>{digit}</score>")


def _token(chosen: str, choices: Sequence[str]) -> ServedReply:
    rest = (1 - SURE) / (len(choices) - 1)
    return ServedReply(
        chosen, {choice: SURE if choice == chosen else rest for choice in choices}, finish="length"
    )


def _first_field(line: str) -> str:
    return line.partition(" | ")[0]
