"""A judge whose endpoint must serve certain weights: other weights are refused before anything is judged."""

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from scope_selfplay.base.errors import ConfigError, RunMismatchError
from scope_selfplay.config.judge import JudgeConfig, JudgeRole
from scope_selfplay.config.load import load_config
from scope_selfplay.judge.endpoint import with_models
from scope_selfplay.net.serve import ServedRequest, chat_app, serving

EXPECTED = "abcdef123456"


def app_of(model: str, weights: str | None) -> Starlette:
    async def answer(served: ServedRequest) -> Response:
        raise AssertionError("a handshake asks for no judgement")

    async def info(request: Request) -> Response:
        return JSONResponse({"weights": weights})

    routes = chat_app(answer, model=model).routes
    return Starlette(routes=routes if weights is None else [*routes, Route("/info", info)])


def config_of(url: str, *settings: str) -> JudgeConfig:
    given = ["judge.kind=model", f"judge.endpoint.base_url={url}", *settings]
    return load_config(None, given).judge


@pytest.mark.parametrize(("model", "weights"), [("judge", EXPECTED), (f"M0-{EXPECTED}", None)])
async def test_the_expected_weights_are_taken(model: str, weights: str | None) -> None:
    async with serving(app_of(model, weights)) as url:
        named = await with_models(config_of(url, f"judge.endpoint.weights={EXPECTED}"))
    assert named.endpoints[JudgeRole.GRADE].model == model


@pytest.mark.parametrize(
    ("model", "weights", "found"),
    [
        ("judge", "000000000000", "serves weights 000000000000"),
        (f"M0-{EXPECTED}", "000000000000", "serves weights 000000000000"),
        ("judge", None, "serves judge and names no weights"),
    ],
)
async def test_other_weights_are_refused_with_what_is_expected(
    model: str, weights: str | None, found: str
) -> None:
    async with serving(app_of(model, weights)) as url:
        with pytest.raises(RunMismatchError, match=f"{found}, judge.endpoint.weights expects {EXPECTED}"):
            await with_models(config_of(url, f"judge.endpoint.weights={EXPECTED}"))
        # Nothing is asked where nothing is expected.
        await with_models(config_of(url))


@pytest.mark.parametrize(
    ("given", "context"), [(4096, 4096), (0, None), (-1, None), (True, None), ("9", None)]
)
async def test_a_context_is_taken_from_the_endpoint_only_where_it_is_a_number_of_tokens(
    given: object, context: int | None
) -> None:
    async def models(request: Request) -> Response:
        return JSONResponse({"data": [{"id": "judge", "max_model_len": given}]})

    async with serving(Starlette(routes=[Route("/v1/models", models)])) as url:
        named = await with_models(config_of(url))
    assert named.endpoints[JudgeRole.GRADE].context == context


def test_what_is_not_a_hash_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"judge\.endpoint\.weights"):
        config_of("http://127.0.0.1:8000/v1", "judge.endpoint.weights=M0")
