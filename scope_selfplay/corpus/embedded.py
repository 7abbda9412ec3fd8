"""The embedded world as a corpus: articles to train on, others that held-out tasks are about, and these tasks."""

from collections.abc import Sequence

from scope_selfplay.config import CorpusConfig
from scope_selfplay.embedded.held_out import held_out_questions
from scope_selfplay.embedded.language import read_question, write_question
from scope_selfplay.embedded.world import make_documents
from scope_selfplay.keys import content_id, rng_from
from scope_selfplay.schemas import Document, Task

HELD_OUT = "held-out"
"""`Document.source` of what the held-out tasks are made from."""


def embedded_documents(seed: int, settings: CorpusConfig) -> list[Document]:
    """Articles of two embedded worlds, one to train on and one for held-out tasks; no title occurs in both."""
    world = make_documents(rng_from(seed, "world"), settings.embedded_articles, source=f"world-{seed}")
    titles = [document.title for document in world]
    held_out = make_documents(
        rng_from(seed, HELD_OUT), settings.embedded_held_out, source=HELD_OUT, skip=titles
    )
    return world + held_out


def embedded_tasks(seed: int, documents: Sequence[Document], count: int) -> list[Task]:
    """Tasks about the second world, as many of each number of links: no Challenger's taste decides what is measured.

    `documents` are those for held-out tasks. Raises ConfigError where they are too few.
    """
    questions = held_out_questions(rng_from(seed, HELD_OUT, "tasks"), documents, count)
    return [
        Task(
            id=content_id("task", text := write_question(question)),
            text=text,
            type="long_form_qa",
            document_id=document.id,
            search_turns=0,
        )
        for document, question in questions
    ]


def task_family(task: Task) -> str:
    """The kind of task that a score is reported by: links to follow where they can be read, else type and searches."""
    question = read_question(task.text)
    if question is not None:
        return f"{question.hops} link{'' if question.hops == 1 else 's'}"
    return f"{task.type}, {task.search_turns} searches"
