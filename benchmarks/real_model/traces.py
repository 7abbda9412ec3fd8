"""Scripted traces of real questions, from which the supervised start learns the protocol: JSON lines for
`python -m jobs warm-start --trajectories`.

A Solver's trace searches for the title of the passage that holds the answer, or for a key phrase of the question, reads
what BM25 finds first, and answers in the reference's words. A search that finds another passage makes no trace, so that
nobody is taught to answer what stands nowhere. A Challenger's trace looks its document up and asks for one field of it.
"""

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.real_model_answers import FACTBOOK, passage_of, read_lines
from retrieval.client import bm25_searcher
from retrieval.corpus import read_documents
from scope_selfplay.base.sampling import TextCodec
from scope_selfplay.base.values import Passage
from scope_selfplay.dialects.families import dialect
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.search.searcher import show_passages

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


@dataclass(frozen=True)
class Script:
    """Writes traces under the bench's prompts; a result shows at most `max_tokens` of a passage, as in a run."""

    pack: Pack
    codec: TextCodec
    max_tokens: int

    @cached_property
    def passages(self) -> dict[str, Passage]:
        documents = read_documents(FACTBOOK / "passages.jsonl")
        return {each.id: Passage(id=each.id, title=each.title, text=each.text) for each in documents}

    @cached_property
    def _searcher(self) -> Any:
        return bm25_searcher(list(read_documents(FACTBOOK / "passages.jsonl")))

    def traces(self, seed: int, *, solver: int, challenger: int) -> list[list[Message]]:
        """So many of both roles, about different training questions, in the order in which they are learnt."""
        rng = random.Random(seed)
        questions = rng.sample(read_lines("train"), len(read_lines("train")))
        answered = self._answered(questions, rng)
        traces = [next(answered) for _ in range(solver)]
        traces += [self.asking(question) for question in questions[-challenger:]] if challenger else []
        return rng.sample(traces, len(traces))

    def _answered(self, questions: Sequence[dict[str, Any]], rng: random.Random) -> Iterator[list[Message]]:
        for question in questions:
            by_title = rng.random() < BY_TITLE
            trace = self.answering(question, by_title=by_title)
            if trace is not None:
                yield trace

    def answering(self, question: dict[str, Any], *, by_title: bool) -> list[Message] | None:
        """None where the search finds another passage, or the part that is shown lacks the answer."""
        title = self.passages[passage_of(question["id"])].title
        country = title.rpartition(":")[0]
        query = title if by_title else KEY_PHRASES[question["group"]].format(country)
        shown = self._found(query)
        answer = question["answers"][0]
        if answer not in shown:
            return None
        prompt = self.pack.render(
            PromptRole.SOLVER, question=question["question"], search_syntax=_FAMILY.search_syntax
        )
        return [
            {"role": "user", "content": prompt},
            _search(query),
            {"role": "tool", "content": shown},
            {"role": "assistant", "content": f"<answer>{answer}</answer>"},
        ]

    def asking(self, question: dict[str, Any]) -> list[Message]:
        document = self.passages[passage_of(question["id"])]
        prompt = self.pack.render(
            PromptRole.CHALLENGER,
            document_title=document.title,
            document_text=document.text,
            search_syntax=_FAMILY.search_syntax,
        )
        # An episode shows the result and what follows it in one message.
        result = _FAMILY.tool_response(self._found(document.title))
        closing = self.pack.render(PromptRole.CHALLENGER_FINAL)
        return [
            {"role": "user", "content": prompt},
            _search(document.title),
            {"role": "user", "content": f"{result}\n{closing}"},
            {"role": "assistant", "content": f"<task>{question['question']}</task>"},
        ]

    def _found(self, query: str) -> str:
        passages = asyncio.run(self._searcher.search(query, 1))
        return show_passages(passages, self.codec, self.max_tokens)[0]


def _search(query: str) -> Message:
    return {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "search", "arguments": {"query": query}}}],
    }


def write_traces(path: Path, traces: Sequence[Sequence[Message]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"messages": list(trace)}, ensure_ascii=False) + "\n" for trace in traces]
    path.write_text("".join(lines), encoding="utf-8")
