"""A policy behind the completions wire of vLLM: token ids in, sampled token ids and log-probabilities out.

Speaks to `scope serve-model` and to vLLM alike. The key of a call travels as its seed, so `scope serve-model`
samples what the in-process engine samples; vLLM draws its own noise from the seed. Stop strings of one token go
as ids, for vLLM looks for text in what it has stripped of special tokens.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Annotated, Any

import aiohttp
from pydantic import BaseModel, Field, StrictFloat, StrictInt, ValidationError

from scope_selfplay.base.errors import ConfigError, InferenceError, RunMismatchError
from scope_selfplay.base.sampling import Generate, Sample
from scope_selfplay.base.values import Finish, Key, seed_from
from scope_selfplay.inference.codec import ChatCodec, SamplingEngine
from scope_selfplay.net.client import Client, Refused, Replica, ServerUnavailable
from scope_selfplay.net.loops import PerLoop, all_of

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


Encode = Callable[[str], tuple[int, ...]]


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


class ServedModel(SamplingEngine):
    """A `PolicyModel` over HTTP, for every event loop of a run. `connect` opens a client of the server's replicas.

    Episodes with the same first prompt are asked of the same replica, which keeps what their prompts share. Later turns
    of an episode are asked for before first ones.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Client]],
        served: Served,
        codec: ChatCodec,
        *,
        max_length: int,
        on_outage: Callable[[InferenceError], None] = lambda fault: None,
        encode: Encode | None = None,
        **common: Any,
    ) -> None:
        """`encode`: as of `read_sample`; `common`: as of SamplingEngine."""
        super().__init__(codec, max_length=min(max_length, served.max_length or max_length), **common)
        self._clients = PerLoop(connect)
        self._served = served
        self._on_outage = on_outage
        self._outage: InferenceError | None = None
        self._encode = encode

    async def generate(self, request: Generate, key: Key) -> Sample:
        """Waits for a server that is down as long as its client is patient; then every call fails at once.

        Raises InferenceError; ConfigError for a key or a model that the server does not know, RunMismatchError
        when it serves other weights meanwhile.
        """
        body = json.dumps(self._body(request, key)).encode()

        async def ask(server: Replica, seconds: float) -> dict[str, Any]:
            if self._outage is not None:
                raise self._outage
            return await server.ask("POST", "/completions", body, seconds=seconds, check=self._check_weights)

        client = await self._clients.here()
        try:
            answer = await client.call(ask, subject=request.opening or str(key[:-1]), turn=request.turn)
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
        sample = read_sample(answer, request, self._encode)
        self.on_tokens(len(sample.ids))
        return sample

    def _body(self, request: Generate, key: Key) -> dict[str, object]:
        sampling = self.sampling(request, seed_from(*key))
        return {
            "model": self._served.model,
            "prompt": request.prompt_ids,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "stop_token_ids": sorted(sampling.stops.ids),
            "stop": sampling.stops.texts,
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "return_token_ids": True,
            "logprobs": 0,
            "top_p": sampling.top_p,
            **_NEUTRAL_SAMPLING,
            **({"structured_outputs": {"regex": request.pattern}} if request.pattern else {}),
        }

    def _check_weights(self, response: aiohttp.ClientResponse) -> None:
        found, expected = response.headers.get(WEIGHTS_HEADER), self._served.weights
        if expected is not None and found is not None and found != expected:
            raise RunMismatchError(
                f"{response.url} now serves weights {found}, the handshake was with {expected}"
            )


async def ask_servers(
    clients: Sequence[Client], model: str | None, *, what: str, with_weights: bool = True
) -> list[Served]:
    """What every server of one model says, all asked at once; `what` is the setting of their URLs.

    Raises as `ask_what_is_served`, and ConfigError where they do not serve the same.
    """

    async def asked(client: Client) -> Served:
        async with client:
            return await ask_what_is_served(client, model, with_weights=with_weights)

    found = await all_of(map(asked, clients))
    for client, each in zip(clients, found, strict=True):
        if each.identity != found[0].identity:
            raise ConfigError(
                f"{what}: {client.url} serves {each.identity}, {clients[0].url} {found[0].identity}; servers of one "
                "model serve the same"
            )
    return found


async def ask_what_is_served(client: Client, model: str | None, *, with_weights: bool = True) -> Served:
    """The model `model`, or the only one, of a server; and its weights, where it says them.

    Raises ConfigError for a model that is not served or a choice between
    several, InferenceError where no server answers.
    """
    try:
        listed = (await client.ask("GET", "/models")).get("data")
        rows = {str(row["id"]): row for row in listed} if isinstance(listed, list) else {}
    except ServerUnavailable as fault:
        raise InferenceError(f"{fault}; see that the server runs, then run the same command again") from None
    except (Refused, TypeError, KeyError) as error:
        raise ConfigError(
            f"{client.url}/models lists no models ({error}); is it an OpenAI-compatible server, does base_url "
            "end with /v1, and does api_key_env hold its key?"
        ) from None
    if model is None and len(rows) != 1:
        raise ConfigError(f"{client.url} serves {sorted(rows)}; name one in `model`")
    name = model or next(iter(rows))
    if name not in rows:
        raise ConfigError(f"{client.url} does not serve {name}; it serves {sorted(rows)}")
    weights = None
    if with_weights:
        # What `scope serve-model` says of itself; vLLM has no such page.
        with suppress(Refused, ServerUnavailable):
            weights = (await client.ask("GET", "/info", at_root=True)).get("weights")
    length, where = rows[name].get("max_model_len"), rows[name].get("root")
    return Served(
        name,
        where if isinstance(where, str) else None,
        weights if isinstance(weights, str) else None,
        length if isinstance(length, int) and not isinstance(length, bool) and length > 0 else None,
    )


class _Logprobs(BaseModel):
    # Rounding may leave a certain token a little above 0.
    token_logprobs: tuple[Annotated[StrictFloat | StrictInt, Field(le=1e-3)], ...]


class _Choice(BaseModel):
    token_ids: tuple[Annotated[StrictInt, Field(ge=0)], ...] = Field(min_length=1)
    logprobs: _Logprobs
    finish_reason: Finish
    prompt_token_ids: tuple[int, ...] | None = None


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)


class _Said(BaseModel):
    text: str = Field(min_length=1)
    finish_reason: Finish
    token_ids: None = None


class _Text(BaseModel):
    choices: list[_Said] = Field(min_length=1)


def read_sample(answer: dict[str, Any], request: Generate, encode: Encode | None = None) -> Sample:
    """Raises InferenceError for what is not a completion with its token ids and log-probabilities. For a policy that
    nobody trains its text is enough: `encode` gives its ids.
    """
    if encode is not None:
        with suppress(ValidationError):
            said = _Text.model_validate(answer).choices[0]
            # Many servers leave out the tag at which they stopped.
            opened = {each: said.text.rfind(each.replace("</", "<")) for each in request.stop}
            last = max(opened, key=lambda each: opened[each], default="")
            cut = said.finish_reason is Finish.STOP and opened.get(last, -1) > said.text.rfind(last)
            return Sample(encode(said.text + last * cut), None, said.finish_reason)
    try:
        choice = _Completion.model_validate(answer).choices[0]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InferenceError(
            f"no completion with token_ids and logprobs ({place}: {first['msg']}); serve with `scope serve-model` or a "
            "vLLM that knows return_token_ids"
        ) from None
    ids, logprobs = choice.token_ids, choice.logprobs.token_logprobs
    if len(ids) != len(logprobs) or len(ids) > request.max_tokens:
        raise InferenceError(
            f"{len(ids)} tokens with {len(logprobs)} log-probabilities, {request.max_tokens} asked"
        )
    if choice.prompt_token_ids not in (None, request.prompt_ids):
        raise InferenceError("the server sampled from another prompt than it was given; does it truncate?")
    return Sample(ids, logprobs, choice.finish_reason)
