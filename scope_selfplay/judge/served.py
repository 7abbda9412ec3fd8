"""Judges by rule over the wire of a model judge: the embedded world's, and a random one (`serve-judge --rehearsal`).

They are asked what a model would be asked: the fields by the visible names of their fences, the role by the fields and
by the form that the prompt's own words ask for. So client, cache and faults run the same code with all of them. What
cannot be read is refused with status 400, as an engine does a prompt that is too long.
"""

import json
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from starlette.applications import Starlette

from scope_selfplay.base.values import (
    Criterion,
    Document,
    Outcome,
    Passage,
    Priority,
    Rollout,
    Rubric,
    Task,
    Turn,
    Verdict,
    rng_from,
)
from scope_selfplay.judge.fences import Fenced, read_fences, text_outside
from scope_selfplay.judge.protocol import (
    PREFERENCES,
    GateQuestion,
    Judge,
    PairQuestion,
    Question,
    Reply,
    RubricQuestion,
    ScoreQuestion,
    SelectQuestion,
    question_of,
)
from scope_selfplay.judge.questions import RANDOM_MODEL, ROLE_OF_PROMPT
from scope_selfplay.judge.rules import LexicalJudge
from scope_selfplay.net.serve import ServedReply, ServedRequest, chat_app
from scope_selfplay.prompts.roles import CONTRACTS, OUTPUTS, Output, PromptRole

SURE = 0.99
"""Probability of a verdict where one token is asked for."""
METRICS = "scope_judge_server"
GATE_PASSES = 0.8
CRITERION_MET = 0.5
_KINDS = "causes effects makers numbers places reasons rivals sources".split()
_MATCHES = {1.0: "correct", 0.5: "not attempted", 0.0: "incorrect"}
_FENCES = {
    **{name: name for name in ("task", "document", "answer", "criterion")},
    "documents": "document",
    **dict.fromkeys(("first", "second", "trace", "candidates"), "candidate"),
}
"""What the visible name of a fence is, by the input of a prompt that it is around."""
_ROLES = {
    (output, frozenset(_FENCES[name] for name in contract.required if name in _FENCES)): role
    for role, contract in reversed(CONTRACTS.items())
    for output in contract.outputs
    if role in ROLE_OF_PROMPT
}
"""Who may have asked, by the form that is asked for and the fences that are shown at least: a prompt does not name its
role, and of those that look alike, such as gates, the first one is meant.
"""
_OUTPUTS = tuple(dict.fromkeys(each for role in reversed(ROLE_OF_PROMPT) for each in CONTRACTS[role].outputs))


def lexical_app(api_key: str | None = None) -> Starlette:
    """An application that judges by what a prompt shows; the model's name is the judge's identity."""
    judge = LexicalJudge()
    return chat_app(partial(judged_reply, judge), model=judge.identity, api_key=api_key, metrics=METRICS)


def random_judge_app(api_key: str | None = None) -> Starlette:
    """An application that answers every prompt of a pack with a random verdict, and judges nothing."""
    return chat_app(random_reply, model=RANDOM_MODEL, api_key=api_key, metrics=METRICS)


async def judged_reply(judge: Judge, served: ServedRequest) -> ServedReply:
    """What the judge says to a prompt of a pack, as a model would write it. Raises ValueError for another prompt."""
    if served.body.get("max_tokens") == 1 and not served.choices:
        # A client only asks if somebody is there.
        return ServedReply("1", finish="length")
    fields: dict[str, list[Fenced]] = {}
    for fenced in read_fences(served.prompt):
        fields.setdefault(fenced.name, []).append(fenced)
    # What the prompt's own words ask for, as the contract of its pack has it.
    words = text_outside(served.prompt)
    form = next((each for each in _OUTPUTS if all(word in words for word in OUTPUTS[each].mentions)), None)
    roles = {
        fences: role for (asked, fences), role in _ROLES.items() if asked is form and fences <= fields.keys()
    }
    if form is None or not roles:
        raise ValueError(f"no prompt of a pack shows {sorted(fields)} and asks for this form of reply")
    question = _question(roles[max(roles, key=len)], fields, served.prompt)
    try:
        reply = await judge.ask(question)
    except ValueError:
        # A task from outside the world: neither states anything that can be checked.
        reply = Reply(Outcome(0.0, 0.0), Verdict(value=True))
    if reply.value is None:
        return ServedReply(reply.verdict.reasoning)
    labels = [fenced.mark for fenced in fields.get("candidate", ())]
    return _written(form, reply.value, served.choices, labels, thought=reply.verdict.reasoning)


async def random_reply(served: ServedRequest) -> ServedReply:
    """That of a random judge, whose draws follow from the prompt and the request's seed: the same run gets the same."""
    rng = rng_from(RANDOM_MODEL, served.prompt, str(served.body.get("seed")))
    return await judged_reply(RandomJudge(rng), served)


class RandomJudge:
    """Says anything that a question may be answered with.

    So a pack, a corpus and a config are rehearsed as a whole before a model is paid for.
    """

    identity = RANDOM_MODEL

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        return question.said(self._drawn(question), "A die was thrown.")

    def _drawn(self, question: Question[Any]) -> Any:
        rng = self._rng
        match question:
            case RubricQuestion(task):
                # Five: as many as a rubric of criteria may have, and as few as one of dimensions.
                criteria = [
                    Criterion(
                        text=f"Identifies the {number} point of its {rng.choice(_KINDS)}.",
                        priority=rng.choice((Priority.CRITICAL, Priority.IMPORTANT, Priority.BONUS)),
                        title=f"The {number} point",
                        dimension="Coverage",
                    )
                    for number in ("first", "second", "third", "fourth", "last")
                ]
                return Rubric(task_id=task.id, criteria=tuple(criteria))
            case PairQuestion(style=style) if style.is_scored:
                return Outcome(*(round(rng.random(), 2) for _ in range(2)))
            case PairQuestion():
                return rng.choice(tuple(PREFERENCES.values()))
            case SelectQuestion(candidates=candidates, winners=winners):
                return rng.sample(range(len(candidates)), winners)
            case ScoreQuestion(scale=scale):
                return rng.choice((0.0, 0.5, 1.0)) if scale.of_halves else round(rng.uniform(0, 10), 1)
        return rng.random() < (GATE_PASSES if isinstance(question, GateQuestion) else CRITERION_MET)


def _question(role: PromptRole, fields: Mapping[str, Sequence[Fenced]], prompt: str) -> Question[Any]:
    """What a prompt with these slots asks."""
    text = {name: fenced[0].text for name, fenced in fields.items()}
    by: Rubric | Criterion | None = None
    documents = [
        Document(id=fenced.mark, title=title, text=body)
        for fenced in fields.get("document", ())
        for title, _, body in [fenced.text.partition("\n")]
    ]
    if "criterion" in text:
        by = _criterion(text["criterion"])
    elif "rubric" in text:
        lines = (line.partition(". ")[2] for line in text["rubric"].split("\n"))
        by = Rubric(task_id="served", criteria=tuple(map(_criterion, lines)))
    shown = [_candidate(fenced) for fenced in fields.get("candidate", ())]
    return question_of(
        role,
        Task(
            id="served", text=text.get("task", ""), type="", document_id="", reference=text.get("reference")
        ),
        documents=documents,
        answers=shown or [Rollout.of_answer(text.get("answer", ""))],
        by=by,
        winners=_winners(prompt, len(shown)) if role is PromptRole.SELECT else 1,
    )


def _candidate(fenced: Fenced) -> Rollout:
    """Its answer, and what it found where a prompt shows that."""
    answer = next(part.text for part in fenced.inner if part.name == "answer")
    lines = [line for part in fenced.inner if part.name == "results" for line in part.text.split("\n")]
    found = [line.partition(": ") for line in lines]
    passages = tuple(Passage(id=title, title=title, text=text) for title, _, text in found)
    turn = Turn(prompt_ids=(), ids=(), text="", query="", passages=passages)
    return Rollout.of_answer(answer, fenced.mark).model_copy(update={"turns": (turn,)})


def _criterion(line: str) -> Criterion:
    return Criterion(text=line.partition(" | ")[0])


def _winners(prompt: str, candidates: int) -> int:
    """The last number of the prompt's own words."""
    numbers = [int(word) for word in text_outside(prompt).split() if word.isdecimal()]
    if not numbers or not 0 < numbers[-1] <= candidates:
        raise ValueError(f"{candidates} candidates are shown and no number of winners that fits")
    return numbers[-1]


def _written(
    form: Output, value: Any, choices: tuple[str, ...], labels: Sequence[str], *, thought: str
) -> ServedReply:
    """A value in the form that was asked for; `labels` are those of the candidates."""
    match form:
        case Output.RUBRIC | Output.CRITERIA:
            fields = {"text", "priority", "title", "dimension"}
            items = [each.model_dump(mode="json", include=fields) for each in value.criteria]
            if form is Output.CRITERIA:
                return ServedReply(json.dumps({"criteria": items, "unmet": value.unmet or ()}))
            unmet = f"\n<unmet>\n{json.dumps(value.unmet)}\n</unmet>" if value.unmet is not None else ""
            return ServedReply(f"<rubric>\n{json.dumps(items, indent=1)}\n</rubric>{unmet}")
        case Output.WINNERS:
            return ServedReply(json.dumps({"winners": [labels[number] for number in value]}))
        case Output.RATING:
            return ServedReply(json.dumps({"score": value}))
        case Output.TWO_SCORES:
            said = f"<first>{10 * value.first:.3f}</first>\n<second>{10 * value.second:.3f}</second>"
        case Output.PREFERENCE:
            winner = "T" if value.first == value.second else "A" if value.first > value.second else "B"
            if choices:
                return _token(winner, choices)
            said = rf"\boxed{{{'Tie' if winner == 'T' else winner}}}"
        case Output.LETTER:
            return _token("A" if value.first >= value.second else "B", choices)
        case Output.YES_NO:
            return _token("Yes" if value else "No", choices)
        case Output.CORRECTNESS:
            said = rf"\boxed{{{value:g}}}"
        case Output.MATCH:
            said = rf"\boxed{{{_MATCHES[value]}}}"
        case _:
            if choices:
                return _token(str(int(value)), choices)
            said = f"<score>{int(value)}</score>"
    return ServedReply(f"<think>{thought}</think>\n{said}")


def _token(chosen: str, choices: tuple[str, ...]) -> ServedReply:
    rest = (1 - SURE) / (len(choices) - 1)
    odds = {choice: SURE if choice == chosen else rest for choice in choices}
    return ServedReply(chosen, odds, finish="length")
