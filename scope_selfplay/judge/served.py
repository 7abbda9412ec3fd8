"""Two judges over the wire of a model judge: the embedded world's, and a random one (`scope serve-judge --rehearsal`).

The lexical judge reads what a model would read: the fields by the visible names of their fences, the role by the fields
and by the form that the prompt asks for. So client, cache and faults run the same code with either judge. What it
cannot read it refuses with status 400, as an engine does a prompt that is too long.
"""

import json
import random
import time
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from scope_selfplay.base.values import (
    Criterion,
    Document,
    Outcome,
    Priority,
    Rollout,
    Rubric,
    Task,
    Verdict,
    rng_from,
)
from scope_selfplay.judge.fences import Fenced, read_fences, text_outside
from scope_selfplay.judge.protocol import PREFERENCES, Question, Reply, question_of
from scope_selfplay.judge.questions import ROLE_OF_PROMPT
from scope_selfplay.judge.rules import LexicalJudge
from scope_selfplay.net.serve import Responder, ServedReply, ServedRequest, chat_app, endpoint
from scope_selfplay.prompts.roles import CONTRACTS, OUTPUTS, Output, PromptRole

SURE = 0.99
"""Probability of a lexical verdict where one token is asked for."""
RANDOM_MODEL = "rehearsal"
GATE_PASSES = 0.8
CRITERION_MET = 0.5
_MATCHES = {1.0: "correct", 0.5: "not attempted", 0.0: "incorrect"}
_FENCES = {
    **{name: name for name in ("task", "document", "answer", "criterion")},
    "documents": "document",
    **dict.fromkeys(("first", "second", "trace", "candidates"), "candidate"),
}
"""What the visible name of a fence is, by the input of a prompt that it is around."""
_ROLES = {
    (contract.output, frozenset(_FENCES[name] for name in contract.required if name in _FENCES)): role
    for role, contract in reversed(CONTRACTS.items())
    if role in ROLE_OF_PROMPT
}
"""Who may have asked, by the form that is asked for and the fences that are shown: a prompt does not name its role, and
of those that look alike, such as gates, the first one is meant.
"""
_OUTPUTS = tuple(dict.fromkeys(CONTRACTS[role].output for role in reversed(ROLE_OF_PROMPT)))


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

    async def measured(served: ServedRequest) -> ServedReply | ASGIApp:
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

    app = chat_app(measured, model=model, api_key=api_key)
    app.routes.append(Route("/metrics", endpoint(metrics)))
    return app


async def lexical_reply(judge: LexicalJudge, served: ServedRequest) -> ServedReply:
    """Raises ValueError for a prompt without the fields of a role."""
    if _is_probe(served):
        return _PROBED
    fields: dict[str, list[Fenced]] = {}
    for fenced in read_fences(served.prompt):
        fields.setdefault(fenced.name, []).append(fenced)
    form, shown = _form_of(served.prompt), frozenset(fields.keys() - {"rubric", "reference"})
    if form is None or (role := _ROLES.get((form, shown))) is None:
        raise ValueError(
            "this judge reads prompts of the embedded world only: "
            f"no role has the fields {sorted(fields)} and this form of reply"
        )
    question = _question(role, fields, served.prompt)
    try:
        reply = await judge.ask(question)
    except ValueError:
        # A task from outside the world: neither states anything that can be checked.
        reply = Reply(Outcome(0.0, 0.0), Verdict(value=True))
    if reply.value is None:
        return ServedReply(reply.verdict.reasoning)
    value = Outcome(*(10 * each for each in reply.value)) if form is Output.TWO_SCORES else reply.value
    labels = [fenced.mark for fenced in fields.get("candidate", ())]
    return _written(form, value, served.choices, labels, thought=reply.verdict.reasoning, sure=SURE)


def random_reply(served: ServedRequest) -> ServedReply:
    """A verdict at random in the form that the prompt asks for.

    So a pack, a corpus and a config are rehearsed as a whole before a model is paid for. The draw follows from the
    prompt and the request's seed: the same run gets the same verdicts. Raises ValueError for a prompt that asks for no
    form of `prompts.contracts.OUTPUTS`.
    """
    if _is_probe(served):
        return _PROBED
    rng = rng_from(RANDOM_MODEL, served.prompt, str(served.body.get("seed")))
    if served.choices:
        return _token(rng.choice(served.choices), served.choices, 0.9)
    form = _form_of(served.prompt)
    if form is None:
        known = (OUTPUTS[each].mentions[0] for each in _OUTPUTS)
        raise ValueError(
            f"the random judge cannot tell what form this prompt asks for: it mentions none of {', '.join(known)}"
        )
    fields = read_fences(served.prompt)
    labels = [fenced.mark for fenced in fields if fenced.name == "candidate"]
    graded = any(fenced.name == "answer" for fenced in fields)
    value = _drawn(form, rng, served.prompt, len(labels), CRITERION_MET if graded else GATE_PASSES)
    return _written(form, value, (), labels, thought="A die was thrown.")


def _form_of(prompt: str) -> Output | None:
    """What the prompt's own words ask for, as the contract of its pack has it."""
    own_words = text_outside(prompt)
    asked = (each for each in _OUTPUTS if all(words in own_words for words in OUTPUTS[each].mentions))
    return next(asked, None)


_PROBED = ServedReply("1", finish="length")


def _is_probe(served: ServedRequest) -> bool:
    """Whether a client only asks if somebody is there."""
    return served.body.get("max_tokens") == 1 and not served.choices


def _question(role: PromptRole, fields: Mapping[str, Sequence[Fenced]], prompt: str) -> Question[Any]:
    """What a prompt with these slots asks."""
    text = {name: fenced[0].text for name, fenced in fields.items()}
    documents: list[Document] = []
    by: Rubric | Criterion | None = None
    if "document" in text:
        title, _, body = text["document"].partition("\n")
        documents = [Document(id="served", title=title, text=body)]
    if "criterion" in text:
        by = _criterion(text["criterion"])
    elif "rubric" in text:
        lines = (line.partition(". ")[2] for line in text["rubric"].split("\n"))
        by = Rubric(task_id="served", criteria=tuple(map(_criterion, lines)))
    shown = [
        Rollout.of_answer(next(part.text for part in fenced.inner if part.name == "answer"), fenced.mark)
        for fenced in fields.get("candidate", ())
    ]
    return question_of(
        role,
        Task(id="served", text=text["task"], type="", document_id=""),
        documents=documents,
        answers=shown or [Rollout.of_answer(text.get("answer", ""))],
        by=by,
        winners=_winners(prompt) if role is PromptRole.SELECT else 1,
    )


def _criterion(line: str) -> Criterion:
    return Criterion(text=line.partition(" | ")[0])


def _winners(prompt: str) -> int:
    numbers = [int(word) for word in text_outside(prompt).split() if word.isdecimal()]
    if not numbers:
        raise ValueError("the prompt does not say how many to select")
    return numbers[-1]


def _drawn(form: Output, rng: random.Random, prompt: str, candidates: int, likely: float) -> Any:
    """A value of the form's kind; `likely`: how often a yes."""
    match form:
        case Output.RUBRIC:
            # Five: as many as a rubric of criteria may have, and as few as one of dimensions.
            criteria = [
                Criterion(
                    text=f"Identifies point {number} of {rng.randrange(10**6)}.",
                    priority=rng.choice((Priority.CRITICAL, Priority.IMPORTANT, Priority.BONUS)),
                    title=f"Point {number}",
                    dimension="Coverage",
                )
                for number in range(1, 6)
            ]
            return Rubric(task_id="served", criteria=tuple(criteria))
        case Output.TWO_SCORES:
            return Outcome(*(round(rng.uniform(0, 10), 1) for _ in range(2)))
        case Output.PREFERENCE:
            return rng.choice(tuple(PREFERENCES.values()))
        case Output.CORRECTNESS:
            return rng.choice((0.0, 0.5, 1.0))
        case Output.MATCH:
            return rng.choice(tuple(_MATCHES))
        case Output.WINNERS:
            if not 0 < _winners(prompt) <= candidates:
                raise ValueError(f"{candidates} candidates are shown and no number of winners that fits")
            return rng.sample(range(candidates), _winners(prompt))
        case Output.RATING:
            return round(rng.uniform(0, 10), 1)
    return rng.random() < likely


def _written(
    form: Output,
    value: Any,
    choices: tuple[str, ...],
    labels: Sequence[str],
    *,
    thought: str,
    sure: float = 0.9,
) -> ServedReply:
    """A value in the form that was asked for; `labels` are those of the candidates."""
    match form:
        case Output.RUBRIC:
            fields = {"text", "priority", "title", "dimension"}
            items = [each.model_dump(mode="json", include=fields) for each in value.criteria]
            return ServedReply(f"<rubric>\n{json.dumps(items, indent=1)}\n</rubric>")
        case Output.WINNERS:
            return ServedReply(json.dumps({"winners": [labels[number] for number in value]}))
        case Output.RATING:
            return ServedReply(json.dumps({"score": value}))
        case Output.TWO_SCORES:
            said = f"<first>{value.first:.3f}</first>\n<second>{value.second:.3f}</second>"
        case Output.PREFERENCE:
            winner = "T" if value.first == value.second else "A" if value.first > value.second else "B"
            if choices:
                return _token(winner, choices, sure)
            said = rf"\boxed{{{'Tie' if winner == 'T' else winner}}}"
        case Output.CORRECTNESS:
            said = rf"\boxed{{{value:g}}}"
        case Output.MATCH:
            said = rf"\boxed{{{_MATCHES[value]}}}"
        case _:
            if choices:
                return _token(str(int(value)), choices, sure)
            said = f"<score>{int(value)}</score>"
    return ServedReply(f"<think>{thought}</think>\n{said}")


def _token(chosen: str, choices: tuple[str, ...], sure: float) -> ServedReply:
    rest = (1 - sure) / (len(choices) - 1)
    odds = {choice: sure if choice == chosen else rest for choice in choices}
    return ServedReply(chosen, odds, finish="length")
