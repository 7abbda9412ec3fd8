"""Tasks with a short answer that stands in their document, of task types with `answer: span`. No judge is asked.

    <task>question | answer</task>  ->  rules  ->  readers  ->  Solver episodes, compared with the answer

Rules cost nothing and come first. Readers are the Solver itself: with the document and passages near to it open they
must find the answer, and without any they must not. They only refuse: the answer is always the Challenger's, taken from
the text.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scope_selfplay.base.text import named_in, spaced
from scope_selfplay.base.values import (
    Check,
    Criterion,
    Document,
    ReaderAnswer,
    Reason,
    Rollout,
    Rubric,
    Task,
    rng_from,
)
from scope_selfplay.config.run import TasksConfig
from scope_selfplay.rewards.verify import f1

_QUESTION_MARKS = tuple("?？؟;՞፧")
_LONGEST_QUESTION = 300
NEAR = 4
"""Passages that readers have open beside the document."""
_REACHED = 0.8
"""F1 from which a reader's answer is the task's."""
_FEWEST_LETTERS = 3
"""Of an answer that is looked for within words of the question; any other is one of its words, or not there."""


class Pair(NamedTuple):
    """A question, its answer, and where that begins and ends in the document, in characters."""

    question: str
    answer: str
    span: tuple[int, int]


def read_pair(written: str, document: Document, settings: TasksConfig) -> Pair | Reason:
    """What a Challenger wrote, or the first gate that refuses it."""
    question, mark, answer = (part.strip() for part in written.rpartition("|"))
    if not mark or "\n" in question or len(question) > _LONGEST_QUESTION or not _letters(answer):
        return Reason.NO_QUESTION
    if not question.endswith(_QUESTION_MARKS):
        return Reason.NO_QUESTION
    if (span := span_of(answer, document.text)) is None:
        return Reason.NO_SPAN
    is_whole = _letters(answer) == _letters(document.text)
    refuses = {
        Reason.LONG_ANSWER: is_whole or len(spaced(answer).split()) > settings.longest_answer,
        Reason.GIVEN_AWAY: gives_away(question, answer),
        Reason.NO_SUBJECT: not names_subject(question, document.title),
    }
    return _first(refuses, settings) or Pair(question, answer, span)


def _first(refuses: Mapping[Reason, bool], settings: TasksConfig) -> Reason | None:
    """The first gate in use that refuses."""
    return next((gate for gate, holds in refuses.items() if holds and gate in settings.answer_gates), None)


def span_of(answer: str, text: str) -> tuple[int, int] | None:
    """Where it stands word for word, whatever white space is between the words; None where it stands nowhere."""
    own = r"\s+".join(map(re.escape, answer.split()))
    for found in re.finditer(own, text):
        begin, end = found.span()
        if not (_joined(text[begin - 1 : begin + 1]) or _joined(text[end - 1 : end + 1])):
            return begin, end
    return None


def _joined(pair: str) -> bool:
    """Whether two characters belong to one word."""
    return len(pair) == 2 and pair.isalnum() and len(spaced(pair).split()) == 1


def gives_away(question: str, answer: str) -> bool:
    """Whether the answer, its letters in any form, or these backwards stand in the question, or all its words do."""
    asked, letters = _letters(question), _letters(answer)
    has_word = sum(map(str.isalpha, letters)) >= _FEWEST_LETTERS
    if has_word and (letters in asked or letters[::-1] in asked):
        return True
    return {*_words(answer)} <= {*_words(question)}


def _words(text: str) -> list[str]:
    """As letters; in scripts that write no blanks each letter is one."""
    return [letters for word in spaced(text).split() if (letters := _letters(word))]


def _letters(text: str) -> str:
    """Letters and digits alone, in one form: small, without accents, of one width."""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    return "".join(letter for letter in folded if letter.isalnum())


def names_subject(question: str, title: str) -> bool:
    """Whether a name of the document's title is in the question, which has to stand alone: where it has no name, its
    first word with a capital, else any word of it. Without a title nothing can be said against a question.
    """
    words = title.split()
    names = named_in(f". {title}") or {word for word in words[:1] if word[:1].isupper()} or {*words}
    wanted = [f" {' '.join(found)} " for name in names if (found := _words(name))]
    asked = f" {' '.join(_words(question))} "
    return not wanted or any(name in asked for name in wanted)


def rubric_of(task: Task) -> Rubric:
    """One criterion, which a rule decides."""
    return Rubric(task_id=task.id, criteria=(Criterion(text="Is the answer.", check=Check.TEXT),))


def beside(document: Document, near: Sequence[Document], task: Task) -> str:
    """The document and those near to it, in an order of the task's own: nothing tells which of them it is about."""
    found = [document, *(each for each in near if each.id != document.id)]
    order = rng_from("readers", task.id).sample(found, len(found))
    return "\n\n".join(f"{each.title}\n{each.text}" for each in order)


def readings_of(task: Task, rollouts: Sequence[Rollout], opened: int) -> tuple[ReaderAnswer, ...]:
    """What readers answered, the first `opened` of them with passages, and what it shares with the task's answer."""
    return tuple(
        ReaderAnswer(
            answer=each.answer, f1=f1(each.answer or "", [task.reference or ""]), is_open=row < opened
        )
        for row, each in enumerate(rollouts)
    )


def refused_by_readers(readings: Sequence[ReaderAnswer], settings: TasksConfig) -> Reason | None:
    """None where enough of them found the answer in the passages, and none knew it without."""
    reached = [each for each in readings if each.f1 >= _REACHED]
    refuses = {
        Reason.MISREAD: sum(each.is_open for each in reached) < settings.readers.agree,
        Reason.KNOWN: any(not each.is_open for each in reached),
    }
    return _first(refuses, settings)
