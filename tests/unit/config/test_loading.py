"""Settings: the numbers of the paper, the complaints about wrong ones, what the hash covers; the run folders have the
numbers of their papers: SCOPE (Table 9, appendices E and G), Reasoning Arena (appendix B), Tournament-GRPO (table 4),
ArenaRL (sections 4.2 and 6, appendix A); their judges have room for what they are shown."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.yaml import YamlError, parse_yaml
from scope_selfplay.config.base import OpenConfig, ToolConfig
from scope_selfplay.config.judge import JudgeRole
from scope_selfplay.config.load import field_names, load_config
from scope_selfplay.config.run import RunConfig, changed_settings
from scope_selfplay.config.training import GREEDILY_JUDGED, PRESETS
from scope_selfplay.training.loss import loss_of
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
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


@pytest.mark.parametrize("name", TABLE_9)
def test_defaults_are_the_numbers_of_the_paper(name: str) -> None:
    assert value_of(RunConfig(), name) == TABLE_9[name]


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


def test_overrides_come_after_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("# nothing\n")
    assert load_config(file) == RunConfig()
    file.write_text("seed: 1\nsolver: {steps: 5, group_size: 4}\ntasks: {search_turns: {1: 4, 2: 3}}\n")
    config = load_config(file, ["solver.learning_rate=1e-3", "solver.steps=6", "tasks.search_turns={3: 1}"])
    assert (config.seed, config.solver.steps, config.solver.group_size) == (1, 6, 4)
    assert config.solver.learning_rate == 1e-3
    assert config.tasks.search_turns == {3: 1}, "a ratio is replaced as a whole"
    assert load_config(None, ['name="2024"']).name == "2024"


def test_the_hashes_of_shipped_configs_and_presets_stay_as_recorded() -> None:
    """A run that was begun with one release goes on with the next only where its hash is the same."""
    recorded = json.loads((REPOSITORY / "tests/golden/config_hashes.json").read_text())
    kinds = ("k8s/runs/*/run", "k8s/presets/*", "scope_selfplay/*/run", "examples/*/run")
    files = [file for kind in kinds for file in REPOSITORY.glob(f"{kind}.yaml")]
    found = {str(file.relative_to(REPOSITORY)): load_config(file).hash for file in files}
    presets = [f"solver.reward={preset}" for preset in PRESETS]
    assert recorded == found | {preset: load_config(None, [preset]).hash for preset in presets}


ENGINE = "search={{engine: {{name: opensearch, index: {}}}, url: 'http://{}'}}"


@pytest.mark.parametrize(
    ("changes", "than"),
    [
        # What a run is called and how far it goes, where others run, how often a training saves.
        (["name=other", "iterations=9", "stop_after=1", "compare.stop=worse"], []),
        (["search.url=http://127.0.0.1:8000", "search.outage=5"], []),
        (["partners.solver.base_url=http://127.0.0.1:9000/v1", "partners.challenger.model=c1"], []),
        (["judge.endpoint.base_url=http://127.0.0.1:9001/v1"], []),
        (["challenger.save_every=7", "solver.save_every=7"], []),
        (["search.engine={name: scope, index: null}"], []),
        ([ENGINE.format("wiki", "a")], [ENGINE.format("wiki", "b")]),
    ],
)
def test_the_hash_ignores_what_changes_no_result(changes: list[str], than: list[str]) -> None:
    assert load_config(None, changes).hash == load_config(None, than).hash


def test_the_hash_covers_what_a_run_computes() -> None:
    engines = [[ENGINE.format(index, "a")] for index in ("wiki", "other")]
    others = (
        "search.topk=1 seed=1 domain=x model.path=x solver.kl_beta=0.5 judge.gates=[] tasks.low=0.1".split()
    )
    configs = [
        RunConfig(),
        *(load_config(None, changes) for changes in (*engines, *([each] for each in others))),
        load_config(None, ["partners.keep_form=[challenger]", "challenger.freeze_after=0"]),
        load_config(None, ["challenger.freeze_after=0"]),
    ]
    assert all(len(config.hash) == 16 for config in configs)
    assert len({config.hash for config in configs}) == len(configs)


def test_every_setting_says_what_it_means() -> None:
    said = {name: field_of(name).description or "" for name in field_names()}
    assert [name for name, text in said.items() if not text.endswith(".")] == []


def test_the_page_of_settings_lists_every_setting_as_it_is() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m tests.configuration_page`"


def test_every_setting_in_which_two_runs_differ_is_named_once_from_either_side() -> None:
    verified = load_config(None, ["solver.reward=verifier", "seed=3"])
    live = load_config(None, ["solver.reward=reasoning_arena_live", "tasks.search_turns={1: 1}"])
    names = ["seed", "tasks.search_turns", "solver.reward", "solver.routing"]
    assert changed_settings(verified, live) == changed_settings(live, verified) == names
    assert changed_settings(live, live) == []


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        *(
            ("cluster.images.worker", value, "an image's name")
            for value in ("scope latest", *"'' Scope 'scope:' a//b https://a/b a@sha256:12 a:b:c".split())
        ),
        *(
            ("cluster.key_secret", value, "the name of an object")
            for value in ("My_Secret", "a/b/c", "a/", "a" * 254)
        ),
        ("cluster.gpu_resource", "nvidia.com/", "a label's key"),
    ],
)
def test_a_name_that_no_server_takes_is_refused(setting: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=rf"{setting}.*found .*, expected {expected}.*, such as "):
        load_config(None, [f"{setting}={value}"])


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        (["partners.keep_form=[challenger]"], "challenger, which this run trains.*freeze_after: 0"),
        (
            ["partners.keep_form=[challenger]", "challenger.freeze_after=1"],
            "challenger, which this run trains",
        ),
        (["partners.keep_form=[challenger]", "challenger.freeze_after=0"], ""),
        (["partners.keep_form=[challenger]", "solver.tasks=tasks.jsonl"], ""),
        (["partners.keep_form=[solver]", "challenger.freeze_after=0"], "solver, which .*stop_after: 0"),
        (["partners.keep_form=[solver, challenger]", "stop_after=0"], ""),
    ],
)
def test_no_engine_keeps_the_form_of_a_policy_that_is_trained(settings: list[str], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice) if advice else nullcontext():
        load_config(None, settings)


def test_a_run_of_another_engine_starts_no_retriever_unless_told_to() -> None:
    engine = "search={url: 'http://a', engine: {name: elasticsearch, index: wiki}}"
    assert load_config(None, ["search.url=http://a"]).cluster.retriever.serve
    assert not load_config(None, [engine, "cluster.retriever.cpu='2'"]).cluster.retriever.serve
    assert load_config(None, [engine, "cluster.retriever.serve=true"]).cluster.retriever.serve


K8S = REPOSITORY / "k8s"
FAMILIES = {"qwen3-8b": "qwen3", "qwen2.5-7b": "qwen2.5", "olmo-3-7b": "olmo3"}

# What a method is made of; model, corpus, judge's place and cluster are a run's own.
METHOD = ("search", "sampling", "challenger", "tasks", "solver", "compare")

# How many rollouts or tokens are in work at once changes no number of the paper.
OWN = {"micro_batch", "micro_tokens", "save_every"}


def method_of(config: RunConfig) -> dict[str, object]:
    found = config.model_dump(mode="json")
    return {part: {name: value for name, value in found[part].items() if name not in OWN} for part in METHOD}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_runs_with_the_papers_numbers(name: str) -> None:
    config = load_config(K8S / ("runs/qwen3-8b/run.yaml" if name == "qwen3-8b" else f"presets/{name}.yaml"))
    assert method_of(config) == method_of(RunConfig())
    assert config.iterations == 3 and config.model.max_length == 16_384
    assert config.model.dialect == FAMILIES[name] and config.domain == "wikipedia"
    assert config.judge.kind == "model" and config.judge.gates == ("entity", "source")
    assert config.cluster.judge.model == config.model.path, "J is M_0"


ARENA = K8S / "presets" / "reasoning-arena.yaml"


def test_the_loss_is_cispo_clipped_on_one_side_without_a_kl_term() -> None:
    loss = loss_of(load_config(ARENA).solver)
    assert (loss.clip_low, loss.clip_high) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("overrides", "design", "routed"),
    [
        # Groups that the verifier cannot tell apart go to a live tournament.
        ([], "live", True),
        (["solver.reward=verifier"], "verifier", False),
        (["solver.reward=adaptive_pointwise"], "pointwise", True),
        (["solver.reward=reasoning_arena"], "win_rate", True),
    ],
)
def test_a_baseline_is_the_run_with_another_reward(overrides: list[str], design: str, routed: bool) -> None:
    solver = load_config(ARENA, overrides).solver
    assert (solver.reward.design, solver.routing is not None, solver.resample) == (design, routed, 8)


def test_resampling_leaves_hardly_a_flat_group_at_the_cost_of_the_papers_table_2() -> None:
    """Of its baseline RLVR: 47 % of the groups are flat, and a step takes 908 generations for 480 rollouts."""
    flat, rounds = 0.47, load_config(ARENA).solver.resample
    assert flat ** (rounds + 1) < 0.002
    assert sum(480 * flat**number for number in range(rounds + 1)) == pytest.approx(908, rel=0.01)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_of_tournament_grpo_judge_greedily(preset: str) -> None:
    """Table 4, unless the config says otherwise."""
    call = load_config(None, [f"solver.reward={preset}"]).judge.calls[JudgeRole.COMPARE]
    expected = (0.0, 0.95) if preset in GREEDILY_JUDGED else (0.6, 1.0)
    assert (call.temperature, call.top_p) == expected
    changes = [f"solver.reward={preset}", "judge.calls.compare.temperature=0.3"]
    call = load_config(None, changes).judge.calls[JudgeRole.COMPARE]
    assert (call.temperature, call.top_p) == (0.3, expected[1])


POSITIONS = {
    "Qwen2.5-72B-Instruct": 32_768,
    "Qwen3-235B-A22B": 40_960,
    "Qwen3-30B-A3B-Instruct-2507": 262_144,
}
"""Tokens, of each model's own config.json (`max_position_embeddings`); beyond them it is out of its depth."""


@pytest.mark.parametrize(
    ("name", "characters_per_token"), [("arenarl", 1.5), ("tournament-grpo", 4.0), ("reasoning-arena", 3.0)]
)
def test_a_judges_window_lies_within_its_models_positions_and_holds_what_is_shown_and_the_verdict(
    name: str, characters_per_token: float
) -> None:
    """Characters a token of Chinese, of English, and of mathematics, where three are few."""
    config = load_config(K8S / "presets" / f"{name}.yaml")
    judge, window = config.judge, config.judge.endpoint.context
    assert window is not None and config.cluster.judge.model is not None
    assert window <= POSITIONS[Path(config.cluster.judge.model).name]
    assert str(window) in " ".join(config.cluster.judge.args)
    prompt = 1000 if name == "reasoning-arena" else 1500
    assert (
        judge.max_chars / characters_per_token + prompt + judge.calls[JudgeRole.COMPARE].max_tokens <= window
    )


NUMBERS: dict[str, dict[str, object]] = {
    "reasoning-arena": {
        "solver.batch": 60,
        "solver.group_size": 8,
        "solver.steps": 1500,
        "solver.loss": "cispo",
        "solver.kl_beta": 0.0,
        "solver.routing.by": "auto",
        "solver.routing.budget": None,
        "judge.endpoint.context": 32_768,
        "solver.warmup_ratio": 50 / 1500,
        "solver.learning_rate": 4e-7,
        "solver.reward.thoughts": False,
        "judge.truncation": "middle",
    },
    "tournament-grpo": {
        "solver.max_response": 18_000,
        "search.max_tokens": 3_000,
        "search.truncation": "middle",
        "tools": (ToolConfig(open=OpenConfig(max_calls=3, max_tokens=3_000, truncation="middle")),),
        "solver.max_search_turns": 4,
        "solver.batch": 16,
        "solver.group_size": 8,
        "solver.learning_rate": 1e-6,
        "sampling.temperature": 1.0,
        "sampling.top_p": 1.0,
        "judge.calls.compare.temperature": 0.0,
        "judge.calls.compare.top_p": 0.95,
        "cluster.judge.model": "/data/models/Qwen2.5-72B-Instruct",
        "solver.reward.group_size": 2,
        "solver.reward.repeats": 4,
    },
    "arenarl": {
        "solver.group_size": 16,
        "sampling.temperature": 0.8,
        "solver.reward.topology": "single_elimination",
        "cluster.prepare.model": "Qwen/Qwen3-8B-Base",
        "cluster.prepare.warm_start.epochs": 3.0,
        "cluster.prepare.warm_start.micro_batch": 1,
    },
}


@pytest.mark.parametrize(("name", "key"), [(name, key) for name in NUMBERS for key in NUMBERS[name]])
def test_a_run_folder_states_its_papers_numbers(name: str, key: str) -> None:
    found = value_of(load_config(K8S / "presets" / f"{name}.yaml"), key)
    expected = NUMBERS[name][key]
    assert found == (pytest.approx(expected, rel=0.01) if isinstance(expected, float) else expected)


def test_values_know_their_lines_counted_from_where_the_text_begins_in_its_file() -> None:
    parsed = parse_yaml("a: 1\nb:\n  - x\n  - y\n", first_line=2)
    assert parsed.values == {"a": 1, "b": ["x", "y"]}
    assert (parsed.line("a"), parsed.line("b", 1), parsed.line("b", 7)) == (2, 5, 3)
    assert parse_yaml("a: &a\n  - *a\n").line("a", 0) == 1, "a list that holds itself ends"


@pytest.mark.parametrize(
    ("text", "line"), [("a: [", 1), ("a: 1\n b: 2\n", 2), ("a: \x00", None), ("a: 2024-13-45", None)]
)
def test_what_is_not_yaml_is_one_error_with_the_line_where_it_is_known(text: str, line: int | None) -> None:
    with pytest.raises(YamlError) as caught:
        parse_yaml(text)
    assert caught.value.line == line and caught.value.details


def test_scalars_are_kept_as_they_are_written_where_that_is_asked_for() -> None:
    assert parse_yaml("version: 3.10\nyes: no\n", as_text=True).values == {"version": "3.10", "yes": "no"}
