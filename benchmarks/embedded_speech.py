"""A random policy's odds of speaking about the embedded world, and two given tasks about it with their rubrics."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from scope_selfplay.base.values import Document, Task
from scope_selfplay.corpus import world as language
from scope_selfplay.corpus.world import BY_NOUN, FactQuestion, read_article, write_question
from scope_selfplay.judge.protocol import RubricQuestion
from scope_selfplay.judge.rules import LexicalJudge
from scope_selfplay.run.given import given_candidate
from scope_selfplay.store.files import write_records
from scope_selfplay.testing.random_policy import Transitions

SPEECH: Transitions = {
    "start": {"<think>": 1},
    "<think>": {"</think>": 1},
    "</think>": {"<task>": 4, "<answer>": 4, "<search>": 2},
    "<search>": {"YEARS": 1},
    "YEARS": {"</search>": 1},
    "<task>": {" Report": 1},
    " Report": {" the river": 1},
    " the river": {",": 1},
    ",": {" the founder": 1},
    " the founder": {" and": 1},
    " and": {" the emblem": 1, " the year": 1},
    " the emblem": {" of": 1},
    " the year": {" of": 1},
    " of": {"PLACES": 1},
    "PLACES": {".": 1},
    ".": {"</task>": 1},
    "<answer>": {" Its river is the": 1, " Its founder was": 1},
    " Its river is the": {"RIVERS": 1},
    " Its founder was": {"FOUNDERS": 1},
    "RIVERS": {"</answer>": 1},
    "FOUNDERS": {"</answer>": 1},
}


def spoken_words(speech: Transitions) -> Mapping[str, Sequence[str]]:
    """The words of the embedded world that its states in capitals stand for."""
    return {name: [f" {word}" for word in getattr(language, name)] for name in speech if name.isupper()}


def write_tasks(documents: Sequence[Document], path: Path) -> Path:
    """Two tasks that the lexical judge can grade, as a run writes its candidates."""
    judge = LexicalJudge()
    candidates = []
    for number, document in enumerate(documents[:2]):
        entity = read_article(document.text)
        assert entity is not None
        nouns = tuple(entity.facts)[:3]
        task = Task(
            id=f"t{number}",
            text=write_question(FactQuestion(nouns, (), entity.name)),
            type="long_form_qa",
            document_id=document.id,
            reference=BY_NOUN[nouns[0]].sentence(entity.facts[nouns[0]]),
        )
        rubric = asyncio.run(judge.ask(RubricQuestion(task, (document,)))).value
        candidates.append(given_candidate(task, rubric))
    write_records(path, candidates)
    return path
