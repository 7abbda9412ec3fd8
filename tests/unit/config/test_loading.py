"""Settings: the paper's numbers, the complaints about wrong ones, and what the hash covers."""

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.base.errors import ConfigError
from scope_selfplay.config.judge import JudgeRole
from scope_selfplay.config.load import GONE, MOVED, field_names, load_config, parse_config
from scope_selfplay.config.rewards import PRESETS
from scope_selfplay.config.run import RunConfig, changed_settings
from tests.configuration_page import PAGE, field_of, render

REPOSITORY = Path(__file__).parents[3]
TABLE_9 = {
    "iterations": 3,
    "model.max_length": 16_384,
    "search.topk": 3,
    "search.max_tokens": 500,
    "challenger.steps": 20,
    "challenger.batch": 64,
    "challenger.group_size": 8,
    "challenger.learning_rate": 1e-6,
    "challenger.warmup_ratio": 0.03,
    "challenger.clip_norm": 1.0,
    "challenger.kl_beta": 1e-3,
    "challenger.max_prompt": 1024,
    "challenger.max_response": 8192,
    "challenger.rollouts": 8,
    "challenger.format_weight": 0.5,
    "challenger.target": 0.5,
    "solver.steps": 20,
    "solver.batch": 256,
    "solver.group_size": 8,
    "solver.learning_rate": 1e-6,
    "solver.warmup_ratio": 0.03,
    "solver.clip_norm": 1.0,
    "solver.kl_beta": 1e-3,
    "solver.max_prompt": 2048,
    "solver.max_response": 8192,
    "solver.max_search_turns": 5,
    "solver.format_weight": 0.5,
    "solver.search_weight": 0.1,
    "solver.length_soft": 1024,
    "solver.length_hard": 2048,
    "solver.length_floor": 0.05,
    "tasks.target": 5120,
    "tasks.rollouts": 4,
    "tasks.low": 0.2,
    "tasks.high": 0.8,
    "judge.failure_budget": 0.02,
    "compare.tasks": 200,
    "compare.promotion": "always",
}


def value_of(config: RunConfig, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("name", TABLE_9)
def test_defaults_are_the_numbers_of_the_paper(name: str) -> None:
    assert value_of(RunConfig(), name) == TABLE_9[name]


def test_the_laptop_config_loads_and_changes_no_equation() -> None:
    config = load_config(DEFAULT_CONFIG)
    assert config.domain == "embedded"
    for name in TABLE_9:
        if (
            name.endswith(("_weight", "target", "kl_beta", "low", "high", "group_size"))
            and name != "tasks.target"
        ):
            assert value_of(config, name) == TABLE_9[name], name


@pytest.mark.parametrize(
    ("overrides", "options", "begins"),
    [
        (["solver.steps=many"], {}, "--set solver.steps=many: solver.steps: found 'many'"),
        (["solver.steps=3", "solver.steps=0"], {}, "--set solver.steps=0: solver.steps: found 0"),
        (["tasks.low=0.9"], {}, "--set tasks.low=0.9: tasks: low (0.9) must be below high (0.8)"),
        (["seed=3"], {"name": "Not A Name"}, "--name Not A Name: name: found 'Not A Name'"),
        (["name=ok"], {"seed": -1}, "--seed -1: seed: found -1"),
        (["seed=3", "solver.batch=8"], {}, "FILE: solver.steps: found 'lots'"),
    ],
)
def test_a_wrong_value_is_blamed_on_whoever_gave_it(
    tmp_path: Path, overrides: list[str], options: dict[str, object], begins: str
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("solver: {steps: lots}\n" if begins.startswith("FILE") else "iterations: 2\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file, overrides, options=options)
    assert str(caught.value).startswith(begins.replace("FILE", str(file))), str(caught.value)


def test_a_list_is_added_to(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("cluster: {pod: {spec: {tolerations: [{key: a}]}}}\n")
    added = [f"cluster.pod.spec.tolerations+=[{{key: {key}}}]" for key in "bc"]
    for given, expected in ((file, "abc"), (None, "bc")):
        tolerated = load_config(given, added).cluster.pod["spec"]["tolerations"]
        assert [each["key"] for each in tolerated] == list(expected)
    assert load_config(None, ["cluster.prepare.index+=[--seed, '1']"]).cluster.prepare.index == (
        *("--profile", "compact"),
        *("--seed", "1"),
    )


def test_overrides_come_after_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("seed: 1\nsolver: {steps: 5, group_size: 4}\n")
    config = load_config(file, ["solver.learning_rate=1e-3", "solver.steps=6"])
    assert (config.seed, config.solver.steps, config.solver.group_size) == (1, 6, 4)
    assert config.solver.learning_rate == 1e-3


def test_quoted_numbers_are_text() -> None:
    assert load_config(None, ['name="2024"']).name == "2024"
    assert load_config(None, ["name=2e24x"]).name == "2e24x"


def test_a_ratio_of_search_turns_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("tasks: {search_turns: {1: 4, 2: 3}}\n")
    assert load_config(file, ["tasks.search_turns={3: 1}"]).tasks.search_turns == {3: 1}


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("# nothing\n")
    assert load_config(file) == RunConfig()


def test_the_hash_ignores_what_a_run_is_called_and_how_far_it_goes() -> None:
    config = RunConfig()
    assert (
        config.hash
        == load_config(None, ["name=other", "iterations=9", "stop_after=1", "compare.stop=worse"]).hash
    )
    assert len(config.hash) == 16


@pytest.mark.parametrize(
    ("earlier", "today"),
    [("embedded", DEFAULT_CONFIG), ("tiny", REPOSITORY / "k8s" / "runs" / "tiny" / "run.yaml")],
)
def test_a_run_that_was_begun_with_an_earlier_release_computes_the_same(earlier: str, today: Path) -> None:
    """Its resolved config has every setting that there was."""
    before = load_config(REPOSITORY / "tests" / "golden" / "earlier_configs" / f"{earlier}.yaml")
    assert changed_settings(before, load_config(today)) == []
    assert before.cluster.compare.amounts(tiny=True) == {
        "cpu": "1" if earlier == "tiny" else "4",
        "memory": "2Gi" if earlier == "tiny" else "16Gi",
    }


def test_an_older_config_is_read_under_todays_names_or_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "judge: {rubric_call: {max_tokens: 64}, endpoints: {gates: null}}\nsearch: {engine: {folder: null}}\n"
    )
    calls = load_config(file, ["judge.grade_call.temperature=0"]).judge.calls
    assert (calls[JudgeRole.RUBRIC].max_tokens, calls[JudgeRole.GRADE].temperature) == (64, 0)
    file.write_text("search: {engine: {folder: index}}\n")
    with pytest.raises(
        ConfigError, match=r"run\.yaml: search\.engine\.folder is no setting any more; serve an index"
    ):
        load_config(file)


@pytest.mark.parametrize("name", sorted(GONE.keys() - MOVED.keys()))
def test_what_is_no_setting_any_more_is_passed_over_unless_it_was_set(name: str) -> None:
    def given(value: object) -> dict[str, Any]:
        for part in reversed(name.split(".")):
            value = {part: value}
        return cast(dict[str, Any], value)

    unset, advice = GONE[name]
    assert parse_config(given(unset)) == RunConfig()
    with pytest.raises(ConfigError, match=rf"^config: {re.escape(name)} is no setting any more; .+") as said:
        parse_config(given("another"))
    assert str(said.value).endswith(advice) and "\n" not in str(said.value)


def test_the_challenger_trains_as_the_solver_but_for_what_it_states() -> None:
    config = load_config(
        None, ["solver.loss=dapo", "solver.steps=7", "solver.batch=32", "challenger.steps=3"]
    )
    assert (config.challenger.loss, config.challenger.steps, config.challenger.batch) == ("dapo", 3, 64)


HASHES = json.loads((REPOSITORY / "tests/golden/config_hashes.json").read_text())


@pytest.mark.parametrize("name", HASHES)
def test_the_hashes_of_shipped_configs_and_presets_stay_as_recorded(name: str) -> None:
    """A run that was begun with one release goes on with the next only where its hash is the same."""
    file = REPOSITORY / name
    config = load_config(file) if file.suffix == ".yaml" else load_config(None, [name])
    assert config.hash == HASHES[name]


def test_every_shipped_config_and_preset_has_a_recorded_hash() -> None:
    files = [*REPOSITORY.glob("k8s/runs/*/run.yaml"), *REPOSITORY.glob("scope_selfplay/*/run.yaml")]
    presets = [f"solver.reward={preset}" for preset in PRESETS]
    assert HASHES.keys() == {*(str(file.relative_to(REPOSITORY)) for file in files), *presets}


WHERE = [
    "search.url=http://127.0.0.1:8000",
    "search.outage=5",
    "partners.solver.base_url=http://127.0.0.1:9000/v1",
    "partners.challenger.model=c1",
    "judge.endpoint.base_url=http://127.0.0.1:9001/v1",
]
HOW_OFTEN = ["challenger.save_every=7", "solver.save_every=7"]


@pytest.mark.parametrize("setting", [*WHERE, *HOW_OFTEN])
def test_the_hash_ignores_where_others_run_and_how_often_a_training_saves(setting: str) -> None:
    assert RunConfig().hash == load_config(None, [setting]).hash


CHANGES = {
    "search.topk": 1,
    "seed": 1,
    "domain": "x",
    "model.path": "x",
    "solver.kl_beta": 0.5,
    "judge.gates": [],
    "tasks.low": 0.1,
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_hash_covers_what_a_run_computes(name: str) -> None:
    assert RunConfig().hash != load_config(None, [f"{name}={CHANGES[name]}"]).hash


def test_a_resolved_config_reads_back_as_itself() -> None:
    config = load_config(DEFAULT_CONFIG, ["tasks.search_turns={1: 2}", "judge.gates=[]"])
    dumped = yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json")))
    assert parse_config(dumped) == config


@pytest.mark.parametrize("name", field_names())
def test_every_setting_says_what_it_means(name: str) -> None:
    description = field_of(name).description or ""
    assert description.endswith("."), f"{name} has no docstring that is a sentence"


def test_the_page_of_settings_lists_every_setting_as_it_is() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m tests.configuration_page`"


def test_every_setting_in_which_two_runs_differ_is_named_once_from_either_side() -> None:
    configs = [
        load_config(None, changes)
        for changes in (
            [],
            ["solver.reward=verifier", "seed=3"],
            ["solver.reward=reasoning_arena_live"],
            ["tasks.search_turns={1: 1}", "model.lora_rank=4"],
        )
    ]
    plain, verified, live, turned = configs
    assert changed_settings(verified, live) == ["seed", "solver.reward", "solver.routing"]
    assert changed_settings(plain, turned) == ["model.lora_rank", "tasks.search_turns"]
    for one in configs:
        for other in configs:
            names = changed_settings(one, other)
            assert names == changed_settings(other, one)
            assert bool(names) == (one.hash != other.hash)


def test_a_kill_of_the_embedded_run_costs_the_step_at_work_and_no_more() -> None:
    config = load_config(DEFAULT_CONFIG)
    assert (config.challenger.save_every, config.solver.save_every) == (1, 1)
