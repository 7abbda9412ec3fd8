"""Exports and cards, loaded by the libraries that the project trains with; `tests/consumers` has the others."""

from pathlib import Path
from typing import Any

import pytest

datasets = pytest.importorskip("datasets", reason="needs the train extra")

from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.store.folder import RunFolder, Stage
from tests.exported_run import write_exports, write_finished_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return write_finished_run(tmp_path_factory.mktemp("runs") / "demo")


@pytest.fixture(scope="module")
def exported(folder: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_exports(folder, tmp_path_factory.mktemp("exports"))


def load(path: Path, tmp_path: Path, *name: str) -> Any:
    return datasets.load_dataset(str(path), *name, cache_dir=str(tmp_path / "cache"))


def test_a_run_a_stage_and_every_export_load_as_datasets(
    folder: RunFolder, exported: dict[str, Path], tmp_path: Path
) -> None:
    whole = load(folder.path, tmp_path)
    assert {split: rows.num_rows for split, rows in whole.items()} == {"train": 60, "held_out": 30}
    assert whole["train"][3]["rubric"]["criteria"][0]["priority"] == "critical"
    comparisons = load(folder.path, tmp_path, "compare_comparisons")["train"]
    assert comparisons.num_rows == 20 and comparisons[0]["outcome"] is None
    rollouts = load(folder.stage(1, Stage.TASKS).path, tmp_path, "rollouts")["train"]
    assert rollouts[0]["turns"][0]["passages"][0]["title"] == "The treaty"
    for form, path in exported.items():
        found = {split: rows.num_rows for split, rows in load(path, tmp_path).items()}
        assert found == {"train": 24, "test": 12}, form


def test_trl_renders_the_prompt_and_hands_the_columns_to_a_reward_function(
    exported: dict[str, Path], tmp_path: Path
) -> None:
    data_utils = pytest.importorskip("trl.data_utils", reason="needs the train extra")
    from transformers import AutoTokenizer
    from trl.rewards import think_format_reward

    tokenizer = AutoTokenizer.from_pretrained(policy_path("embedded"))
    rows = [*load(exported["trl"], tmp_path)["train"].select(range(4))]
    assert data_utils.is_conversational(rows[0])
    rendered = data_utils.maybe_apply_chat_template({"prompt": rows[0]["prompt"]}, tokenizer)["prompt"]
    assert rows[0]["prompt"][0]["content"] in rendered and rendered.rstrip().endswith("assistant")
    # As GRPOTrainer calls one: every column but the prompt is a keyword, one value a row.
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    assert {"rubric", "task_id", "task_type", "reference", "mean_score", "iteration"} <= set(columns)
    assert rows[0]["rubric"][0]["text"] == "Identifies the builder."
    answers = ["<think>so</think>Ada identifies the builder.", "none", "none", "none"]
    completions = [[{"role": "assistant", "content": answer}] for answer in answers]
    prompts = [row["prompt"] for row in rows]
    assert think_format_reward(prompts=prompts, completions=completions, **columns) == [1.0, 0.0, 0.0, 0.0]
