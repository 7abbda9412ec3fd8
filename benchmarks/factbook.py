"""Passages of the World Factbook, and questions that people can answer from them (tests/fixtures/factbook)."""

import json
from pathlib import Path
from typing import Any

FACTBOOK = Path(__file__).parents[1] / "tests" / "fixtures" / "factbook"


def read_lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FACTBOOK / f"{name}.jsonl").read_text("utf-8").splitlines()]


def passage_of(question_id: str) -> str:
    """The id of the passage that holds the answer to a question."""
    country, _, field = question_id.partition("-")
    return f"{country}-{'geography' if field in ('highest', 'height', 'lowest') else 'government'}"
