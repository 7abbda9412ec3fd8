"""A run is pointed at a judge by two settings; what it computes and where it runs are kept apart. At the start the
endpoint is asked for its weights, its context, and what its tokenizer takes for control.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from scope_selfplay.base.errors import ConfigError, RunMismatchError
from scope_selfplay.base.text import ControlTags, clean
from scope_selfplay.config.judge import JudgeConfig, JudgeRole
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.judge.endpoint import special_tokens, with_models
from scope_selfplay.judge.fences import tokens_in_files
from scope_selfplay.net.serve import serving

TWO_LINES = ["judge.kind=model", "judge.endpoint.base_url=http://127.0.0.1:8001/v1"]


def test_defaults_are_those_of_table_9() -> None:
    judge = RunConfig().judge
    assert judge.kind == "lexical" and judge.verdict == "written"
    rubric, grade = judge.calls[JudgeRole.RUBRIC], judge.calls[JudgeRole.GRADE]
    assert (rubric.temperature, rubric.max_tokens) == (0.0, 8192)
    assert (grade.temperature, grade.max_tokens) == (0.6, 16_384)
    assert judge.failure_budget == 0.02 and judge.retries == 2


SAME = ("endpoint.base_url=http://judge:8000/v1", "endpoint.api_key_env=KEY", "concurrency=8", "patience=30")
OTHERS = (
    *("endpoints.grade.base_url=http://judge:8000/v1", "endpoint.model=m1", "endpoint.weights=abcdef123456"),
    *("verdict=token", "calls.grade.temperature=0", "evaluate=[{base_url: 'http://judge:8000/v1'}]"),
)


def test_where_a_judge_runs_is_no_part_of_what_a_run_computes() -> None:
    def hashes(*settings: str) -> set[str]:
        return {load_config(None, [*TWO_LINES, f"judge.{each}"]).hash for each in settings}

    before = hashes(*SAME, "cache=null", "evaluate=[]")
    assert before == {load_config(None, TWO_LINES).hash}
    assert len(hashes(*OTHERS) - before) == len(OTHERS)


def test_judges_that_decide_are_apart_from_the_one_that_trains() -> None:
    compare = "judge.endpoints.compare.base_url=http://127.0.0.1:8002/v1"
    config = load_config(None, [*TWO_LINES, compare]).judge
    assert config.deciding == (config,)
    two = "judge.evaluate=[{base_url: 'http://a:1/v1', model: a}, {base_url: 'http://b:1/v1'}]"
    deciding = load_config(None, [*TWO_LINES, two]).judge.deciding
    for judge, url in zip(deciding, ("http://a:1/v1", "http://b:1/v1"), strict=True):
        assert {judge.endpoint_of(role).base_url for role in JudgeRole} == {url}
    elsewhere = load_config(None, [*TWO_LINES, two.replace("a:1", "c:1")])
    assert elsewhere.hash == load_config(None, [*TWO_LINES, two]).hash


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (TWO_LINES[:1], r"needs judge\.endpoint\.base_url"),
        ([*TWO_LINES, "judge.evaluate=[{model: a}]"], "every endpoint of evaluate needs a base_url"),
        (["judge.evaluate=[{base_url: 'http://a:1/v1'}]"], "use kind: model, or leave it out"),
        ([*TWO_LINES, "judge.noise.first=0.3"], "is for judges by rule"),
        (["judge.noise.first=0.3", "judge.noise.longer=0.9"], "add up to 1.2"),
        (["judge.noise.unreadable=0.1"], "raise judge.failure_budget"),
        (["judge.kind=verifier", "judge.canaries.rate=0.1"], "kind verifier compares by rule"),
    ],
)
def test_judges_that_cannot_be_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, settings)


EXPECTED = "abcdef123456"
TOKENIZER = {
    "added_tokens": [{"id": 7, "content": "<frobnicate~>", "special": True}],
    "added_tokens_decoder": {"8": {"content": "%%end%%"}, "9": "<|im_end|>"},
    "bos_token": "~begin~",
    "additional_special_tokens": ["word"],
}
TOKENS = {"<frobnicate~>", "%%end%%", "<|im_end|>", "~begin~", "word"}


def engine(**pages: Any) -> Any:
    """Serves these pages, and 404 for others; it is asked for no judgement."""

    async def answer(request: Request) -> Response:
        page = pages.get(request.url.path.rpartition("/")[2])
        return Response(status_code=404) if page is None else JSONResponse(page)

    return serving(Starlette(routes=[Route("/{page:path}", answer, methods=["GET", "POST"])]))


def models(name: str, **more: object) -> dict[str, Any]:
    return {"data": [{"id": name, **more}]}


def config_of(url: str, *settings: str) -> JudgeConfig:
    return load_config(None, ["judge.kind=model", f"judge.endpoint.base_url={url}", *settings]).judge


@pytest.mark.parametrize(
    ("model", "weights", "found"),
    [
        ("judge", EXPECTED, None),
        (f"M0-{EXPECTED}", None, None),
        ("judge", "000000000000", "serves weights 000000000000"),
        (f"M0-{EXPECTED}", "000000000000", "serves weights 000000000000"),
        ("judge", None, "serves judge and names no weights"),
    ],
)
async def test_only_the_expected_weights_are_taken_and_others_are_named(
    model: str, weights: str | None, found: str | None
) -> None:
    info = {} if weights is None else {"info": {"weights": weights}}
    async with engine(models=models(model), **info) as url:
        config = config_of(url, f"judge.endpoint.weights={EXPECTED}")
        if found is None:
            assert (await with_models(config)).endpoints[JudgeRole.GRADE].model == model
        else:
            with pytest.raises(RunMismatchError, match=f"{found}, judge.endpoint.weights expects {EXPECTED}"):
                await with_models(config)
        # Nothing is asked where nothing is expected.
        await with_models(config_of(url))


async def test_a_context_is_taken_from_the_endpoint_only_where_it_is_a_number_of_tokens() -> None:
    for given, context in ((4096, 4096), (0, None), (True, None), ("9", None)):
        async with engine(models=models("judge", max_model_len=given)) as url:
            assert (await with_models(config_of(url))).endpoints[JudgeRole.GRADE].context == context


async def test_the_endpoint_or_the_files_of_its_tokenizer_name_the_special_tokens(tmp_path: Path) -> None:
    async with engine(tokenizer_info=TOKENIZER) as url:
        found = await special_tokens(config_of(url, "judge.endpoint.model=m"))
    assert found == TOKENS
    tags = ControlTags(found)
    cleaned = clean("a <frobnicate~> b %%END%% c \uff05%end%% ~begin~ of a word", tags)
    assert cleaned == "a \u2039frobnicate~> b % %END%% c % %end%% ~ begin~ of a word"
    assert clean(cleaned, tags) == cleaned
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    async with engine(tokenizer_info={"bos_token": "<other>"}) as url:
        files = f"judge.endpoint.tokenizer={tmp_path}"
        assert await special_tokens(config_of(url, "judge.endpoint.model=m", files)) == TOKENS
    assert tokens_in_files(tmp_path / "tokenizer.json") == TOKENS


async def test_an_endpoint_that_tells_nothing_is_no_mistake_and_a_token_that_survives_cleaning_is() -> None:
    async with engine() as url:
        assert await special_tokens(config_of(url, "judge.endpoint.model=m")) == frozenset()
    async with engine(tokenizer_info=TOKENIZER, tokenize={"token_strs": ["x", "<frobnicate~>"]}) as url:
        with pytest.raises(ConfigError, match=r"control tokens of <frobnicate~>"):
            await special_tokens(config_of(url, "judge.endpoint.model=m"))


def test_files_without_tokens_are_a_mistake(tmp_path: Path) -> None:
    for content, complaint in (("{}", "names no special tokens"), ("{", "cannot be read")):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(ConfigError, match=complaint):
            tokens_in_files(tmp_path)
