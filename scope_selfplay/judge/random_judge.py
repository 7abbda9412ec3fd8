"""The random judge over the wire of a model judge: `scope serve-judge --rehearsal`.

It answers every prompt of a pack in the form that the prompt asks for, with a random verdict, so that a pack, a corpus
and a config can be rehearsed as a whole before a model is paid for. It judges nothing. The draw follows from the
prompt and the request's seed: the same run gets the same verdicts.
"""

import json
import random

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from scope_selfplay.inference.chat_server import (
    ServedReply,
    ServedRequest,
    chat_app,
    completion,
    json_response,
    refuse,
)
from scope_selfplay.judge.fences import read_fences, text_outside
from scope_selfplay.schemas import rng_from

RANDOM_MODEL = "rehearsal"
GATE_PASSES = 0.8
CRITERION_MET = 0.5


def random_judge_app(api_key: str | None = None) -> Starlette:
    """An application that answers every prompt of a pack with a random verdict."""

    async def answer(request: Request, served: ServedRequest) -> Response:
        try:
            reply = random_reply(served)
        except ValueError as error:
            return refuse(400, f"the random judge cannot tell what form this prompt asks for: {error}")
        return json_response(completion(served, reply, RANDOM_MODEL))

    return chat_app(answer, model=RANDOM_MODEL, api_key=api_key)


def random_reply(served: ServedRequest) -> ServedReply:
    """Raises ValueError for a prompt that asks for no form of `prompts.OUTPUTS`."""
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
    for form in _FORMS:
        if form in own_words:
            return ServedReply(_random_text(form, rng, served.prompt))
    raise ValueError(f"it mentions none of {', '.join(_FORMS)}")


_FORMS = ("<rubric>", "<first>", r"\boxed{Tie}", r"\boxed{0.5}", '"winners"', '"score"', "<score>")
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
        case '"winners"':
            return _random_winners(rng, prompt)
        case '"score"':
            return json.dumps({"score": round(rng.uniform(0, 10), 1)})
        case _:
            graded = any(fenced.name == "answer" for fenced in read_fences(prompt))
            met = rng.random() < (CRITERION_MET if graded else GATE_PASSES)
            return f"<think>A die was thrown.</think>\n<score>{int(met)}</score>"


def _random_winners(rng: random.Random, prompt: str) -> str:
    labels = [fenced.mark for fenced in read_fences(prompt) if fenced.name == "candidate"]
    numbers = [int(word) for word in text_outside(prompt).split() if word.isdecimal()]
    if not labels or not numbers or not 0 < numbers[-1] <= len(labels):
        raise ValueError(f"it shows {len(labels)} candidates and no number of winners that fits")
    return json.dumps({"winners": rng.sample(labels, numbers[-1])})
