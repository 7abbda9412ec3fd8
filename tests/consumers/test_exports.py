"""Every export, loaded by the library that it is for; `make test-consumers` installs them in an environment."""

import json
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.inference.checkpoints import policy_path
from tests.exported_run import write_exports, write_finished_run

pytestmark = pytest.mark.consumers


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    run = write_finished_run(tmp_path_factory.mktemp("runs") / "demo")
    return write_exports(run, tmp_path_factory.mktemp("exports"))


def test_inspect_builds_a_task_on_samples(exported: dict[str, Path]) -> None:
    from inspect_ai import Task
    from inspect_ai.dataset import json_dataset
    from inspect_ai.scorer import includes

    samples = json_dataset(str(exported["inspect"] / "test.jsonl"))
    assert len(samples) == 12 and str(samples[0].target).startswith("- Identifies the builder.")
    assert samples[0].metadata is not None and samples[0].metadata["task_id"] == samples[0].id
    assert [each.id for each in Task(dataset=samples, scorer=includes()).dataset] == [
        each.id for each in samples
    ]


def test_verifiers_reads_task_data(exported: dict[str, Path]) -> None:
    from datasets import load_dataset
    from verifiers.v1.task import WireTaskData

    rows = load_dataset(str(exported["verifiers"]), split="train")
    assert len(rows) == 24
    for row in rows:
        data = WireTaskData(**row)
        assert data.prompt_text.startswith("Say who built") and json.loads(data.info)["rubric"]


def verl_dataset(path: Path, cache: Path) -> Any:
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.utils.dataset.rl_dataset import RLHFDataset

    settings = {
        "cache_dir": str(cache),
        "prompt_key": "prompt",
        "max_prompt_length": 512,
        "filter_overlong_prompts": True,
        "filter_overlong_prompts_workers": 1,
    }
    tokenizer = AutoTokenizer.from_pretrained(policy_path("embedded"))
    return RLHFDataset(str(path), tokenizer, OmegaConf.create(settings))


def test_verl_trains_on_the_rows_of_its_dataset(exported: dict[str, Path], tmp_path: Path) -> None:
    from verl.utils.dataset.rl_dataset import collate_fn

    rows = verl_dataset(exported["verl"] / "train.parquet", tmp_path)
    # None is left out as too long or unreadable by the chat template.
    assert len(rows) == 24
    batch = collate_fn([rows[0], rows[5]])
    assert batch["raw_prompt"][1][0]["role"] == "user" and list(batch["index"]) == [0, 5]
    # What a custom reward function is called with.
    truth = json.loads(batch["reward_model"][0]["ground_truth"])
    assert truth[0]["text"] == "Identifies the builder." and batch["data_source"][0] == "scope-selfplay"


def test_search_r1_s_rows_are_verl_s_with_golden_answers(exported: dict[str, Path], tmp_path: Path) -> None:
    rows = verl_dataset(exported["search-r1"] / "test.parquet", tmp_path)
    assert len(rows) == 12 and rows[0]["raw_prompt"][0]["content"] == rows[0]["question"]
    assert rows[0]["reward_model"] == {"style": "rule", "ground_truth": {"target": []}}
    assert json.loads(rows[3]["extra_info"]["rubric"])[0]["priority"] == "critical"
