"""Every export: the columns that its consumer asks for, the rubric in its place, and nothing half written."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from scope_selfplay.base.errors import RecordError, UserError
from scope_selfplay.base.values import CandidateStatus
from scope_selfplay.cli import cli
from scope_selfplay.report.export import FORMATS, example_of, export_tasks
from scope_selfplay.store.folder import RunFolder
from scope_selfplay.store.reader import RunReader
from tests.unit.store.runs import candidate, write_run

pytestmark = pytest.mark.integration

ACCEPTED = candidate(1, 2)
KNOWN = ACCEPTED.model_copy(update={"task": ACCEPTED.task.model_copy(update={"reference": "Ada, in 1202"})})  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return write_run(tmp_path_factory.mktemp("runs") / "demo")


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_holds_every_accepted_task_once(folder: RunFolder, tmp_path: Path, form: str) -> None:
    with RunReader(folder.path) as reader:
        written = export_tasks(reader, form, tmp_path / "out")
    assert [(each.path.stem, each.tasks) for each in written] == [("train", 24), ("test", 12)]
    rows = rows_of(written[0].path)
    accepted = [candidate(iteration, row) for iteration in (1, 2) for row in range(30)]
    wanted = [each for each in accepted if each.status is CandidateStatus.ACCEPTED]
    assert rows == [
        json.loads(json.dumps(FORMATS[form].row(example_of(each, "train", index))))
        for index, each in enumerate(wanted)
    ]
    assert (tmp_path / "out" / "README.md").read_text().startswith("---\n")


def test_each_consumer_finds_its_columns_and_the_rubric() -> None:
    row = {form: FORMATS[form].row(example_of(KNOWN, "train", 3)) for form in FORMATS}
    for form, columns in row.items():
        assert all(text in json.dumps(columns) for text in ("Identifies the builder.", "the lantern 2")), form
    assert row["trl"]["prompt"] == row["verl"]["prompt"] == row["open-instruct"]["messages"]
    assert list(row["verl"]) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert json.loads(row["verl"]["reward_model"]["ground_truth"])[0]["priority"] == "critical"
    assert json.loads(row["verifiers"]["info"])["index"] == 3
    assert row["verl"]["extra_info"]["reference"] == "Ada, in 1202"
    assert row["verifiers"]["answer"] == row["inspect"]["target"] == "Ada, in 1202"
    assert row["search-r1"]["golden_answers"] == ["Ada, in 1202"]
    truth = json.loads(row["open-instruct"]["ground_truth"][0])
    assert truth["query"] == KNOWN.task.text and len(truth["rubrics"]) == 2  # type: ignore[union-attr]
    assert row["open-instruct"]["dataset"] == ["rubric"]
    # No answer is made up where none is known.
    example = example_of(ACCEPTED, "train", 0)
    assert FORMATS["search-r1"].row(example)["golden_answers"] == []
    assert FORMATS["verifiers"].row(example)["answer"] == ""


def test_one_iteration_can_be_asked_for_and_a_folder_in_use_is_refused(
    folder: RunFolder, tmp_path: Path
) -> None:
    words = ["export", str(folder.path), "--format", "trl", "-o", str(tmp_path), "--iteration", "2"]
    done = CliRunner().invoke(cli, words)
    name, tasks = done.stdout.splitlines()[0].split("\t")
    assert {row["iteration"] for row in rows_of(Path(name))} == {2} and tasks == "12"
    with RunReader(folder.path) as reader, pytest.raises(UserError, match="is not empty"):
        export_tasks(reader, "trl", tmp_path)


def test_a_run_without_accepted_tasks_exports_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.yaml").write_text("name: demo\n")
    with RunReader(tmp_path / "run") as reader, pytest.raises(RecordError, match="no accepted task"):
        export_tasks(reader, "verl", tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_no_command_that_we_print_or_write_down_uploads_results() -> None:
    """verifiers does by default."""
    root = Path(__file__).parents[3]
    texts = [FORMATS["verifiers"].use]
    names = ("scope_selfplay/report/scope_tasks.py", "docs/how/documents.md")
    texts += [(root / name).read_text() for name in names]
    for text in texts:
        commands = text.count("vf-eval scope_tasks")
        assert commands and text.count("vf-eval scope_tasks --no-push") == commands
