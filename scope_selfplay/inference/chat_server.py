"""A loopback server with the chat wire of vLLM, in front of anything that can answer a prompt.

`/v1/chat/completions` (structured choices and log-probabilities included), `/v1/models`, `/health`. What
answers is a handler of well-formed requests; the wire, the token counts and the refusals are the same for all.
"""

import hmac
import json
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from scope_selfplay.wire.serving import BodyTooLargeError, read_body, while_connected
from scope_selfplay.wire.strict_json import load_strict

MAX_BODY = 16 << 20
"""Bytes of one request."""
_UNSEEN = 1e-9
_GONE = 499


@dataclass(frozen=True)
class ServedRequest:
    """A chat request as far as responders care: the last user message, the choices, the rest as it came."""

    prompt: str
    choices: tuple[str, ...]
    body: Mapping[str, object]


@dataclass(frozen=True)
class ServedReply:
    """`odds` are given for choices; `seconds` is how long the engine would have worked."""

    text: str
    odds: Mapping[str, float] = field(default_factory=dict)
    finish: str = "stop"
    seconds: float = 0.0
    reasoning: str | None = None
    refusal: str | None = None


Responder = Callable[[ServedRequest], ServedReply | Awaitable[ServedReply]]
ChatHandler = Callable[[Request, ServedRequest], Coroutine[Any, Any, ASGIApp]]
Handler = Callable[[Request], Awaitable[ASGIApp]]


def chat_app(answer: ChatHandler, *, model: str, api_key: str | None = None) -> Starlette:
    """The application; `answer` is called with every well-formed chat request.

    With an `api_key`, everything but /health needs it as a bearer token.
    """

    async def completions(request: Request) -> ASGIApp:
        try:
            served = read_request(await read_body(request, MAX_BODY))
        except BodyTooLargeError as error:
            return refuse(413, str(error))
        except ValueError as error:
            return refuse(400, str(error))
        if served.body.get("model") != model:
            return refuse(404, f"The model `{served.body.get('model')}` does not exist.")
        return await while_connected(request, answer(request, served))

    async def models(request: Request) -> ASGIApp:
        return json_response({"object": "list", "data": [{"id": model, "object": "model"}]})

    async def health(request: Request) -> ASGIApp:
        return json_response({"status": "ok"})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", endpoint(completions, api_key), methods=["POST"]),
            Route("/v1/models", endpoint(models, api_key)),
            Route("/health", endpoint(health)),
        ]
    )


def reply_app(respond: Responder, *, model: str, api_key: str | None = None) -> Starlette:
    """A `chat_app` that answers what `respond` gives, and status 400 with the message of its ValueError."""

    async def answer(request: Request, served: ServedRequest) -> Response:
        try:
            reply = respond(served)
            reply = await reply if isinstance(reply, Awaitable) else reply
        except ValueError as error:
            return refuse(400, str(error))
        return json_response(completion(served, reply, model))

    return chat_app(answer, model=model, api_key=api_key)


def endpoint(handler: Handler, api_key: str | None = None) -> Handler:
    """A handler for clients that are still there, and that send the key where there is one; others get 401."""
    expected = None if api_key is None else f"Bearer {api_key}".encode()

    async def answer(request: Request) -> ASGIApp:
        given = request.headers.get("authorization", "").encode("latin-1")
        if expected is not None and not hmac.compare_digest(given, expected):
            return refuse(401, "an API key is needed", {"WWW-Authenticate": "Bearer"})
        try:
            return await handler(request)
        except ClientDisconnect:
            return refuse(_GONE, "the client went away")

    return answer


def read_request(data: bytes) -> ServedRequest:
    """Raises ValueError for what is not a chat request."""
    body = load_strict(data.decode())
    if not isinstance(body, dict):
        raise ValueError("the request is not a JSON object")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        raise ValueError("messages: expected a list of messages")
    prompt = messages[-1].get("content")
    if not isinstance(prompt, str):
        raise ValueError("messages: the last one has no text")
    outputs = body.get("structured_outputs")
    choices = outputs.get("choice", ()) if isinstance(outputs, dict) else ()
    return ServedRequest(prompt, tuple(str(choice) for choice in choices), body)


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
    tokens_in, tokens_out = (
        -(-len(text) // 4) for text in (served.prompt, reply.text + (reply.reasoning or ""))
    )
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": usage(tokens_in, tokens_out),
    }


def usage(tokens_in: int, tokens_out: int) -> dict[str, int]:
    total = tokens_in + tokens_out
    return {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": total}


def refuse(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    error = {"message": message, "type": "BadRequestError" if status < 500 else "ServerError"}
    return json_response({"error": error}, status, headers)


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(value), status, headers, media_type="application/json; charset=utf-8")


def _logprobs(reply: ServedReply) -> dict[str, object]:
    top = [
        {"token": token, "logprob": math.log(max(odds, _UNSEEN)), "bytes": list(token.encode())}
        for token, odds in sorted(reply.odds.items(), key=lambda item: -item[1])
    ]
    sampled = {"token": reply.text, "logprob": math.log(max(reply.odds.get(reply.text, 0.0), _UNSEEN))}
    return {**sampled, "bytes": list(reply.text.encode()), "top_logprobs": top}
