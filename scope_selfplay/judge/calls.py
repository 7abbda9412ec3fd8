"""One judgement: from the cache, a call in flight, or the endpoint; read, or asked for again with another seed.

A fault is typed and counted and never becomes a value. Seeds follow from the run's seed and the prompt, that is, from
what is judged: equal prompts get equal replies and are paid for once, whoever asks. Only a question that a tournament
repeats has a seed per repeat, and so a reply of its own, also where replies are kept.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from scope_selfplay.config import CallConfig, JudgeConfig, JudgeRole
from scope_selfplay.judge.cache import JudgementCache, cache_key
from scope_selfplay.judge.chat_client import ChatFault, ChatReply, ChatRequest
from scope_selfplay.judge.endpoint_pool import EndpointPool, pool_per_loop
from scope_selfplay.judge.metered import check_failure_budget
from scope_selfplay.judge.metrics import JudgeMetrics, Source
from scope_selfplay.judge.parsing import has_ended_thinking, thinking_of
from scope_selfplay.judge.prompts import ROLE_OF_PROMPT, JudgePrompt
from scope_selfplay.keys import seed_from
from scope_selfplay.schemas import Fault, Finish, Verdict

T = TypeVar("T")

_RETRY_TEMPERATURE = 0.6
# Two score blocks take about 20 tokens; a byte-level tokenizer needs one per character.
_SHORT_TOKENS = 64
# 31 bits: some servers keep seeds in signed 32-bit integers.
_SEED_BITS = 0x7FFF_FFFF
_STAGE_IS_OVER = "the stage's time is over"


@dataclass(frozen=True)
class JudgeReply(Generic[T]):
    """`value` is None exactly when `fault` says why. Tokens are the last completion's, or 0 without one."""

    value: T | None
    fault: Fault | None
    completion: str = ""
    reasoning: str = ""
    odds: dict[str, float] = field(default_factory=dict)
    attempts: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cached: bool = False

    def verdict(self, value: bool | None, probability: float | None = None) -> Verdict:
        return Verdict(
            value=value,
            probability=probability,
            reasoning=self.reasoning,
            fault=self.fault,
            attempts=self.attempts,
            tokens_in=self.tokens_in,
            tokens_out=self.tokens_out,
            cached=self.cached,
        )


class JudgeCaller:
    """Asks for judgements in any event loop; `metrics` has the account of the stage."""

    def __init__(
        self,
        config: JudgeConfig,
        cache: JudgementCache,
        *,
        seed: int,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Raises ConfigError as `pool_per_loop`."""
        self.metrics = JudgeMetrics()
        self._config = config
        self._pools = pool_per_loop(config, self.metrics, say)
        self._cache = cache
        self._seed = seed
        self.begin_stage()

    def begin_stage(self) -> None:
        """Count from zero, and give the stage its time."""
        self.metrics.begin_stage()
        seconds = self._config.patience.stage
        self._stage_end = time.monotonic() + seconds if seconds is not None else float("inf")

    async def close(self) -> None:
        """Close the running loop's connections before the loop ends."""
        await self._pools.close()

    async def ask(self, prompt: JudgePrompt[T]) -> JudgeReply[T]:
        """Raises JudgeError when too many judgements failed."""
        began = time.monotonic()
        reply = await self._ask_until_read(prompt)
        self.metrics.count_judgement(prompt.role, reply.fault, time.monotonic() - began)
        if reply.fault is not None:
            calls, faults = self.metrics.calls_and_faults()
            kinds = ", ".join(f"{fault.value} {count}" for fault, count in faults.most_common())
            check_failure_budget(calls, faults.total(), self._config.failure_budget, kinds=kinds)
        return reply

    async def _ask_until_read(self, prompt: JudgePrompt[T]) -> JudgeReply[T]:
        role = ROLE_OF_PROMPT[prompt.role]
        call, model = self._config.call_of(role), model_name(self._config, role)
        failed: JudgeReply[T] = JudgeReply(None, Fault.TIMED_OUT, reasoning=_STAGE_IS_OVER)
        thinks = self._config.endpoint_of(role).native_thinking
        pool = await self._pools.here()
        attempt = 0
        while attempt <= self._config.patience.retries:
            if time.monotonic() >= self._stage_end:
                return failed
            request = self._request(prompt, call, attempt)
            key = cache_key(model, request)
            try:
                completion, source = await self._complete(pool, prompt, request, key)
            except ChatFault as fault:
                if fault.too_long and prompt.shorter is not None:
                    # Whoever writes a text that does not fit is judged by what does: a refusal would mask its reward.
                    prompt = prompt.shorter()._replace(repeat=prompt.repeat)
                    continue
                failed = JudgeReply(None, fault.fault, reasoning=str(fault), attempts=attempt + 1)
                if fault.fault is Fault.REFUSED:
                    return failed
                attempt += 1
                continue
            value = prompt.read(completion.text) if _is_whole(completion, request, thinks=thinks) else None
            reply = JudgeReply(
                value,
                None if value is not None else Fault.UNREADABLE,
                completion=completion.text,
                reasoning=completion.reasoning or thinking_of(completion.text),
                odds=dict(completion.odds),
                attempts=attempt + 1,
                tokens_in=completion.tokens_in,
                tokens_out=completion.tokens_out,
                cached=source is Source.CACHED,
            )
            if value is not None:
                if source is Source.ASKED:
                    # Only what could be read is kept: a later run may find the judge in better health.
                    self._cache.put(key, completion)
                return reply
            failed = reply
            attempt += 1
        return failed

    def _request(self, prompt: JudgePrompt[T], call: CallConfig, attempt: int) -> ChatRequest:
        # A greedy judge would only repeat what could not be read.
        repeat = (prompt.repeat,) if prompt.repeat else ()
        temperature = call.temperature if attempt == 0 else max(call.temperature, _RETRY_TEMPERATURE)
        return ChatRequest(
            prompt=prompt.prompt,
            max_tokens=1 if prompt.choices else _SHORT_TOKENS if prompt.pattern else call.max_tokens,
            temperature=0.0 if prompt.choices and attempt == 0 else temperature,
            seed=seed_from(self._seed, "judge", prompt.prompt, attempt, *repeat) & _SEED_BITS,
            choices=prompt.choices,
            pattern=prompt.pattern,
            top_p=call.top_p,
        )

    async def _complete(
        self, pool: EndpointPool, prompt: JudgePrompt[T], request: ChatRequest, key: bytes
    ) -> tuple[ChatReply, Source]:
        if (known := self._cache.get(key)) is not None:
            self.metrics.count_reply(prompt.role, Source.CACHED)
            return known, Source.CACHED
        task = pool.in_flight.get(key)
        source = Source.ASKED if task is None else Source.JOINED
        self.metrics.count_reply(prompt.role, source)
        if task is None:
            task = asyncio.ensure_future(self._send(pool, prompt, request))
            pool.in_flight[key] = task
            task.add_done_callback(lambda done: _forget(pool, key, done))
        # Shielded: one caller who goes away must not take the completion from the others.
        return await asyncio.shield(task), source

    async def _send(self, pool: EndpointPool, prompt: JudgePrompt[T], request: ChatRequest) -> ChatReply:
        left = self._stage_end - time.monotonic()
        try:
            async with asyncio.timeout(left if left < float("inf") else None):
                endpoint = pool.endpoints[ROLE_OF_PROMPT[prompt.role]]
                reply = await endpoint.ask(
                    request, subject=prompt.subject, seconds=self._config.patience.call
                )
        except TimeoutError:
            raise ChatFault(Fault.TIMED_OUT, _STAGE_IS_OVER) from None
        self.metrics.count_tokens(prompt.role, reply.tokens_in, reply.tokens_out)
        return reply


def model_name(config: JudgeConfig, role: JudgeRole) -> str:
    """What the weights of a role's judge are called: the model, its revision, its template's settings."""
    endpoint = config.endpoint_of(role)
    settings = "".join(f" {name}={value}" for name, value in sorted(endpoint.template.items()))
    return f"{endpoint.model}{'@' if endpoint.revision else ''}{endpoint.revision}{settings}"


def _is_whole(completion: ChatReply, request: ChatRequest, *, thinks: bool) -> bool:
    """Whether a completion can hold a verdict of its own.

    One that was cut off may end in a quotation of the answer, and so may one of a model that `thinks` natively where
    neither the server nor an end of thinking tells its thoughts from its reply.
    """
    if request.choices:
        return True
    if completion.finish is Finish.LENGTH:
        return False
    return not thinks or bool(request.pattern or completion.reasoning) or has_ended_thinking(completion.text)


def _forget(pool: EndpointPool, key: bytes, task: "asyncio.Task[ChatReply]") -> None:
    pool.in_flight.pop(key, None)
    if not task.cancelled():
        task.exception()  # looked at, so that one whose callers went away is not reported as lost
