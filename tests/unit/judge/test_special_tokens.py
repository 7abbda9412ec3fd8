"""What a judge's tokenizer takes for control is asked at the start, and kept out of its prompts."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.text import ControlTags, clean
from scope_selfplay.config.judge import EndpointConfig, JudgeConfig
from scope_selfplay.judge.endpoint import special_tokens
from scope_selfplay.judge.fences import tokens_in_files
from scope_selfplay.net.serve import serving

TOKENIZER = {
    "added_tokens": [{"id": 7, "content": "<frobnicate~>", "special": True}],
    "added_tokens_decoder": {"8": {"content": "%%end%%"}, "9": "<|im_end|>"},
    "bos_token": "~begin~",
    "additional_special_tokens": ["word"],
}
TOKENS = {"<frobnicate~>", "%%end%%", "<|im_end|>", "~begin~", "word"}


@asynccontextmanager
async def engine(
    info: dict[str, Any] | None, tokenize: dict[str, Any] | None = None
) -> AsyncIterator[JudgeConfig]:
    async def answer(request: Request) -> Response:
        page = info if request.url.path == "/tokenizer_info" else tokenize
        return Response(status_code=404) if page is None else JSONResponse(page)

    app = Starlette(routes=[Route("/{page}", answer, methods=["GET", "POST"])])
    async with serving(app) as url:
        yield JudgeConfig(kind="model", endpoint=EndpointConfig(base_url=url, model="m"))


async def test_the_endpoint_is_asked_for_its_special_tokens() -> None:
    async with engine(TOKENIZER) as config:
        found = await special_tokens(config)

    assert found == TOKENS
    tags = ControlTags(found)
    text = "a <frobnicate~> b %%END%% c \uff05%end%% ~begin~ of a word"
    cleaned = clean(text, tags)
    assert cleaned == "a \u2039frobnicate~> b % %END%% c % %end%% ~ begin~ of a word"
    assert clean(cleaned, tags) == cleaned


async def test_an_endpoint_that_tells_nothing_is_no_mistake_and_a_token_that_survives_cleaning_is() -> None:
    async with engine(None) as config:
        assert await special_tokens(config) == frozenset()
    async with engine(TOKENIZER, {"token_strs": ["x", "<frobnicate~>"]}) as config:
        with pytest.raises(ConfigError, match=r"control tokens of <frobnicate~>"):
            await special_tokens(config)


async def test_the_files_of_a_tokenizer_are_read_instead(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    async with engine({"bos_token": "<other>"}) as config:
        endpoint = config.endpoint.model_copy(update={"tokenizer": str(tmp_path)})
        assert await special_tokens(config.model_copy(update={"endpoint": endpoint})) == TOKENS
    assert tokens_in_files(tmp_path / "tokenizer.json") == TOKENS


@pytest.mark.parametrize(
    ("content", "complaint"), [("{}", "names no special tokens"), ("{", "cannot be read")]
)
def test_files_without_tokens_are_a_mistake(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=complaint):
        tokens_in_files(tmp_path)
