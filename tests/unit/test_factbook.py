"""The real passages and questions of `tests/fixtures/factbook`."""

import asyncio
import json
from pathlib import Path
from typing import Any

from benchmarks.factbook_corpus import passage_of
from retrieval.corpus import read_documents
from retrieval.in_process import bm25_searcher

FACTBOOK = Path(__file__).parents[1] / "fixtures" / "factbook"


def questions(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FACTBOOK / f"{name}.jsonl").read_text("utf-8").splitlines()]


def test_every_answer_stands_in_its_passage_and_no_country_is_on_both_sides() -> None:
    passages = {each.id: each.text for each in read_documents(FACTBOOK / "passages.jsonl")}
    train, held_out = questions("train"), questions("held_out")
    for question in train + held_out:
        assert all(answer in passages[passage_of(question["id"])] for answer in question["answers"])
    countries, unseen = ({each["id"].partition("-")[0] for each in side} for side in (train, held_out))

    assert (len(passages), len(train), len(held_out)) == (561, 1098, 289)
    assert not countries & unseen and len(countries | unseen) == 187


def test_the_questions_can_be_answered_by_searching_for_them() -> None:
    searcher = bm25_searcher(list(read_documents(FACTBOOK / "passages.jsonl")))

    async def found(question: dict[str, Any]) -> bool:
        passages = await searcher.search(question["question"], 3)
        return any(answer in each.text for each in passages for answer in question["answers"])

    async def all_found() -> list[bool]:
        return [await found(each) for each in questions("held_out")]

    hits = asyncio.run(all_found())
    share = sum(hits) / len(hits)
    print(f"answer among the first three passages: {share:.2f} of {len(hits)}")
    assert share > 0.85
