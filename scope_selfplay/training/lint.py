"""Finds where a model's chat template, rendered over a whole conversation, gives other tokens than the training rows.

We never train on re-rendered text. A difference shows where a serving stack that does render it again (an API that
takes messages) would give the policy another prompt than it was trained on, and what a template does to a turn.
"""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.base.sampling import Message, ScriptedModel
from scope_selfplay.base.values import Passage, Rollout, Turn
from scope_selfplay.dialects.families import DIALECTS, Dialect, dialect
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.policy import episodes
from scope_selfplay.search.searcher import Searcher
from scope_selfplay.search.tools import searching
from scope_selfplay.training.passes import rows_from

_FAMILIES = tuple(family.name for family in DIALECTS)


class DifferenceKind(StrEnum):
    TEXT = "text"
    """The template writes something else than the row has."""
    TOKENS = "tokens"
    """The same text in other tokens."""


class TokenDifference(NamedTuple):
    """One stretch of a row; `position` counts from the start of the prompt, or of the completion."""

    dialect: str
    episode: str
    row: int
    in_completion: bool
    position: int
    kind: DifferenceKind
    ours: tuple[int, ...]
    ours_text: str
    template: tuple[int, ...]
    template_text: str


class _Turn(NamedTuple):
    """Its thinking (None: no think block), and what it searches or ends with."""

    thinking: str | None
    search: str = ""
    final: str = ""


_TASK = "a task with an invalid turn"
SCRIPTS = {
    "one search": (_Turn("Who built it?", "the dam of Orsk"), _Turn("It is known.", final="Ana Reyes.")),
    "two searches": (
        _Turn("First the dam.", "dam"),
        _Turn("Now its builder.", 'the "Great" dam'),
        _Turn("Done.", final="1931."),
    ),
    "an answer at once": (_Turn("This is known.", final="Four of them."),),
    "no thinking": (_Turn(None, "dam"), _Turn(None, final="Four.")),
    "other scripts": (_Turn("数える", "naïve 東京 😀"), _Turn("да", final="東京\n\nи ещё.")),
    "blank thinking": (_Turn("", "dam"), _Turn("", final="Four.")),
    _TASK: (
        _Turn("What is new here?"),
        _Turn("Then this.", "dam"),
        _Turn("Ready.", final="Who built the dam?"),
    ),
}
"""The last one is a Challenger's, the others are a Solver's."""


@click.command("lint-tokens")
@click.argument("model")
@click.option("--dialect", "names", type=click.Choice(_FAMILIES), multiple=True, help="Only these families.")
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
def lint_tokens_command(model: str, names: tuple[str, ...], as_json: bool) -> None:
    """Compare training rows with the chat template of MODEL, a Hugging Face directory.

    Scripted episodes are rendered again as a whole conversation; every stretch of tokens that differs is
    reported. Exit 64 when there is one, 0 when there is none.
    """
    codec = ChatCodec.load(policy_path(model) if model == "embedded" else Path(model))
    found = {name: lint_tokens(codec, dialect(name)) for name in names or _FAMILIES}
    if as_json:
        lines = {name: [each._asdict() for each in differences] for name, differences in found.items()}
        click.echo(json.dumps(lines, indent=1, ensure_ascii=False))
    for name, differences in () if as_json else found.items():
        click.echo(f"{name}: {len(differences)} difference(s)")
        for diff in differences:
            place = "completion" if diff.in_completion else "prompt"
            click.echo(
                f"  {diff.episode}, row {diff.row}, {place} token {diff.position} ({diff.kind}): "
                f"{list(diff.ours)} {diff.ours_text!r}, template {list(diff.template)} {diff.template_text!r}"
            )
    if any(found.values()):
        sys.exit(ExitCode.USER)


def lint_tokens(codec: ChatCodec, family: Dialect) -> list[TokenDifference]:
    """Every difference over all scripts, in the order of scripts, rows and tokens."""
    return [difference for script in SCRIPTS for difference in _differences(codec, family, script)]


def _differences(codec: ChatCodec, family: Dialect, script: str) -> Iterator[TokenDifference]:
    rollout, messages = _play(codec, family, script)
    decode = partial(codec.tokenizer.decode, clean_up_tokenization_spaces=False)
    drops = family.drops_earlier_thinking
    # Where thinking is dropped, the template renders each turn in a conversation of its own.
    shown = [(turn,) for turn in rollout.turns] if drops else [rollout.turns]
    rows = [row for turns in shown for row in rows_from(rollout.model_copy(update={"turns": turns}))]
    for number, row in enumerate(rows):
        until = number + 1 if len(rows) > 1 else len(rollout.turns)
        theirs = _render(codec, messages, rollout.turns[:until], drops=drops)
        ours = (*row.prompt_ids, *row.completion_ids)
        compared = SequenceMatcher(None, ours, theirs, autojunk=False)
        for what, start, end, first, last in compared.get_opcodes():
            # The template also ends the last turn, which not every family samples.
            closing = start == len(ours) and first < len(theirs) and theirs[first] in codec.end_ids
            if what == "equal" or closing:
                continue
            ids, template = ours[start:end], theirs[first:last]
            text, template_text = (str(decode(list(part))) for part in (ids, template))
            kind = DifferenceKind.TOKENS if text == template_text else DifferenceKind.TEXT
            inside = start >= len(row.prompt_ids)
            place = (number, inside, start - len(row.prompt_ids) if inside else start)
            yield TokenDifference(family.name, script, *place, kind, ids, text, template, template_text)


def _play(codec: ChatCodec, family: Dialect, script: str) -> tuple[Rollout, list[list[Message]]]:
    """A scripted rollout, and the messages before each of its turns (the prompt first, then results)."""
    recording, key = _RecordingCodec(codec), (script,)
    form = episodes.PolicyFormat(recording, family, "script", episodes.RolloutLimits(100_000))
    episode = episodes.solver_episode(form, key, task_id="t", prompt="Who built it?", max_search_turns=5)
    if script == _TASK:
        prompts = episodes.ChallengerPrompts(
            opening="Write a task about Orsk.",
            after_search=lambda left: f"{left} searches are left.",
            after_invalid=lambda left: f"Nothing was searched. {left} searches are left.",
            closing="Now write the task.",
        )
        limits = {"search_turns": 1, "max_invalid": 1}
        episode = episodes.challenger_episode(form, key, document_id="d", prompts=prompts, **limits)
    texts = [_write_turn(family, turn, "task" if script == _TASK else "answer") for turn in SCRIPTS[script]]
    model = ScriptedModel(codec, lambda prompt, key: texts[int(key[-1])])
    rollout = asyncio.run(episodes.run_episode(episode, model, searching(_FixedRetriever(), 1), key=key))
    return rollout, recording.messages


def _write_turn(family: Dialect, turn: _Turn, tag: str) -> str:
    """A turn as the family's own models write it."""
    gap = "\n" if family.native_thinking else ""
    thinking = "" if turn.thinking is None else f"<think>{gap}{turn.thinking}{gap}</think>\n{gap}"
    if turn.search:
        return thinking + family.search_call(turn.search)
    return thinking + (f"<{tag}>{turn.final}</{tag}>" if turn.final else "I am not sure yet.")


def _render(
    codec: ChatCodec, messages: Sequence[Sequence[Message]], turns: Sequence[Turn], *, drops: bool
) -> tuple[int, ...]:
    """The conversation up to these turns, as the template renders it as a whole."""
    conversation: list[dict[str, Any]] = []
    for number, (before, turn) in enumerate(zip(messages, turns, strict=False)):
        cut = drops and number < len(turns) - 1
        text = turn.text.rpartition("</think>")[2].lstrip("\n") if cut else turn.text
        conversation += [message._asdict() for message in (*before, Message("assistant", text))]
    text = codec.tokenizer.apply_chat_template(conversation, tokenize=False)
    return tuple(codec.tokenizer(text, add_special_tokens=False)["input_ids"])


class _FixedRetriever(Searcher):
    identity = "script"

    async def search(self, query: str, topk: int) -> list[Passage]:
        return [Passage(id="p1", title="Orsk", text="The dam was built in 1931 by Ana Reyes.")]


class _RecordingCodec(ChatCodec):
    """A codec that also records the messages that it encodes."""

    def __init__(self, codec: ChatCodec) -> None:
        super().__init__(codec.tokenizer)
        self.messages: list[list[Message]] = []

    def encode_prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        self.messages.append(list(messages))
        return super().encode_prompt(messages)

    def encode_next(self, messages: Sequence[Message], *, sampled: Sequence[int]) -> tuple[int, ...]:
        self.messages.append(list(messages))
        return super().encode_next(messages, sampled=sampled)
