"""Scripted traces of real questions, from which the supervised start learns the protocol: JSON lines for
`python -m jobs warm-start --trajectories`.

A Solver's trace searches for the title of the passage that holds the answer, or for a key phrase of the question, reads
what BM25 finds first, and answers in the reference's words. A search that finds another passage makes no trace, so that
nobody is taught to answer what stands nowhere. A Challenger's trace looks its document up and asks for one field of it,
in words that rules let through. A reader's has the passage open.
"""

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.factbook import FACTBOOK, passage_of, read_lines
from retrieval.client import bm25_searcher
from retrieval.corpus import read_documents
from scope_selfplay.base.sampling import TextCodec
from scope_selfplay.base.values import Reason
from scope_selfplay.config.run import TasksConfig
from scope_selfplay.dialects.families import dialect
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.run.short_answers import read_pair
from scope_selfplay.search.searcher import show_passages
from scope_selfplay.store.files import write_atomic

KEY_PHRASES = {
    "capital": "capital of {}",
    "highest": "highest point of {}",
    "height": "height of the highest point of {}",
    "lowest": "lowest point of {}",
    "holiday": "national holiday of {}",
    "anthem": "national anthem of {}",
    "code": "internet country code of {}",
    "name": "official long name of {}",
}
BY_TITLE = 0.5
"""Share of the searches that name a title; the others are key phrases, which BM25 often takes to a neighbour."""
_FAMILY = dialect("qwen2.5")

Message = dict[str, Any]


class Script:
    """Writes traces under the bench's prompts; a result shows at most `max_tokens` of a passage, as in a run."""

    def __init__(self, pack: Pack, codec: TextCodec, max_tokens: int) -> None:
        documents = list(read_documents(FACTBOOK / "passages.jsonl"))
        self._pack, self._codec, self._max_tokens = pack, codec, max_tokens
        self._documents = {each.id: each for each in documents}
        self._searcher = bm25_searcher(documents)

    def write(self, path: Path, seed: int, *, solver: int, challenger: int, reader: int) -> None:
        """So many of each kind, about different training questions, in the order in which they are learnt."""
        rng = random.Random(seed)
        questions = rng.sample(read_lines("train"), len(read_lines("train")))
        half = len(questions) // 2
        answered, asked = self._answered(questions[:half], rng), self._asking(questions[half:])
        traces = [*islice(answered, solver), *islice(asked, challenger)]
        traces += [self._reading(question) for question in questions[half - reader : half]]
        lines = (
            json.dumps({"messages": each}, ensure_ascii=False) for each in rng.sample(traces, len(traces))
        )
        write_atomic(path, "".join(f"{line}\n" for line in lines))

    def _answered(self, questions: Sequence[dict[str, Any]], rng: random.Random) -> Iterator[list[Message]]:
        """None of a question whose search finds another passage, or a part of it that lacks the answer."""
        for question in questions:
            title = self._documents[passage_of(question["id"])].title
            phrase = KEY_PHRASES[question["group"]].format(title.rpartition(":")[0])
            query = title if rng.random() < BY_TITLE else phrase
            shown, answer = self._found(query), question["answers"][0]
            if answer in shown:
                given = {"question": question["question"], "search_syntax": _FAMILY.search_syntax}
                prompt = self._pack.render(PromptRole.SOLVER, **given)
                found = {"role": "tool", "content": shown}
                yield _trace(prompt, query, found, f"<answer>{answer}</answer>")

    def _asking(self, questions: Sequence[dict[str, Any]]) -> Iterator[list[Message]]:
        for question in questions:
            document = self._documents[passage_of(question["id"])]
            pair = f"{question['question']} | {question['answers'][0]}"
            if isinstance(read_pair(pair, document, TasksConfig()), Reason):
                continue
            given = {"document_title": document.title, "document_text": document.text}
            prompt = self._pack.render(PromptRole.CHALLENGER, **given, search_syntax=_FAMILY.search_syntax)
            # An episode shows the result and what follows it in one message.
            result = _FAMILY.tool_response(self._found(document.title))
            found = {"role": "user", "content": f"{result}\n{self._pack.render(PromptRole.CHALLENGER_FINAL)}"}
            yield _trace(prompt, document.title, found, f"<task>{pair}</task>")

    def _reading(self, question: dict[str, Any]) -> list[Message]:
        document = self._documents[passage_of(question["id"])]
        passages = f"{document.title}\n{document.text}"
        prompt = self._pack.render(
            PromptRole.SOLVER_READING, question=question["question"], passages=passages
        )
        answer = f"<answer>{question['answers'][0]}</answer>"
        return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]

    def _found(self, query: str) -> str:
        passages = asyncio.run(self._searcher.search(query, 1))
        return show_passages(passages, self._codec, self._max_tokens)[0]


def _trace(prompt: str, query: str, found: Message, last: str) -> list[Message]:
    call = {"function": {"name": "search", "arguments": {"query": query}}}
    search = {"role": "assistant", "tool_calls": [call]}
    return [{"role": "user", "content": prompt}, search, found, {"role": "assistant", "content": last}]
