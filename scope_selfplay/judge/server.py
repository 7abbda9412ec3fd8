"""Two judges over the wire of a model judge: the embedded world's, and a random one (`scope serve-judge --rehearsal`).

The lexical judge reads what a model would read: the fields by the visible names of their fences, the role by the fields
and by the form that the prompt asks for. So client, cache and faults run the same code with either judge. What it
cannot read it refuses with status 400, as an engine does a prompt that is too long.
"""

import json
import random
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scope_selfplay.gates import GATES, Gate
from scope_selfplay.inference.chat_server import Responder, ServedReply, ServedRequest, endpoint, reply_app
from scope_selfplay.judge.fences import Fenced, read_fences, text_outside
from scope_selfplay.judge.lexical import LexicalJudge
from scope_selfplay.judge.prompts import PREFERENCES, SCORES
from scope_selfplay.judge.protocol import Scale, Style
from scope_selfplay.keys import rng_from
from scope_selfplay.schemas import Criterion, Document, Outcome, Role, Rollout, Rubric, Task, Verdict

SURE = 0.99
"""Probability of a lexical verdict where one token is asked for."""
RANDOM_MODEL = "rehearsal"
GATE_PASSES = 0.8
CRITERION_MET = 0.5


def lexical_app(documents: Sequence[Document], api_key: str | None = None) -> Starlette:
    """An application that judges by the facts of `documents`; the model's name is the judge's identity."""
    judge = LexicalJudge(documents)
    return _measured_app(partial(lexical_reply, judge), judge.identity, api_key)


def random_judge_app(api_key: str | None = None) -> Starlette:
    """An application that answers every prompt of a pack with a random verdict, and judges nothing."""
    return _measured_app(random_reply, RANDOM_MODEL, api_key)


def _measured_app(respond: Responder, model: str, api_key: str | None) -> Starlette:
    """With /metrics, which needs no key, as vLLM's does not."""
    registry = CollectorRegistry()
    seconds = Histogram(
        "scope_judge_server_request_seconds", "Seconds per judgement", ["outcome"], registry=registry
    )

    async def measured(served: ServedRequest) -> ServedReply:
        began, outcome = time.perf_counter(), "refused"
        try:
            reply = respond(served)
            reply = await reply if isinstance(reply, Awaitable) else reply
            outcome = "answered"
        finally:
            seconds.labels(outcome).observe(time.perf_counter() - began)
        return reply

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": "text/plain"})

    app = reply_app(measured, model=model, api_key=api_key)
    app.routes.append(Route("/metrics", endpoint(metrics)))
    return app


async def lexical_reply(judge: LexicalJudge, served: ServedRequest) -> ServedReply:
    """Raises ValueError for a prompt without the fields of a role."""
    if served.body.get("max_tokens") == 1 and not served.choices:
        return ServedReply("1", finish="length")  # a canary
    fields: dict[str, list[Fenced]] = {}
    for fenced in read_fences(served.prompt):
        fields.setdefault(fenced.name, []).append(fenced)
    own_words = text_outside(served.prompt)
    names = fields.keys() - {"rubric", "reference"}
    form = next((form for wanted, form in _ROLES if names == set(wanted) and form in own_words), None)
    if form is None:
        raise ValueError(
            "this judge reads prompts of the embedded world only: "
            f"no role has the fields {sorted(fields)} and this form of reply"
        )
    shown = _Shown(fields)
    if form == r"\boxed{0.5}":
        value = (await judge.score(shown.task, shown.candidates[0], None, scale=Scale.CORRECTNESS)).value
        return ServedReply("No facts are known." if value is None else f"\\boxed{{{value:g}}}")
    if form == _NOT_ATTEMPTED:
        mark = (await judge.score(shown.task, shown.answer, None, scale=Scale.REFERENCE)).value
        return ServedReply("No facts are known." if mark is None else f"\\boxed{{{_MATCHES[mark]}}}")
    if "candidate" in fields:
        return await _compare_or_select(judge, shown, form, served.choices, own_words)
    if "answer" in fields:
        return await _judge_answer(judge, shown, form, served.choices)
    if form == "<rubric>":
        return await _write_rubric(judge, shown)
    # A prompt does not name its gate: the first one that is shown the same answers.
    shows_document = shown.document is not None
    gate = next(gate for gate in Gate if ("document" in GATES[gate].shows) is shows_document)
    return _verdict_reply(await judge.gate(gate, shown.task, shown.document), served.choices)


_MATCHES = {1.0: "correct", 0.5: "not attempted", 0.0: "incorrect"}
_NOT_ATTEMPTED = r"\boxed{not attempted}"
_ROLES = (
    *((terms.shows, "<score>") for terms in GATES.values()),
    (("document", "task"), "<rubric>"),
    (("task",), "<rubric>"),
    (("task", "answer", "criterion"), "<score>"),
    (("task", "candidate"), "<first>"),
    (("task", "candidate"), r"\boxed{Tie}"),
    (("task", "candidate"), '"winners"'),
    (("task", "candidate"), r"\boxed{0.5}"),
    (("task", "answer", "criterion"), '"score"'),
    (("task", "answer"), '"score"'),
    (("task", "answer"), _NOT_ATTEMPTED),
)
"""Fields, and the form that the prompt's own words ask for (its pack's contract); the first match counts."""


class _Shown:
    """The slots of one prompt as the values that a judge takes."""

    def __init__(self, fields: Mapping[str, Sequence[Fenced]]) -> None:
        text = {name: fenced[0].text for name, fenced in fields.items()}
        self.task = Task(id="served", text=text["task"], type="", document_id="")
        self.document: Document | None = None
        self.criterion: Criterion | None = None
        self.rubric: Rubric | None = None
        if "document" in text:
            title, _, body = text["document"].partition("\n")
            self.document = Document(id="served", title=title, text=body)
        if "criterion" in text:
            self.criterion = _criterion(text["criterion"])
        if "rubric" in text:
            lines = text["rubric"].split("\n")
            criteria = tuple(_criterion(line.partition(". ")[2]) for line in lines)
            self.rubric = Rubric(task_id="served", criteria=criteria)
        self.answer = _answered("", text.get("answer", ""))
        self.candidates = [
            _answered(fenced.mark, next(part.text for part in fenced.inner if part.name == "answer"))
            for fenced in fields.get("candidate", ())
        ]


def _answered(label: str, answer: str) -> Rollout:
    return Rollout(id=label, role=Role.SOLVER, checkpoint="", subject_id="served", turns=(), answer=answer)


def _criterion(line: str) -> Criterion:
    return Criterion(text=line.partition(" | ")[0])


async def _write_rubric(judge: LexicalJudge, shown: _Shown) -> ServedReply:
    rubric = await judge.write_rubric(shown.task, [shown.document] if shown.document else ())
    if rubric is None:
        return ServedReply("There is nothing in this world to write criteria about.")
    items = [
        {"text": criterion.text, "priority": criterion.priority.value, "dimension": criterion.dimension}
        for criterion in rubric.criteria
    ]
    return ServedReply(f"<rubric>\n{json.dumps(items, indent=1)}\n</rubric>")


async def _judge_answer(
    judge: LexicalJudge, shown: _Shown, form: str, choices: tuple[str, ...]
) -> ServedReply:
    if form == "<score>" and shown.criterion is not None:
        answer = shown.answer.answer or ""
        return _verdict_reply(await judge.grade(shown.task, shown.criterion, answer, key=()), choices)
    scale = Scale.IMPLICIT if shown.criterion is None else Scale.EXPLICIT
    score = await judge.score(shown.task, shown.answer, shown.criterion or shown.rubric, scale=scale)
    return ServedReply(json.dumps({"score": score.value}))


async def _compare_or_select(
    judge: LexicalJudge, shown: _Shown, form: str, choices: tuple[str, ...], own_words: str
) -> ServedReply:
    if form == '"winners"':
        numbers = [word for word in own_words.split() if word.isdecimal()]
        if not numbers:
            raise ValueError("the prompt does not say how many to select")
        chosen = (await judge.select(shown.task, shown.rubric, shown.candidates, int(numbers[-1]))).numbers
        return ServedReply(json.dumps({"winners": [shown.candidates[row].id for row in chosen or ()]}))
    style = Style.SCORES if form == "<first>" else Style.PREFERENCE
    one, other = shown.candidates
    # A task from outside the world: neither states anything that can be checked.
    outcome: Outcome | None = Outcome(0.0, 0.0)
    with suppress(ValueError):
        comparison = await judge.compare(shown.task, one, other, style=style, rubric=shown.rubric)
        outcome = comparison.outcome
    assert outcome is not None
    first, second = outcome
    if style is Style.SCORES:
        return ServedReply(
            f"<think>By the facts that are stated.</think>\n<first>{10 * first:.3f}</first>\n"
            f"<second>{10 * second:.3f}</second>"
        )
    winner = "T" if first == second else "A" if first > second else "B"
    if choices == tuple(PREFERENCES):
        return _token(winner, choices)
    return ServedReply(f"{first:.2f} to {second:.2f}. \\boxed{{{'Tie' if winner == 'T' else winner}}}")


def _verdict_reply(verdict: Verdict, choices: tuple[str, ...]) -> ServedReply:
    digit = str(int(bool(verdict.value)))
    if set(choices) == set(SCORES):
        return _token(digit, tuple(SCORES))
    return ServedReply(f"<think>{verdict.reasoning}</think>\n<score>{digit}</score>")


def _token(chosen: str, choices: tuple[str, ...]) -> ServedReply:
    rest = (1 - SURE) / (len(choices) - 1)
    odds = {choice: SURE if choice == chosen else rest for choice in choices}
    return ServedReply(chosen, odds, finish="length")


def random_reply(served: ServedRequest) -> ServedReply:
    """A verdict at random in the form that the prompt asks for.

    So a pack, a corpus and a config are rehearsed as a whole before a model is paid for. The draw follows from the
    prompt and the request's seed: the same run gets the same verdicts. Raises ValueError for a prompt that asks for no
    form of `prompts.contracts.OUTPUTS`.
    """
    if served.body.get("max_tokens") == 1 and not served.choices:
        return ServedReply("1", finish="length")  # a canary
    rng = rng_from(RANDOM_MODEL, served.prompt, str(served.body.get("seed")))
    if served.choices:
        chosen = rng.choice(served.choices)
        odds = {
            choice: 0.9 if choice == chosen else 0.1 / (len(served.choices) - 1) for choice in served.choices
        }
        return ServedReply(chosen, odds, finish="length")
    own_words = text_outside(served.prompt)
    for form in _RANDOM_FORMS:
        if form in own_words:
            return ServedReply(_random_text(form, rng, served.prompt))
    raise ValueError(
        f"the random judge cannot tell what form this prompt asks for: it mentions none of {', '.join(_RANDOM_FORMS)}"
    )


_RANDOM_FORMS = (
    *("<rubric>", "<first>", r"\boxed{Tie}", r"\boxed{0.5}", _NOT_ATTEMPTED),
    *('"winners"', '"score"', "<score>"),
)
"""What a prompt's own words mention (its pack's contract); the first match counts."""


def _random_text(form: str, rng: random.Random, prompt: str) -> str:
    match form:
        case "<rubric>":
            # Five: as many as a rubric of criteria may have, and as few as one of dimensions.
            items = [
                {
                    "text": f"Identifies point {number} of {rng.randrange(10**6)}.",
                    "priority": rng.choice(("critical", "important", "bonus")),
                    "title": f"Point {number}",
                    "dimension": "Coverage",
                }
                for number in range(1, 6)
            ]
            return f"<rubric>\n{json.dumps(items)}\n</rubric>"
        case "<first>":
            first, second = (round(rng.uniform(0, 10), 1) for _ in range(2))
            return f"<first>{first}</first>\n<second>{second}</second>"
        case r"\boxed{Tie}":
            return rf"\boxed{{{rng.choice(('A', 'B', 'Tie'))}}}"
        case r"\boxed{0.5}":
            return rf"\boxed{{{rng.choice(('0', '0.5', '1'))}}}"
        case r"\boxed{not attempted}":
            return rf"\boxed{{{rng.choice(tuple(_MATCHES.values()))}}}"
        case '"winners"':
            labels = [fenced.mark for fenced in read_fences(prompt) if fenced.name == "candidate"]
            numbers = [int(word) for word in text_outside(prompt).split() if word.isdecimal()]
            if not labels or not numbers or not 0 < numbers[-1] <= len(labels):
                raise ValueError(f"{len(labels)} candidates are shown and no number of winners that fits")
            return json.dumps({"winners": rng.sample(labels, numbers[-1])})
        case '"score"':
            return json.dumps({"score": round(rng.uniform(0, 10), 1)})
        case _:
            graded = any(fenced.name == "answer" for fenced in read_fences(prompt))
            met = rng.random() < (CRITERION_MET if graded else GATE_PASSES)
            return f"<think>A die was thrown.</think>\n<score>{int(met)}</score>"
