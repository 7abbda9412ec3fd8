"""One chat completion from an OpenAI-compatible endpoint (vLLM, serve-judge, ...), or a typed fault.

    async with ChatClient(url, model="m0") as client:
        reply = await client.complete(ChatRequest("Is it so?", max_tokens=16_384))

No streaming. By default one attempt: who asks again, when and how often is the caller's business.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from scope_selfplay.base.errors import ConfigError, InferenceError
from scope_selfplay.base.values import Fault, Finish
from scope_selfplay.net.client import (
    RETRIED,
    Client,
    HttpFault,
    Refused,
    Replica,
    RetryPolicy,
    ServerUnavailable,
)
from scope_selfplay.net.json import whole_number

MOST_BYTES = 8 << 20
"""Of a response."""
ONCE = RetryPolicy(attempts=1, attempt=600.0, max_response=MOST_BYTES)
TOP_LOGPROBS = 20
"""As many as vLLM gives by default; a choice beyond them has no known probability."""
_REFUSALS = frozenset({400, 413, 422})
_TOO_LARGE = 413
# What vLLM, SGLang, llama.cpp, TGI, OpenAI and others say of a prompt that does not fit.
_TOO_LONG = re.compile(
    r"context.{0,3}(?:length|size|window)|max_model_len|too long|too many (?:input )?tokens|too large|longer than"
    r"|(?:prompt|input|tokens).{0,60}(?:exceed|larger|greater)|exceed.{0,60}(?:tokens|length|context)"
    r"|reduce the length",
    re.IGNORECASE,
)
_MISCONFIGURED = frozenset({401, 403, 404})


class ChatRequest(NamedTuple):
    """One user message. With `choices`, the reply is one of them, and its first token's odds are asked.

    With a `pattern`, a regular expression, the reply matches it. Both need an engine with structured outputs. `stop`:
    closing tags; the first one ends the reply, as its last part.
    """

    prompt: str
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    choices: tuple[str, ...] = ()
    pattern: str = ""
    top_p: float = 1.0
    stop: tuple[str, ...] = ()


CANARY = ChatRequest("Say 1.", max_tokens=1)


class ChatReply(NamedTuple):
    """`reasoning` is what the server split off as thinking; `odds` maps a first token to its probability."""

    text: str
    reasoning: str
    finish: Finish
    tokens_in: int
    tokens_out: int
    odds: Mapping[str, float]


class ChatFault(InferenceError):
    """Why there is no completion. `busy`: the endpoint works and wants a pause. `too_long`: the prompt does not fit
    into the model's context.
    """

    def __init__(self, fault: Fault, message: str, *, busy: bool = False, too_long: bool = False) -> None:
        super().__init__(message)
        self.fault = fault
        self.busy = busy
        self.too_long = too_long


class ChatClient(Client):
    """Endpoints of one model."""

    def __init__(
        self,
        *urls: str,
        model: str = "",
        template: Mapping[str, object] | None = None,
        context: int | None = None,
        retry_policy: RetryPolicy = ONCE,
        **options: Any,
    ) -> None:
        """`template`: settings of the chat template (`enable_thinking`); `context`: the model's, in tokens; the rest as
        of `Client`. Raises ConfigError for a URL that may not be called.
        """
        self.model = model
        self._template = {"chat_template_kwargs": dict(template)} if template else {}
        self._context = context
        self._counts_tokens = True
        super().__init__(*urls, retry_policy=retry_policy, **options)

    async def complete(self, request: ChatRequest, *, subject: str = "") -> ChatReply:
        """Requests of one `subject` share their prompts' beginning.

        Raises ChatFault, and ConfigError for a key, path or model that the endpoint does not know.
        """
        try:
            return await self.call(
                lambda server, seconds: self.complete_at(server, request, seconds),
                subject=subject,
                text=request.prompt,
            )
        except HttpFault as fault:
            raise self.named(fault) from None

    async def canary(self, server: Replica, seconds: float) -> object:
        return await self.complete_at(server, CANARY, seconds)

    async def complete_at(self, server: Replica, request: ChatRequest, seconds: float) -> ChatReply:
        """One attempt. Raises HttpFault, and ChatFault for what the model refuses."""
        if await self._is_overlong(server, request, seconds):
            raise ChatFault(
                Fault.REFUSED, f"{server.url}: the prompt does not fit the context", too_long=True
            )
        body = json.dumps(self._body(request)).encode()
        answer = await server.ask("POST", "/chat/completions", body, seconds=seconds)
        served = answer.get("model")
        if isinstance(served, str) and served != self.model and not served.startswith(f"{self.model}-"):
            raise ServerUnavailable(f"{server.url}: answered as {served}, asked was {self.model}")
        try:
            return _reply(answer, request)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ServerUnavailable(f"{server.url}: no chat completion ({reason})") from None

    async def _is_overlong(self, server: Replica, request: ChatRequest, seconds: float) -> bool:
        """Whether a prompt is known to leave no room for its completion in the model's context.

        The endpoint is asked (`/tokenize`) only about a prompt that might: no token is shorter than a byte.
        """
        if self._context is None or not self._counts_tokens:
            return False
        room = self._context - self._completion_tokens(request.max_tokens)
        if len(request.prompt.encode()) <= room:
            return False
        asked = {"model": self.model, "messages": _messages(request), **self._template}
        try:
            answer = await server.ask(
                "POST", "/tokenize", json.dumps(asked).encode(), seconds=seconds, at_root=True
            )
        except HttpFault as fault:
            self._counts_tokens = fault.timed_out or fault.status in RETRIED or not fault.status
            return False
        return whole_number(answer.get("count")) > room

    def _completion_tokens(self, wanted: int) -> int:
        """vLLM refuses to be asked for more than what the prompt leaves of its context: half of it is the prompt's."""
        return wanted if self._context is None else min(wanted, max(1, self._context // 2))

    def _body(self, request: ChatRequest) -> dict[str, object]:
        body: dict[str, object] = {
            "model": self.model,
            "messages": _messages(request),
            "max_tokens": self._completion_tokens(request.max_tokens),
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            **self._template,
        }
        if request.choices:
            body["structured_outputs"] = {"choice": list(request.choices)}
            body |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        elif request.pattern:
            body["structured_outputs"] = {"regex": request.pattern}
        if request.stop:
            body["stop"] = list(request.stop)
        return body

    def named(self, fault: HttpFault) -> ChatFault | ConfigError:
        """What an HTTP fault means for a completion."""
        if fault.status in _MISCONFIGURED:
            return ConfigError(
                f"{fault}; check the endpoint's base_url, model ({self.model}) and api_key_env"
            )
        if fault.status in _REFUSALS:
            too_long = fault.status == _TOO_LARGE or _TOO_LONG.search(str(fault)) is not None
            return ChatFault(Fault.REFUSED, str(fault), too_long=too_long)
        if isinstance(fault, Refused) and not fault.status:
            return ChatFault(Fault.UNREADABLE, str(fault))
        kind = Fault.TIMED_OUT if fault.timed_out else Fault.UNAVAILABLE
        return ChatFault(kind, str(fault), busy=fault.is_busy)


def _messages(request: ChatRequest) -> list[dict[str, str]]:
    return [{"role": "user", "content": request.prompt}]


def _reply(answer: dict[str, Any], request: ChatRequest) -> ChatReply:
    choice = answer["choices"][0]
    message = choice["message"]
    finish = choice.get("finish_reason")
    if message.get("refusal") or finish == "content_filter":
        raise ChatFault(Fault.REFUSED, f"the model refused: {message.get('refusal') or finish}")
    text = message.get("content") or ""
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    if not isinstance(text, str) or not isinstance(reasoning, str):
        raise TypeError("content is not a text")
    if finish == "stop":
        # Servers leave out what they stopped at.
        text += next((end for end in request.stop if text.count(end) < text.count(end.replace("/", ""))), "")
    usage = answer.get("usage") or {}
    return ChatReply(
        text=text,
        reasoning=reasoning,
        finish=Finish.LENGTH if finish == "length" else Finish.STOP,
        tokens_in=whole_number(usage.get("prompt_tokens")),
        tokens_out=whole_number(usage.get("completion_tokens")),
        odds=_odds(choice) if request.choices else {},
    )


def _odds(choice: dict[str, Any]) -> dict[str, float]:
    """First token -> probability, spellings with a leading space joined."""
    content = (choice.get("logprobs") or {}).get("content") or []
    odds: dict[str, float] = {}
    for alternative in content[0].get("top_logprobs", []) if content else []:
        logprob = alternative["logprob"]
        if isinstance(logprob, bool) or not isinstance(logprob, int | float) or not -1e9 <= logprob <= 0.001:
            raise ValueError(f"{logprob!r} is not a log-probability")
        token = str(alternative["token"]).strip(" \u2581\u0120\n")
        odds[token] = odds.get(token, 0.0) + math.exp(min(logprob, 0.0))
    return odds
