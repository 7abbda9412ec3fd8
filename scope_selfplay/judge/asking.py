"""One judgement: from the cache, a call on its way, or the endpoint; read, or asked again with another seed.

A fault is typed and counted and never becomes a value. Seeds follow from the run's seed and the prompt, that
is, from what is judged: an equal question gets an equal answer and is paid for once, whoever asks.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from scope_selfplay.config import CallConfig, JudgeConfig
from scope_selfplay.errors import JudgeError
from scope_selfplay.judge.cache import JudgementCache, cache_key
from scope_selfplay.judge.chat_client import ChatFault, ChatReply, ChatRequest
from scope_selfplay.judge.endpoint_pool import Lines, Switchboard, endpoint_of
from scope_selfplay.judge.metrics import JudgeMetrics, RoleAccount
from scope_selfplay.judge.parsing import END_THINK, THINK
from scope_selfplay.judge.prompts import ROLE_OF_PROMPT, Asked, JudgeRole
from scope_selfplay.prompts import PromptRole
from scope_selfplay.schemas import Fault, Finish, Verdict, seed_from

T = TypeVar("T")

ENOUGH_CALLS = 50
"""A failure rate over fewer judgements says little."""
_WARM_AGAIN = 0.6
# Two score blocks take about 20 tokens; a byte-level tokenizer needs one per character.
_SHORT_TOKENS = 64
# 31 bits: some servers keep seeds in signed 32-bit integers.
_SEED_BITS = 0x7FFF_FFFF


@dataclass(frozen=True)
class Answer(Generic[T]):
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


class Asker:
    def __init__(
        self, config: JudgeConfig, lines: Lines, cache: JudgementCache, metrics: JudgeMetrics, *, seed: int
    ) -> None:
        self._config = config
        self._lines = lines
        self._cache = cache
        self._metrics = metrics
        self._seed = seed
        self.begin_stage()

    def begin_stage(self) -> None:
        """Count from zero, and give the stage its time."""
        self.accounts: dict[PromptRole, RoleAccount] = defaultdict(RoleAccount)
        seconds = self._config.patience.stage
        self._stage_end = time.monotonic() + seconds if seconds is not None else float("inf")

    async def ask(self, asked: Asked, call: CallConfig, read: Callable[[str], T | None]) -> Answer[T]:
        """`read` gives None for what it cannot read. Raises JudgeError when too many judgements failed."""
        began = time.monotonic()
        answer = await self._try_until_read(asked, call, read)
        account = self.accounts[asked.role]
        account.calls += 1
        if answer.fault is not None:
            account.faults[answer.fault] += 1
        outcome = answer.fault.value if answer.fault else "read"
        self._metrics.calls.labels(asked.role.value, outcome).inc()
        self._metrics.seconds.labels(asked.role.value).observe(time.monotonic() - began)
        if answer.fault is not None:
            self._check_budget()
        return answer

    async def _try_until_read(
        self, asked: Asked, call: CallConfig, read: Callable[[str], T | None]
    ) -> Answer[T]:
        failed: Answer[T] = Answer(None, Fault.TIMED_OUT, reasoning="the stage's time is over")
        board = await self._lines.here()
        for attempt in range(1 + self._config.patience.retries):
            if time.monotonic() >= self._stage_end:
                return failed
            request = self._request(asked, call, attempt)
            try:
                reply, source = await self._reply(board, asked, request)
            except ChatFault as fault:
                failed = Answer(None, fault.fault, reasoning=str(fault), attempts=attempt + 1)
                if fault.fault is Fault.REFUSED:
                    return failed
                continue
            value = _read(reply, request, read)
            answer = Answer(
                value,
                None if value is not None else Fault.UNREADABLE,
                completion=reply.text,
                reasoning=reply.reasoning or thinking_of(reply.text),
                odds=dict(reply.odds),
                attempts=attempt + 1,
                tokens_in=reply.tokens_in,
                tokens_out=reply.tokens_out,
                cached=source == "cached",
            )
            if value is not None:
                if source == "asked":
                    # Only what could be read is kept: a later run may find the judge in better health.
                    self._cache.put(self._key(asked, request), reply)
                return answer
            failed = answer
        return failed

    def _request(self, asked: Asked, call: CallConfig, attempt: int) -> ChatRequest:
        # A greedy judge would only repeat what could not be read.
        warm = call.temperature if attempt == 0 else max(call.temperature, _WARM_AGAIN)
        return ChatRequest(
            prompt=asked.prompt,
            max_tokens=1 if asked.choices else _SHORT_TOKENS if asked.pattern else call.max_tokens,
            temperature=0.0 if asked.choices and attempt == 0 else warm,
            seed=seed_from(self._seed, "judge", asked.prompt, attempt) & _SEED_BITS,
            choices=asked.choices,
            pattern=asked.pattern,
        )

    async def _reply(self, board: Switchboard, asked: Asked, request: ChatRequest) -> tuple[ChatReply, str]:
        """A completion, and whether it was cached, joined or asked."""
        key = self._key(asked, request)
        account = self.accounts[asked.role]
        if (known := self._cache.get(key)) is not None:
            account.cached += 1
            self._metrics.replies.labels(asked.role.value, "cached").inc()
            return known, "cached"
        task = board.on_their_way.get(key)
        source = "joined" if task is not None else "asked"
        if task is None:
            task = asyncio.ensure_future(self._send(board, asked, request))
            board.on_their_way[key] = task
            task.add_done_callback(lambda done: _settle(board, key, done))
        else:
            account.joined += 1
        self._metrics.replies.labels(asked.role.value, source).inc()
        # Shielded: one caller who goes away must not take the answer from the others.
        return await asyncio.shield(task), source

    async def _send(self, board: Switchboard, asked: Asked, request: ChatRequest) -> ChatReply:
        role, account = asked.role.value, self.accounts[asked.role]
        account.attempts += 1
        self._metrics.attempts.labels(role).inc()
        left = self._stage_end - time.monotonic()
        try:
            async with asyncio.timeout(left if left < float("inf") else None):
                endpoint = board.endpoints[ROLE_OF_PROMPT[asked.role]]
                reply = await endpoint.ask(request, seconds=self._config.patience.call)
        except TimeoutError:
            raise ChatFault(Fault.TIMED_OUT, "the stage's time is over") from None
        account.tokens_in += reply.tokens_in
        account.tokens_out += reply.tokens_out
        self._metrics.tokens.labels(role, "in").inc(reply.tokens_in)
        self._metrics.tokens.labels(role, "out").inc(reply.tokens_out)
        self._metrics.completion_tokens.labels(role).observe(reply.tokens_out)
        return reply

    def _key(self, asked: Asked, request: ChatRequest) -> bytes:
        return cache_key(model_name(self._config, ROLE_OF_PROMPT[asked.role]), request)

    def _check_budget(self) -> None:
        calls = sum(account.calls for account in self.accounts.values())
        failed = sum(account.failed for account in self.accounts.values())
        if calls >= ENOUGH_CALLS and failed > self._config.failure_budget * calls:
            kinds = Counter(
                fault for account in self.accounts.values() for fault in account.faults.elements()
            )
            counts = ", ".join(f"{fault.value} {count}" for fault, count in kinds.most_common())
            raise JudgeError(
                f"{failed} of {calls} judgements failed ({counts}), "
                f"judge.failure_budget allows {self._config.failure_budget:.0%}; "
                f"see that the judge is well, then run the same command again"
            )


def model_name(config: JudgeConfig, seat: JudgeRole) -> str:
    """What the weights of a seat's judge are called: the model, its revision, its template's settings."""
    endpoint = endpoint_of(config, seat)
    settings = "".join(f" {name}={value}" for name, value in sorted(endpoint.template.items()))
    return f"{endpoint.model}{'@' if endpoint.revision else ''}{endpoint.revision}{settings}"


def thinking_of(completion: str) -> str:
    """What a judge wrote before its verdict: its thinking, or all of a completion without any."""
    thought, ended, _ = completion.rpartition(END_THINK)
    return (thought if ended else completion).removeprefix(THINK).strip()


def _read(reply: ChatReply, request: ChatRequest, read: Callable[[str], T | None]) -> T | None:
    # A completion that was cut off may end in a quotation of the answer: it holds no verdict.
    if reply.finish is Finish.LENGTH and not request.choices:
        return None
    return read(reply.text)


def _settle(board: Switchboard, key: bytes, task: "asyncio.Task[ChatReply]") -> None:
    board.on_their_way.pop(key, None)
    if not task.cancelled():
        task.exception()  # looked at, so that one whose askers went away is not reported as lost
