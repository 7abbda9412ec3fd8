"""The model judge: prompt -> completion -> parsed value, or a typed fault and None; never a made-up number.

    judge = open_model_judge(config.judge, pack, seed=config.seed, folder=run_folder)
    verdict = await judge.grade(task, criterion, answer, key=key)

Works in any event loop, one after the other or side by side. `key` seeds nothing here: the judge's draws
follow from the run's seed and from what is judged (see `calls`).
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from scope_selfplay.config import JudgeConfig, JudgeRole
from scope_selfplay.gates import Gate
from scope_selfplay.judge.cache import JudgementCache
from scope_selfplay.judge.calls import JudgeCaller, JudgeReply, model_name
from scope_selfplay.judge.endpoint_pool import special_tokens, with_models
from scope_selfplay.judge.fences import fence_key
from scope_selfplay.judge.grading import is_opener
from scope_selfplay.judge.parsing import parse_unmet
from scope_selfplay.judge.prompts import PREFERENCES, JudgePrompts
from scope_selfplay.judge.protocol import PointwiseScore, Scale, Selected, Style
from scope_selfplay.judge.run_key import run_key
from scope_selfplay.judge.shown import shown
from scope_selfplay.keys import Key, content_id
from scope_selfplay.prompts import Pack
from scope_selfplay.rewards import priority_weight
from scope_selfplay.schemas import Comparison, Criterion, Document, Outcome, Rollout, Rubric, Task, Verdict
from scope_selfplay.untrusted_text import ControlTags

T = TypeVar("T")

_OPENER = Verdict(value=False, reasoning="the answer holds nothing but an opener", attempts=0)


class ModelJudge:
    """`config` names a model for every endpoint (`open_model_judge` finds them)."""

    def __init__(
        self,
        config: JudgeConfig,
        pack: Pack,
        *,
        seed: int,
        cache: JudgementCache,
        key: bytes | None = None,
        tokens: Collection[str] = (),
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`key` is the secret of the run's fences, by default one that follows from the seed; `tokens` are the
        judge's special tokens.
        """
        self.prompts = JudgePrompts(pack, config, key=key or fence_key(seed), tags=ControlTags(tokens))
        self._cache = cache
        self.knows_tokens = bool(tokens)
        self._caller = JudgeCaller(config, cache, seed=seed, say=say)
        self.metrics = self._caller.metrics
        models = [model_name(config, role) for role in JudgeRole]
        calls = (config.gate_call, config.rubric_call, config.grade_call, config.compare_call)
        settings = [call.model_dump_json() for call in calls]
        content = content_id(
            "model", *models, *settings, pack.hash, config.verdict, config.max_chars, config.truncation
        )
        self.identity = f"{model_name(config, JudgeRole.GRADE)} {content}"

    def begin_stage(self) -> None:
        """Every stage has its own failure budget, time and account."""
        self._caller.begin_stage()

    async def close(self) -> None:
        """Close the running loop's connections, for a judge that is let go before its loop ends."""
        await self._caller.close()

    def account(self) -> dict[str, dict[str, object]]:
        """What the stage asked, by role: calls, attempts, cached, joined, tokens in and out, faults."""
        return {role.value: account.report() for role, account in sorted(self.metrics.accounts.items())}

    async def gate(self, gate: Gate, task: Task, document: Document | None) -> Verdict:
        return _scored(await self._caller.ask(self.prompts.gate(gate, task, document)))

    async def write_rubric(self, task: Task, documents: Sequence[Document]) -> Rubric | None:
        """From the documents; without any, from the query alone by its own writer, weighted by importance."""
        if documents:
            written = await self._caller.ask(self.prompts.rubric(task, documents))
            if written.value is None:
                return None
            unmet = parse_unmet(written.completion)
            return Rubric(task_id=task.id, criteria=tuple(written.value), unmet=unmet)
        reply = await self._caller.ask(self.prompts.dimensions(task))
        if reply.value is None:
            return None
        weighted = [
            criterion.model_copy(update={"weight": priority_weight(criterion.priority)})
            for criterion in reply.value
        ]
        return Rubric(task_id=task.id, criteria=tuple(weighted))

    async def grade(self, task: Task, criterion: Criterion, answer: str, *, key: Key) -> Verdict:
        if is_opener(answer):
            return _OPENER
        return _scored(await self._caller.ask(self.prompts.grade(task, criterion, answer)))

    async def compare(
        self,
        task: Task,
        first: Rollout,
        second: Rollout,
        *,
        style: Style,
        rubric: Rubric | Criterion | None = None,
        repeat: int = 0,
    ) -> Comparison:
        """One presentation, `first` first; who wants both orders asks twice. What would look the same ties unasked, and
        an answer wins unasked over none.

        The verdict decides the outcome, also as one token: a tie is a tie, however likely a win was (Reasoning Arena,
        equation 7). The probability that the first is better is kept beside it.
        """
        one, other = (shown(rollout, style.view).identity for rollout in (first, second))
        if one == other:
            tie = Verdict(value=True, reasoning="both are the same", attempts=0)
            middle = 5.0 if style.is_scored else 0.5
            return Comparison(
                first_id=first.id, second_id=second.id, outcome=Outcome(middle, middle), verdict=tie
            )
        unanswered = [is_opener(rollout.answer or "") for rollout in (first, second)]
        if any(unanswered) and not all(unanswered):
            return _won_unasked(first, second, style, first_wins=unanswered[1])
        prompt = self.prompts.compare(task, (first, second), style, rubric)._replace(repeat=repeat)
        reply = await self._caller.ask(prompt)
        outcome = reply.value
        value = None if outcome is None else outcome.first >= outcome.second
        verdict = reply.verdict(value, _soft_preference(reply))
        return Comparison(first_id=first.id, second_id=second.id, outcome=outcome, verdict=verdict)

    async def select(
        self,
        task: Task,
        rubric: Rubric | None,
        candidates: Sequence[Rollout],
        winners: int,
        *,
        repeat: int = 0,
    ) -> Selected:
        prompt = self.prompts.select(task, rubric, candidates, winners)._replace(repeat=repeat)
        reply = await self._caller.ask(prompt)
        return Selected(reply.value, reply.verdict(None if reply.value is None else True))

    async def score(
        self, task: Task, rollout: Rollout, rubric: Rubric | Criterion | None, *, scale: Scale
    ) -> PointwiseScore:
        if is_opener(rollout.answer or ""):
            return PointwiseScore(0.0, _OPENER.model_copy(update={"value": True}))
        prompt = self.prompts.score(task, rollout, rubric, scale)
        reply = await self._caller.ask(prompt)
        return PointwiseScore(reply.value, reply.verdict(None if reply.value is None else True))


def open_model_judge(
    config: JudgeConfig,
    pack: Pack,
    *,
    seed: int,
    folder: Path,
    say: Callable[[str], None] = lambda text: None,
) -> ModelJudge:
    """A judge whose endpoints answer and serve its models; its key and paid judgements lie in the run's `folder`.

    Raises ConfigError for what the endpoints do not know, JudgeError where one does not answer.
    """
    # In a thread of its own: the caller may or may not have an event loop running.
    with ThreadPoolExecutor(max_workers=1) as pool:
        named, tokens = pool.submit(asyncio.run, _handshake(config)).result()
    path = folder / config.cache if config.cache is not None else None
    # Runs that share paid judgements share their key, too: the same text then has the same mark in all of them.
    place = folder if path is None else path.parent
    key = run_key(place, seed=seed, began_before=path is not None and path.exists())
    cache = JudgementCache(path)
    return ModelJudge(named, pack, seed=seed, cache=cache, key=key, tokens=tokens, say=say)


async def _handshake(config: JudgeConfig) -> tuple[JudgeConfig, frozenset[str]]:
    named = await with_models(config)
    return named, await special_tokens(named)


def _won_unasked(first: Rollout, second: Rollout, style: Style, *, first_wins: bool) -> Comparison:
    most = 10.0 if style.is_scored else 1.0
    outcome = Outcome(most, 0.0) if first_wins else Outcome(0.0, most)
    verdict = Verdict(value=first_wins, reasoning="the other one holds no answer", attempts=0)
    return Comparison(first_id=first.id, second_id=second.id, outcome=outcome, verdict=verdict)


def _scored(reply: JudgeReply[bool]) -> Verdict:
    yes, no = reply.odds.get("1"), reply.odds.get("0")
    probability = None
    if reply.value is not None and yes is not None and no is not None and yes + no > 0:
        probability = yes / (yes + no)
    return reply.verdict(reply.value, probability)


def _soft_preference(reply: JudgeReply[Outcome]) -> float | None:
    """How likely the first is better, a tie counting half; None unless all three choices have a known probability."""
    odds = [reply.odds.get(choice) for choice in PREFERENCES]
    if reply.value is None or any(each is None for each in odds):
        return None
    first, second, tie = (each or 0.0 for each in odds)
    total = first + second + tie
    return (first + tie / 2) / total if total > 0 else None
