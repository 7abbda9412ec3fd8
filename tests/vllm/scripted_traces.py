"""Scripted traces of both roles about real passages, as episodes of the pack `embedded` are.

A small model that has seen two dozen of them keeps to the protocol, most of the time.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.factbook import read_lines
from scope_selfplay.base.values import Passage
from scope_selfplay.dialects.families import dialect
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.search.searcher import show_passages

PACK = load_pack(Path(__file__).resolve().parents[2] / "prompts" / "embedded")
_FAMILY = dialect("qwen2.5")
_ABOUT_LAND = ("highest", "lowest", "height")


def write_traces(file: Path, codec: ChatCodec, *, countries: int, tokens: int) -> None:
    """Both roles in turn, each about a country of its own; a passage is shown up to so many tokens."""
    passages = {row["id"]: _passage(row, codec, tokens) for row in read_lines("passages")}
    lines: list[str] = []
    for question, shown, other in _answered_in(passages):
        turn = _solver if len(lines) % 2 else _challenger
        lines.append(json.dumps({"messages": turn(question, shown, other, codec, tokens)}))
        if len(lines) == countries:
            break
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _passage(row: dict[str, Any], codec: ChatCodec, tokens: int) -> Passage:
    title, _, text = row["contents"].partition("\n")
    return Passage(id=row["id"], title=title.strip('"'), text=codec.truncate(text, tokens))


def _answered_in(passages: dict[str, Passage]) -> Iterator[tuple[dict[str, Any], Passage, Passage]]:
    """A question of each country, the passage that answers it, and the country's other one."""
    seen: dict[str, int] = {}
    for number, question in enumerate(read_lines("train")):
        country = question["id"].partition("-")[0]
        names = [f"{country}-government", f"{country}-geography"]
        shown, other = (
            passages.get(name) for name in names[:: -1 if question["group"] in _ABOUT_LAND else 1]
        )
        if country in seen or shown is None or other is None or question["answers"][0] not in shown.text:
            continue
        # Both roles, which take turns, are asked about both passages.
        if len(seen) // 2 % 2 == (question["group"] in _ABOUT_LAND):
            seen[country] = number
            yield question, shown, other


def _solver(
    question: dict[str, Any], shown: Passage, other: Passage, codec: ChatCodec, tokens: int
) -> list[dict[str, str]]:
    prompt = PACK.render(PromptRole.SOLVER, question=question["question"])
    found = _FAMILY.tool_response(show_passages([shown], codec, tokens)[0])
    answer = question["answers"][0]
    return _conversation(prompt, shown, found, f"<think>It says {answer}.</think>\n<answer>{answer}</answer>")


def _challenger(
    question: dict[str, Any], shown: Passage, other: Passage, codec: ChatCodec, tokens: int
) -> list[dict[str, str]]:
    kind = PACK.domain.task_types[0]
    prompt = PACK.render(
        PromptRole.CHALLENGER,
        document_title=other.title,
        document_text=other.text,
        task_type=kind.name,
        task_description=kind.description,
        search_turns=1,
        search_syntax=_FAMILY.search_syntax,
    )
    found = _FAMILY.tool_response(show_passages([shown], codec, tokens)[0])
    final = PACK.render(PromptRole.CHALLENGER_FINAL)
    thought = f"<think>It says {question['answers'][0]}.</think>"
    return _conversation(
        prompt, shown, f"{found}\n{final}", f"{thought}\n<task>{question['question']}</task>"
    )


def _conversation(prompt: str, shown: Passage, found: str, last: str) -> list[dict[str, str]]:
    search = f"<think>I search for {shown.title}.</think>\n{_FAMILY.search_call(shown.title)}"
    said = [prompt, search, found, last]
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(said)]
