"""The real passages and questions of `tests/fixtures/factbook`."""

import asyncio
import json
from pathlib import Path
from typing import Any

from retrieval.corpus import read_documents
from retrieval.in_process import bm25_searcher

FACTBOOK = Path(__file__).parents[1] / "fixtures" / "factbook"


def questions() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FACTBOOK / "questions.jsonl").read_text("utf-8").splitlines()]


def test_every_answer_stands_in_its_passage_and_no_country_is_on_both_sides() -> None:
    passages = {each.id: each.text for each in read_documents(FACTBOOK / "passages.jsonl")}
    sides: dict[str, set[str]] = {"train": set(), "held_out": set()}
    for question in questions():
        assert all(answer in passages[question["passage_id"]] for answer in question["golden_answers"])
        sides[question["split"]].add(question["id"].partition("-")[0])

    assert len(passages) == 561 and len(questions()) == 1387
    assert not sides["train"] & sides["held_out"]
    assert 30 <= len(sides["held_out"]) <= 50


def test_the_questions_can_be_answered_by_searching_for_them() -> None:
    searcher = bm25_searcher(list(read_documents(FACTBOOK / "passages.jsonl")))

    async def found(question: dict[str, Any]) -> bool:
        passages = await searcher.search(question["question"], 3)
        return any(answer in each.text for each in passages for answer in question["golden_answers"])

    async def all_found() -> list[bool]:
        return [await found(each) for each in questions()[::5]]

    hits = asyncio.run(all_found())
    share = sum(hits) / len(hits)
    print(f"answer among the first three passages: {share:.2f} of {len(hits)}")
    assert share > 0.85
