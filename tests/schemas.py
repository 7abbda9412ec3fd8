"""Writes the JSON schema of what a run writes from the models themselves: `python -m tests.schemas`.

One schema per format of run folders: its properties are the files of a run by name, a file of JSON lines as an array.
"""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

import scope_selfplay
from scope_selfplay.base.values import Document
from scope_selfplay.judge.account import ACCOUNT, StageAccount
from scope_selfplay.judge.checks import AskedAgain, AuditReport, CanaryVerdict, Exam
from scope_selfplay.report.overview import Summary
from scope_selfplay.search.mcp import ToolRecord
from scope_selfplay.search.searcher import IndexRecord
from scope_selfplay.store.columns import RecordKind, TaskTarget
from scope_selfplay.store.folder import FORMAT, MANIFEST, StageManifest
from scope_selfplay.store.query import HumanComparison, HumanVerdict
from scope_selfplay.store.ratings import Fork, Ratings, SwapTable

SCHEMA = Path(scope_selfplay.__file__).parent / "schemas" / f"format-{FORMAT}.json"
HOME = "https://github.com/scope-selfplay/scope-selfplay/blob/main/scope_selfplay/schemas"

FILES: dict[str, Any] = {
    "corpus.jsonl": list[Document],
    "index.json": IndexRecord,
    "tools.json": list[ToolRecord],
    "fork.json": Fork,
    "summary.json": Summary,
    "canaries/*.jsonl": list[CanaryVerdict],
    "exam/exam.json": Exam,
    "audit/asked.jsonl": list[AskedAgain],
    "audit/audit.json": AuditReport,
    "human/verdicts.jsonl": list[HumanVerdict],
    "human/comparisons.jsonl": list[HumanComparison],
    MANIFEST: StageManifest,
    ACCOUNT: StageAccount,
    "documents.json": list[str],
    "metrics.jsonl": list[dict[str, Any]],
    "target.json": TaskTarget,
    "ratings.json": Ratings,
    "swaps.json": SwapTable,
    **{f"{kind}.jsonl": list[kind.model] for kind in RecordKind},
}
"""Those of a run's folder by their path, those of a stage by their name."""


def schema() -> dict[str, Any]:
    inputs = [(name, "serialization", TypeAdapter(model)) for name, model in FILES.items()]
    by_file, definitions = TypeAdapter.json_schemas(inputs)
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": f"{HOME}/{SCHEMA.name}",
        "title": f"Files of a SCOPE self-play run, format {FORMAT}",
        "type": "object",
        "properties": {name: found for (name, _), found in by_file.items()},
        **definitions,
    }


def validate(run: Path) -> None:
    """Every JSON file of a run but those of weights. Raises ValidationError for what the schema does not say."""
    known, seen = schema(), set[Path]()
    for name, expected in known["properties"].items():
        validator = Draft202012Validator(known | {"properties": {name: expected}})
        for path in [*run.glob(name), *run.glob(f"iteration-*/*/{name}")]:
            validator.validate({name: _content_of(path)})
            seen.add(path)
    weights = {path for path in run.rglob("*.json*") if path.parent.name in ("checkpoint", "best")}
    assert {*run.rglob("*.json*")} - weights == seen


def _content_of(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


def render() -> str:
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    SCHEMA.parent.mkdir(exist_ok=True)
    SCHEMA.write_text(render(), encoding="utf-8")
