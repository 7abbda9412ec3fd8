"""A run is pointed at a judge by two settings; what it computes and where it runs are kept apart."""

from pathlib import Path

import pytest

from scope_selfplay.base.errors import ConfigError, RunMismatchError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.config.judge import JudgeConfig, JudgeRole
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.judge.questions import ROLE_OF_PROMPT
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.prompts.roles import POLICY_ROLES, PromptRole
from scope_selfplay.run.begin import open_run, with_judge_prompts
from tests.models import write_model

TWO_LINES = ["judge.kind=model", "judge.endpoint.base_url=http://127.0.0.1:8001/v1"]
SMALL = ["domain=embedded", "corpus.sample=20"]


def test_defaults_are_those_of_table_9() -> None:
    judge = RunConfig().judge

    assert judge.kind == "lexical" and judge.verdict == "written"
    rubric, grade = judge.calls[JudgeRole.RUBRIC], judge.calls[JudgeRole.GRADE]
    assert (rubric.temperature, rubric.max_tokens) == (0.0, 8192)
    assert (grade.temperature, grade.max_tokens) == (0.6, 16_384)
    assert judge.failure_budget == 0.02 and judge.retries == 2


@pytest.mark.parametrize(
    ("setting", "same"),
    [
        ("judge.endpoint.base_url=http://judge:8000/v1", True),
        ("judge.endpoint.api_key_env=KEY", True),
        ("judge.endpoints.grade.base_url=http://judge:8000/v1", False),
        ("judge.concurrency=8", True),
        ("judge.patience=30", True),
        ("judge.cache=null", True),
        ("judge.endpoint.model=m1", False),
        ("judge.endpoint.weights=abcdef123456", False),
        ("judge.verdict=token", False),
        ("judge.calls.grade.temperature=0", False),
        ("judge.evaluate=[]", True),
        ("judge.evaluate=[{base_url: 'http://judge:8000/v1'}]", False),
    ],
)
def test_where_a_judge_runs_is_no_part_of_what_a_run_computes(setting: str, same: bool) -> None:
    assert (load_config(None, [*TWO_LINES, setting]).hash == load_config(None, TWO_LINES).hash) is same


def test_every_judge_prompt_of_a_pack_has_a_role_and_every_role_an_endpoint() -> None:
    assert set(ROLE_OF_PROMPT) == set(PromptRole) - POLICY_ROLES
    assert set(ROLE_OF_PROMPT.values()) == set(JudgeRole)


def test_a_pack_without_judge_texts_borrows_them_and_has_another_hash() -> None:
    own = load_pack(pack_path("embedded"))
    config = load_config(None, TWO_LINES).judge

    borrowed = with_judge_prompts(own, config)

    assert set(borrowed.roles) == set(PromptRole) and borrowed.hash != own.hash
    assert with_judge_prompts(own, JudgeConfig()) is own
    complete = load_pack(pack_path("wikipedia"))
    assert with_judge_prompts(complete, config) is complete


def test_a_run_keeps_the_judges_texts_and_opens_again_with_another_address(tmp_path: Path) -> None:
    settings = [*SMALL, f"model.path={write_model(tmp_path / 'policy')}"]
    run = open_run(load_config(None, [*settings, *TWO_LINES]), tmp_path, Progress())
    assert (run.folder.prompts / "grade.md").is_file()

    moved = load_config(None, [*settings, *TWO_LINES, "judge.endpoint.base_url=http://judge:8000/v1"])
    assert open_run(moved, tmp_path, Progress()).pack.hash == run.pack.hash
    with pytest.raises(RunMismatchError, match=r"judge\.kind"):
        open_run(load_config(None, settings), tmp_path, Progress())


def test_judges_that_decide_are_apart_from_the_one_that_trains() -> None:
    config = load_config(
        None, [*TWO_LINES, "judge.endpoints.compare.base_url=http://127.0.0.1:8002/v1"]
    ).judge
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
    ],
)
def test_judges_that_could_not_be_asked_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, settings)
