"""A corpus in the form of wiki-18 and questions about it, written from the embedded world."""

import json
from pathlib import Path

from scope_selfplay.base.values import rng_from
from scope_selfplay.corpus.world import FactQuestion, make_documents, read_article, write_question

PASSAGES, QUESTIONS = 780, 390


def write_world_data(folder: Path) -> Path:
    """`passages.jsonl` (`id`, `contents`) and `questions.jsonl` (`question`, `passage_id` of the answer)."""
    documents = make_documents(rng_from("retrieval tests"), PASSAGES, source="world")
    lines = [{"id": each.id, "contents": f'"{each.title}"\n{each.text}'} for each in documents]
    questions = []
    for document in documents[:QUESTIONS]:
        entity = read_article(document.text)
        assert entity is not None
        nouns = tuple(entity.facts)[:1]
        question = write_question(FactQuestion(nouns, (), entity.name))
        questions.append({"question": question, "passage_id": document.id})
    for name, rows in (("passages.jsonl", lines), ("questions.jsonl", questions)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder
