"""A policy behind the completions wire of vLLM: token ids in, sampled token ids and log-probabilities out.

Speaks to `scope serve-model` and to vLLM alike. The key of a call travels as its seed, so `scope serve-model`
samples what the in-process engine samples; vLLM draws its own noise from the seed. Stop strings of one token go
as ids, for vLLM looks for text in what it has stripped of special tokens.
"""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from scope_selfplay.errors import ConfigError, InferenceError, RunMismatchError
from scope_selfplay.inference.admission import TurnGate
from scope_selfplay.inference.codec import ChatCodec, StopTable, room_for
from scope_selfplay.inference.protocol import Generate, Sample
from scope_selfplay.keys import Key, seed_from
from scope_selfplay.schemas import Finish
from scope_selfplay.wire.json_client import JsonClient, PerLoop, Refused, ServerUnavailable
from scope_selfplay.wire.replicas import ReplicatedClient

WEIGHTS_HEADER = "X-Scope-Weights"
_MISCONFIGURED = frozenset({401, 403, 404})
# What vLLM would otherwise take from the model's generation_config.json.
_NEUTRAL_SAMPLING = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


@dataclass(frozen=True)
class Served:
    """What a server says of the model that it was asked for; None where it does not say."""

    model: str
    root: str | None
    weights: str | None
    max_length: int | None

    @property
    def identity(self) -> str:
        """Names what is served, as far as the server says."""
        known = self.weights or ""
        return self.model if self.model.endswith(known) else f"{self.model}-{known}"


class ServedModel:
    """A `PolicyModel` over HTTP, for every event loop of a run. `connect` opens a client of the server's replicas.

    Episodes with the same first prompt are asked of the same replica, which keeps what their prompts share. At most
    `concurrency` turns are asked for at once, later turns of an episode before first ones. A server that
    `takes_priority` (vLLM with `--scheduling-policy priority`) is told that order too, for its own queue.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[ReplicatedClient]],
        served: Served,
        codec: ChatCodec,
        *,
        identity: str,
        max_length: int,
        temperature: float,
        top_p: float = 1.0,
        concurrency: int | None = None,
        takes_priority: bool = False,
        on_outage: Callable[[InferenceError], None] = lambda fault: None,
        on_tokens: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._clients = PerLoop(connect)
        self._served = served
        self.identity = identity
        self._max_length = min(max_length, served.max_length or max_length)
        self._temperature = temperature
        self._top_p = top_p
        self._gate = None if concurrency is None else TurnGate(concurrency)
        self._takes_priority = takes_priority
        self._on_outage = on_outage
        self.on_tokens = on_tokens
        self._outage: InferenceError | None = None
        self._stops = StopTable(codec)

    def refresh(self, identity: str) -> None:
        """Name the weights of a policy in training; the trainer has brought them to the server."""
        self.identity = identity

    async def generate(self, request: Generate, key: Key) -> Sample:
        """Waits for a server that is down as long as its client is patient; then every call fails at once.

        Raises InferenceError; ConfigError for a key or a model that the server does not know, RunMismatchError
        when it serves other weights meanwhile.
        """
        async with nullcontext() if self._gate is None else self._gate.turn(request.turn):
            sample = await self._ask(request, key)
        self.on_tokens(len(sample.ids))
        return sample

    async def _ask(self, request: Generate, key: Key) -> Sample:
        if self._outage is not None:
            raise self._outage
        body = json.dumps(self._body(request, key)).encode()
        client = await self._clients.here()
        try:
            subject = request.opening or str(key[:-1])
            answer = await client.ask(
                "POST", "/completions", body, subject=subject, check=self._check_weights
            )
        except ServerUnavailable as fault:
            self._outage = InferenceError(
                f"{fault}; see that the server runs, then run the same command again"
            )
            self._on_outage(self._outage)
            raise self._outage from None
        except Refused as refused:
            if refused.status in _MISCONFIGURED:
                raise ConfigError(f"{refused}; check base_url, model and api_key_env") from None
            raise InferenceError(str(refused)) from None
        return read_sample(answer, request)

    def _body(self, request: Generate, key: Key) -> dict[str, object]:
        room = room_for(request, self._max_length)
        stops = self._stops[request.stop]
        return {
            "model": self._served.model,
            "prompt": request.prompt_ids,
            "max_tokens": room,
            "temperature": 0.0 if request.greedy else self._temperature,
            "seed": seed_from(*key),
            "stop_token_ids": sorted(stops.ids),
            "stop": stops.texts,
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "return_token_ids": True,
            "logprobs": 0,
            "top_p": self._top_p,
            **_NEUTRAL_SAMPLING,
            # vLLM serves the lowest first, and refuses the field without its scheduling policy.
            **({"priority": -request.turn} if self._takes_priority else {}),
        }

    def _check_weights(self, response: aiohttp.ClientResponse) -> None:
        found, expected = response.headers.get(WEIGHTS_HEADER), self._served.weights
        if expected is not None and found is not None and found != expected:
            raise RunMismatchError(
                f"{response.url} now serves weights {found}, the handshake was with {expected}"
            )


async def ask_what_is_served(client: JsonClient, root: JsonClient | None, model: str | None) -> Served:
    """The model `model`, or the only one, of a server; `root` is its URL without `/v1`, where `/info` is.

    Without a `root` no weights are asked for. Raises ConfigError for a model that is not served or a choice between
    several, InferenceError where no server answers.
    """
    try:
        listed = (await client.ask("GET", "/models")).get("data")
        rows = {str(row["id"]): row for row in listed} if isinstance(listed, list) else {}
    except ServerUnavailable as fault:
        raise InferenceError(f"{fault}; see that the server runs, then run the same command again") from None
    except (Refused, TypeError, KeyError) as error:
        raise ConfigError(
            f"{client.url}/models lists no models ({error}); is it an OpenAI-compatible server, and does api_key_env "
            "hold its key?"
        ) from None
    if model is None and len(rows) != 1:
        raise ConfigError(f"{client.url} serves {sorted(rows)}; name one in `model`")
    name = model or next(iter(rows))
    if name not in rows:
        raise ConfigError(f"{client.url} does not serve {name}; it serves {sorted(rows)}")
    weights = None
    if root is not None:
        # What `scope serve-model` says of itself; vLLM has no such page.
        with suppress(Refused, ServerUnavailable):
            weights = (await root.ask("GET", "/info")).get("weights")
    length, where = rows[name].get("max_model_len"), rows[name].get("root")
    return Served(
        name,
        where if isinstance(where, str) else None,
        weights if isinstance(weights, str) else None,
        length if isinstance(length, int) and not isinstance(length, bool) and length > 0 else None,
    )


def read_sample(answer: dict[str, Any], request: Generate) -> Sample:
    """Raises InferenceError for what is not a completion with its token ids and log-probabilities."""
    try:
        choice = answer["choices"][0]
        ids = tuple(map(_token_id, choice["token_ids"]))
        logprobs = tuple(map(_logprob, choice["logprobs"]["token_logprobs"]))
        finish = Finish(choice["finish_reason"])
        seen = choice.get("prompt_token_ids")
    except (KeyError, IndexError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InferenceError(
            f"no completion with token_ids and logprobs ({reason}); serve with `scope serve-model` or a vLLM that "
            "knows return_token_ids"
        ) from None
    if not ids or len(ids) != len(logprobs) or len(ids) > request.max_tokens:
        raise InferenceError(
            f"{len(ids)} tokens with {len(logprobs)} log-probabilities, {request.max_tokens} asked"
        )
    if seen is not None and tuple(seen) != request.prompt_ids:
        raise InferenceError("the server sampled from another prompt than it was given; does it truncate?")
    return Sample(ids, logprobs, finish)


def _token_id(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a token id")
    return value


def _logprob(value: object) -> float:
    # Rounding may leave a certain token a little above 0.
    if isinstance(value, bool) or not isinstance(value, int | float) or not value <= 1e-3:
        raise ValueError(f"{value!r} is not a log-probability")
    return float(value)
