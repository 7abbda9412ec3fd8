"""A loopback server with the chat wire of vLLM, in front of anything that can answer a prompt.

`/v1/chat/completions` (structured choices and log-probabilities included), `/v1/models`, `/health`. What
answers is a handler of well-formed requests; the wire, the token counts and the refusals are the same for all.
"""

import hmac
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiohttp import web

from scope_selfplay.wire.serving import BACKLOG, listen, url_of
from scope_selfplay.wire.strict_json import load_strict

MAX_BODY = 16 << 20
_UNSEEN = 1e-9


class ServedRequest(NamedTuple):
    """A chat request as far as responders care: the last user message, the choices, the rest as it came."""

    prompt: str
    choices: tuple[str, ...]
    body: Mapping[str, object]


class ServedReply(NamedTuple):
    """`odds` are given for choices; `seconds` is how long the engine would have worked."""

    text: str
    odds: Mapping[str, float] = {}
    finish: str = "stop"
    seconds: float = 0.0
    reasoning: str | None = None
    refusal: str | None = None


Responder = Callable[[ServedRequest], ServedReply | Awaitable[ServedReply]]
Answering = Callable[[web.Request, ServedRequest], Awaitable[web.StreamResponse]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def chat_app(answer: Answering, *, model: str, api_key: str | None = None) -> web.Application:
    """The application; `answer` is called with every well-formed chat request.

    With an `api_key`, everything but /health needs it as a bearer token.
    """

    async def completions(request: web.Request) -> web.StreamResponse:
        try:
            served = read_request(await request.read())
        except ValueError as error:
            return refuse(400, str(error))
        if served.body.get("model") != model:
            return refuse(404, f"The model `{served.body.get('model')}` does not exist.")
        return await answer(request, served)

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": model, "object": "model"}]})

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application(client_max_size=MAX_BODY)
    app.router.add_post("/v1/chat/completions", guarded(completions, api_key))
    app.router.add_get("/v1/models", guarded(models, api_key))
    app.router.add_get("/health", health)
    return app


def guarded(handler: Handler, api_key: str | None) -> Handler:
    """A handler that answers 401 to whoever does not send the key; the handler itself without a key."""
    if api_key is None:
        return handler
    expected = f"Bearer {api_key}".encode()

    async def guard(request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, expected):
            return refuse(401, "an API key is needed", {"WWW-Authenticate": "Bearer"})
        return await handler(request)

    return guard


def read_request(data: bytes) -> ServedRequest:
    """Raises ValueError for what is no chat request."""
    body = load_strict(data.decode())
    if not isinstance(body, dict):
        raise ValueError("the request is no JSON object")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        raise ValueError("messages: expected a list of messages")
    prompt = messages[-1].get("content")
    if not isinstance(prompt, str):
        raise ValueError("messages: the last one has no text")
    outputs = body.get("structured_outputs")
    choices = outputs.get("choice", ()) if isinstance(outputs, dict) else ()
    return ServedRequest(prompt, tuple(str(each) for each in choices), body)


def completion(served: ServedRequest, reply: ServedReply, model: str) -> dict[str, object]:
    """The response's body. Tokens are counted as a quarter of the characters."""
    message: dict[str, object] = {"role": "assistant", "content": reply.text}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if reply.refusal is not None:
        message["refusal"] = reply.refusal
    choice: dict[str, object] = {"index": 0, "message": message, "finish_reason": reply.finish}
    if served.body.get("logprobs") and reply.odds:
        choice["logprobs"] = {"content": [_logprobs(reply)]}
    tokens_in, tokens_out = count_tokens(served.prompt), count_tokens(reply.text + (reply.reasoning or ""))
    usage = {
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
    }
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": usage,
    }


def count_tokens(text: str) -> int:
    return -(-len(text) // 4)


def refuse(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    error = {"error": {"message": message, "type": "BadRequestError" if status < 500 else "ServerError"}}
    return web.Response(
        text=json.dumps(error), status=status, headers=headers, content_type="application/json"
    )


@asynccontextmanager
async def serving(app: web.Application, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serves for as long as the block lasts; gives the base URL, `http://host:port/v1`.

    Raises as `listen` does.
    """
    bound = listen(host, port)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.SockSite(runner, bound, backlog=BACKLOG).start()
        yield f"{url_of(bound)}/v1"
    finally:
        await runner.cleanup()


def _logprobs(reply: ServedReply) -> dict[str, object]:
    top = [
        {"token": token, "logprob": math.log(max(odds, _UNSEEN)), "bytes": list(token.encode())}
        for token, odds in sorted(reply.odds.items(), key=lambda item: -item[1])
    ]
    sampled = {"token": reply.text, "logprob": math.log(max(reply.odds.get(reply.text, 0.0), _UNSEEN))}
    return {**sampled, "bytes": list(reply.text.encode()), "top_logprobs": top}
