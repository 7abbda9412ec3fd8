"""Untrusted text for a judge's prompt, its tags made harmless, between marks that its writer cannot guess.

    <<<answer 4f1d2a9c0b7e>>>
    text of the Solver
    <<<end 4f1d2a9c0b7e>>>

The mark is a keyed hash (HMAC) of the text itself: whoever wrote the text had no key, and the same text has
the same mark in every prompt, so the K criteria of one answer share their beginning and calls repeat. The
visible name says what is inside; `read_fences` finds it again (the embedded judge behind a server does).

What a document says may end in a rubric, and so in the records: there only control tokens of the judge are written
otherwise, which its server would make of the text.
"""

import hashlib
import hmac
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.text import FAMILIES, TAGS, ControlTags, clean, is_blank, plain
from scope_selfplay.base.values import Rollout, Truncation, Turn
from scope_selfplay.config.judge import EndpointConfig
from scope_selfplay.dialects.families import ANSWER_TAGS, DIALECTS, split_thinking
from scope_selfplay.net.client import Client, HttpFault
from scope_selfplay.net.json import parse_object

MARK_DIGITS = 12
LIMIT = 100_000
"""Characters of one slot (about 25,000 tokens): longer text is cut, for every candidate at the same place."""

_CANDIDATE = "candidate"
_OPEN = "<<<"
_CLOSE = ">>>"

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_SYLLABLES = tuple(consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS)


class Fencer:
    """Puts text between marks. `key` is secret from every policy; `limit`: most characters of one slot, once cleaned.

    `truncation`: what a longer text loses. `tags`: what the judge takes for control.
    """

    def __init__(
        self,
        key: bytes,
        *,
        limit: int = LIMIT,
        truncation: Truncation = Truncation.END,
        tags: ControlTags = FAMILIES,
    ) -> None:
        self._key = key
        self._limit = limit
        self._truncation = truncation
        self._tokens, self._tags = tags, ControlTags(tags.tokens, ours=True)

    def fence(self, name: str, text: str, *, limit: int | None = None, is_word_for_word: bool = False) -> str:
        """`text`, cleaned and cut, between marks that show `name`."""
        return self._fence(name, text, clean(text, self._tokens if is_word_for_word else self._tags), limit)

    def label(self, text: str, taken: Sequence[str] = ()) -> str:
        """A pronounceable name for one candidate, from its text alone; another one where it is `taken`."""
        digests = (self._digest("label", f"{attempt}\x1f{text}") for attempt in itertools.count())
        labels = ("".join(_SYLLABLES[byte % len(_SYLLABLES)] for byte in digest[:5]) for digest in digests)
        return next(label for label in labels if label not in taken)

    def candidate(self, label: str, parts: Sequence[tuple[str, str]], *, limit: int | None = None) -> str:
        """One candidate under its label; every part (name, text) is in a fence of its own.

        The limit holds for all parts together, the last one (the answer) first: it is what is judged.
        """
        left = self._limit if limit is None else min(limit, self._limit)
        shown: list[str] = []
        for name, text in reversed(parts):
            cleaned = clean(text, self._tags)
            shown.append(self._fence(name, text, cleaned, left))
            left = max(0, left - len(cleaned))
        return _between(_CANDIDATE, label, "\n".join(reversed(shown)))

    def _fence(self, name: str, text: str, cleaned: str, limit: int | None) -> str:
        most = self._limit if limit is None else min(limit, self._limit)
        return _between(name, self._digest(name, text).hex()[:MARK_DIGITS], self._cut(cleaned, most))

    def _cut(self, text: str, most: int) -> str:
        if len(text) <= most:
            return text
        head = most - most // 2 if self._truncation is Truncation.MIDDLE else most
        shown = f"{text[:head]}\n[cut here: {len(text) - most} more characters]"
        return shown + (f"\n{text[len(text) - most + head :]}" if head < most else "")

    def _digest(self, name: str, text: str) -> bytes:
        message = f"{name}\x1f{text}".encode("utf-8", "surrogatepass")
        return hmac.new(self._key, message, hashlib.sha256).digest()


def fence_key(*secret: str | int) -> bytes:
    """The key of a run's fences, from its seed; it is in no prompt."""
    return hashlib.sha256("\x1f".join(["scope fences", *map(str, secret)]).encode()).digest()


@dataclass(frozen=True)
class Fenced:
    """One fence as it is in a prompt: `text` without the fences inside it, which are `inner`."""

    name: str
    mark: str
    text: str
    inner: tuple["Fenced", ...] = ()


def read_fences(prompt: str) -> tuple[Fenced, ...]:
    """The fences of a rendered prompt in order. Raises ValueError where one has not its own end."""
    return _read(prompt)[1]


def text_outside(prompt: str) -> str:
    """A prompt's own words, without what is inside fences. Raises ValueError like `read_fences`."""
    return _read(prompt)[0]


def _read(prompt: str) -> tuple[str, tuple[Fenced, ...]]:
    # The prompt itself is as a fence that never ends: its lines, and the fences in it.
    opened: list[tuple[str, str, list[str], list[Fenced]]] = [("", "", [], [])]
    for line in prompt.split("\n"):
        mark = _mark_of(line)
        name, own, lines, inner = opened[-1]
        # A text of others is in every fence but a candidate's, and there is nothing else than its own end.
        if mark is None or (name not in ("", _CANDIDATE) and mark != ("end", own)):
            lines.append(line)
        elif mark[0] != "end":
            opened.append((*mark, [], []))
        elif own == mark[1]:
            opened.pop()
            opened[-1][3].append(Fenced(name, own, "\n".join(lines), tuple(inner)))
        else:
            raise ValueError(f"the fence end {mark[1]} closes nothing that is open")
    name, own, lines, inner = opened[-1]
    if len(opened) > 1:
        raise ValueError(f"the fence {name} {own} is never closed")
    return "\n".join(lines), tuple(inner)


def _mark_of(line: str) -> tuple[str, str] | None:
    if not (line.startswith(_OPEN) and line.endswith(_CLOSE)):
        return None
    name, space, mark = line[len(_OPEN) : -len(_CLOSE)].partition(" ")
    return (name, mark) if space and name and mark else None


def _between(name: str, mark: str, text: str) -> str:
    return f"{_OPEN}{name} {mark}{_CLOSE}\n{text}\n{_OPEN}end {mark}{_CLOSE}"


NO_ANSWER = "(no answer)"
_RESULTS = "results"
_CALLS = tuple(family.search_tags[0] for family in DIALECTS)

# Answers that only announce an answer have fooled model judges into full marks; they hold nothing to grade.
OPENERS = (
    *("", "thought process", "let's solve this step by step", "let's solve this problem step by step"),
    *("let's think step by step", "let me solve this step by step", "solution", "the solution", "answer"),
    *("the answer is", "final answer", "the final answer is", "response", "final response", "conclusion"),
    *"\u89e3 \u89e3\u7b54 \u7b54\u6848 \u7b54 \u6700\u7ec8\u7b54\u6848 \u89e3\u51b3\u65b9\u6848".split(),
    *"\u304b\u3044\u305b\u3064 \u89e3\u8aac \ub2f5 \uc815\ub2f5".split(),
    *"\u0440\u0435\u0448\u0435\u043d\u0438\u0435 \u043e\u0442\u0432\u0435\u0442".split(),
    *"respuesta soluci\u00f3n r\u00e9ponse l\u00f6sung antwort resposta soluzione risposta".split(),
)
_LONGEST_OPENER = 80


class View(StrEnum):
    """What of a rollout a judge is shown: its answer, its whole trace, which ends with the answer, or its core: the
    trace without what the tools returned.
    """

    ANSWER = "answer"
    CORE = "core"
    TRACE = "trace"


@dataclass(frozen=True)
class Shown:
    """`parts` are (name, text) in the order shown, the answer last."""

    parts: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """All of it as one text: equal ones get equal labels."""
        return "\x1f".join(text for _, text in self.parts)

    @property
    def identity(self) -> str:
        """Equal for what is one and the same to a judge, so that nobody needs to be asked which is better: up to the
        limit, in its plain form, with white space run together.
        """
        plainly = ((name, " ".join(plain(clean(text, TAGS)[:LIMIT]).split())) for name, text in self.parts)
        return "\x1f".join(map("\x1e".join, plainly))


def shown(rollout: Rollout, view: View) -> Shown:
    """The answer alone, or behind all that led to it: thoughts, searches, what they found, reasoning in the open."""
    answer = ("answer", shown_answer(rollout.answer))
    if view is View.ANSWER:
        return Shown((answer,))
    parts = [part for turn in rollout.turns for part in _parts_of(turn)]
    if view is View.CORE:
        parts = [part for part in parts if part[0] != _RESULTS]
    return Shown((*parts, answer))


def shown_answer(answer: str | None) -> str:
    """An answer as a judge compares it; one that only announces an answer is shown as none."""
    return NO_ANSWER if answer is None or is_opener(answer) else answer


def without_thoughts(rollout: Rollout) -> Rollout:
    """The response alone: what stands inside think tags is gone, as if the policy had not written it."""
    turns = (turn.model_copy(update={"thinking": None, "text": _open_text(turn)}) for turn in rollout.turns)
    return rollout.model_copy(update={"turns": tuple(turns)})


def _parts_of(turn: Turn) -> list[tuple[str, str]]:
    parts = [("thought", turn.thinking)] if turn.thinking else []
    ends, call = [ANSWER_TAGS[0]], turn.call
    if turn.query is not None or call is not None:
        ends += [*_CALLS, *([f"<{call.tool}>"] if call else [])]
    # Many models reason outside of any think tags, before they answer or search.
    reasoning = re.split("|".join(map(re.escape, ends)), _open_text(turn))[0].strip()
    parts += [("reasoning", reasoning)] if reasoning else []
    if turn.query is not None:
        found = "\n".join(f"{passage.title}: {passage.text}" for passage in turn.passages)
        return [*parts, ("search", turn.query), (_RESULTS, found)]
    if call is not None:
        return [*parts, ("call", f"{call.tool} {call.arguments}"), (_RESULTS, call.result)]
    return parts


def _open_text(turn: Turn) -> str:
    return split_thinking(turn.text, may_begin_inside=turn.thinking is not None)[1]


def is_opener(answer: str | None) -> bool:
    """Whether an answer is none, says nothing, or only announces one."""
    if answer is None or is_blank(answer):
        return True
    return len(answer) < _LONGEST_OPENER and _OPENERS.fullmatch(_bare(answer)) is not None


def _bare(text: str) -> str:
    """The words alone, in small letters."""
    letters = plain(text.replace("'", "").replace("\u2019", "")).casefold()
    return " ".join("".join(each if each.isalnum() else " " for each in letters).split())


# One behind the other announces no more than one.
_OPENERS = re.compile(
    f"(?:(?:{'|'.join(sorted(filter(None, map(_bare, OPENERS)), key=len, reverse=True))}) ?)+"
)


_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_LONGEST_PROBE = 2_000
"""Tokens that are checked at the start."""


def tokens_in_files(path: Path) -> frozenset[str]:
    """The special tokens that a tokenizer's folder, or one of its files, names. Raises ConfigError for none."""
    files = [path / name for name in _FILES] if path.is_dir() else [path]
    found: set[str] = set()
    for file in files:
        try:
            found |= tokens_of(parse_object(file.read_bytes()))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise ConfigError(f"judge.endpoint.tokenizer: {file}: cannot be read: {error}") from None
    if not found:
        raise ConfigError(
            f"judge.endpoint.tokenizer: {path}: names no special tokens; give the model's folder or its tokenizer.json"
        )
    return frozenset(found)


def tokens_of(settings: dict[str, Any]) -> set[str]:
    """The special and added tokens that a tokenizer's JSON names, wherever it keeps them."""
    rows = [value for name, value in settings.items() if name.endswith("_token")]
    for name in ("added_tokens", "added_tokens_decoder", "additional_special_tokens"):
        named = settings.get(name)
        rows += named.values() if isinstance(named, dict) else named if isinstance(named, list) else ()
    texts = (row.get("content") if isinstance(row, dict) else row for row in rows)
    return {text for text in texts if isinstance(text, str) and text.strip()}


async def ask_special_tokens(client: Client, endpoint: EndpointConfig) -> frozenset[str]:
    """What is known of one endpoint's special tokens; empty where neither files nor the endpoint tell.

    Raises ConfigError where a token survives cleaning.
    """
    if endpoint.tokenizer is not None:
        tokens = tokens_in_files(Path(endpoint.tokenizer).expanduser())
    else:
        tokens = frozenset(tokens_of(await _ask(client, "GET", "/tokenizer_info")))
    await _check(client, endpoint, tokens)
    return tokens


async def _check(client: Client, endpoint: EndpointConfig, tokens: frozenset[str]) -> None:
    """Raises ConfigError where the endpoint's tokenizer still makes a special token of a cleaned one."""
    tags = ControlTags(tokens)
    dangerous = [token for token in sorted(tokens) if not token.isalnum()][:_LONGEST_PROBE]
    probe = clean(" ".join(dangerous), tags)
    asked: dict[str, object] = {"model": endpoint.model, "prompt": probe}
    asked |= {"add_special_tokens": False, "return_token_strs": True}
    found = (await _ask(client, "POST", "/tokenize", asked)).get("token_strs")
    strings = {each for each in found if isinstance(each, str)} if isinstance(found, list) else set()
    survivors = sorted(strings & {token for token in dangerous if clean(token, tags) != token})
    if survivors:
        raise ConfigError(
            f"{client.url}: its tokenizer makes control tokens of {', '.join(survivors[:5])} although they were "
            "cleaned; please report the model"
        )


async def _ask(
    client: Client, method: str, path: str, asked: dict[str, object] | None = None
) -> dict[str, Any]:
    """The endpoint's answer; nothing where it has no such page."""
    try:
        body = None if asked is None else json.dumps(asked).encode()
        return await client.ask(method, path, body, at_root=True)
    except HttpFault:
        return {}
