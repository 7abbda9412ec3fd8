"""Exports and cards, loaded by the libraries that they are for, where these are installed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

datasets = pytest.importorskip("datasets", reason="needs the train extra")

from scope_selfplay.export import Format, export_tasks
from scope_selfplay.schemas import Candidate
from scope_selfplay.store import (
    Manifest,
    RunFolder,
    Stage,
    publish_manifest,
    read_manifest,
    read_records,
    write_atomic,
)
from scope_selfplay.store.card import CARD, stage_card, write_run_card
from scope_selfplay.store.manifest import FORMAT, checksums
from scope_selfplay.store.parquet import write_parquet
from scope_selfplay.store.reader import RunReader
from tests.unit.store.runs import write_run

pytestmark = pytest.mark.integration

FORMAT_2 = Path(__file__).parents[1] / "fixtures" / "runs" / "format-2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    made = write_run(tmp_path_factory.mktemp("runs") / "demo")
    for iteration in range(3):
        for stage in (Stage.TASKS, Stage.COMPARE):
            finish(made, iteration, stage)
    write_run_card(made, "demo")
    return made


def finish(made: RunFolder, iteration: int, stage: Stage) -> None:
    path = made.stage(iteration, stage).path
    write_parquet(path)
    write_atomic(path / CARD, stage_card("demo", iteration, stage, path))
    manifest = Manifest(
        stage=stage.value, iteration=iteration, spec_hash="0", outputs=checksums(path), format=FORMAT
    )
    publish_manifest(path, manifest)


@pytest.fixture(scope="module")
def exported(folder: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> dict[Format, Path]:
    root = tmp_path_factory.mktemp("exports")
    with RunReader(folder.path) as reader:
        for form in Format:
            export_tasks(reader, form, root / form.value)
    return {form: root / form.value for form in Format}


def load(path: Path, tmp_path: Path, *name: str) -> Any:
    return datasets.load_dataset(str(path), *name, cache_dir=str(tmp_path / "cache"))


def test_a_run_and_a_stage_load_as_datasets(folder: RunFolder, tmp_path: Path) -> None:
    whole = load(folder.path, tmp_path)
    assert {split: rows.num_rows for split, rows in whole.items()} == {"train": 60, "held_out": 30}
    assert whole["train"][3]["rubric"]["criteria"][0]["priority"] == "critical"
    comparisons = load(folder.path, tmp_path, "compare_comparisons")["train"]
    assert comparisons.num_rows == 20 and comparisons[0]["outcome"] is None
    rollouts = load(folder.stage(1, Stage.TASKS).path, tmp_path, "rollouts")["train"]
    assert rollouts[0]["turns"][0]["passages"][0]["title"] == "The treaty"


def test_iterations_of_two_versions_load_together(tmp_path: Path) -> None:
    made = write_run(tmp_path / "demo")
    old = FORMAT_2 / "iteration-01" / "tasks"
    stage = made.stage(1, Stage.TASKS).path
    shutil.rmtree(stage)
    shutil.copytree(old, stage)
    for iteration in (0, 2):
        finish(made, iteration, Stage.TASKS)
    before = checksums(stage)
    for _ in range(2):
        write_run_card(made, "demo")
    whole = load(made.path, tmp_path)
    assert {split: rows.num_rows for split, rows in whole.items()} == {"train": 36, "held_out": 30}
    kept = {each.id: each for each in read_records(stage / "candidates.jsonl", Candidate)}
    loaded = [row for row in whole["train"] if row["id"] in kept]
    assert len(loaded) == 6 and all(row["mean"] == kept[row["id"]].mean for row in loaded)
    # What was finished is as it was, and what is current is not copied.
    assert checksums(stage) == before and read_manifest(stage)
    copies = [path.relative_to(made.path / "migrated") for path in made.path.glob("migrated/**/*.parquet")]
    assert copies and {str(each.parent) for each in copies} == {"iteration-01/tasks"}


@pytest.mark.parametrize("form", Format)
def test_every_export_loads_as_a_dataset(exported: dict[Format, Path], tmp_path: Path, form: Format) -> None:
    found = load(exported[form], tmp_path)
    assert {split: rows.num_rows for split, rows in found.items()} == {"train": 24, "test": 12}


def test_trl_sees_a_conversational_prompt(exported: dict[Format, Path], tmp_path: Path) -> None:
    data_utils = pytest.importorskip("trl.data_utils", reason="needs the train extra")
    row = load(exported[Format.TRL], tmp_path)["train"][0]
    assert data_utils.is_conversational(row) and row["prompt"][0]["role"] == "user"


def test_inspect_reads_samples(exported: dict[Format, Path]) -> None:
    dataset = pytest.importorskip("inspect_ai.dataset", reason="inspect_ai is not installed")
    samples = dataset.json_dataset(str(exported[Format.INSPECT] / "test.jsonl"))
    assert len(samples) == 12 and samples[0].target.startswith("- Identifies the builder.")
    assert samples[0].metadata["task_id"] == samples[0].id


def test_verifiers_reads_task_data(exported: dict[Format, Path], tmp_path: Path) -> None:
    task = pytest.importorskip("verifiers.v1.task", reason="verifiers is not installed")
    for row in load(exported[Format.VERIFIERS], tmp_path)["train"]:
        data = task.WireTaskData(**row)
        assert data.prompt_text.startswith("Say who built") and json.loads(data.info)["rubric"]
