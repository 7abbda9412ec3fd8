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
from scope_selfplay.rewards.verify import f1, number_normal

_QUESTION = re.compile(r"[?？؟\u037e፧]$|՞|[\u0370-\u03ff\u1f00-\u1fff][^;]*;$")
"""In Greek it ends with a semicolon, and in Armenian the mark stands within."""
_LONGEST_QUESTION = 300
NEAR = 4
"""Passages that readers have open beside the document."""
_REACHED = 0.8
"""F1 from which a reader's answer is the task's."""
_FEWEST_LETTERS = 3
"""Of a name with which a word of the question may begin, as `Aruba's` does; a shorter one is a word of it."""
_TITLE_WORD = 4
"""Letters of a word that tells what a title without names is about."""


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
    if not _QUESTION.search(question):
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
    # A sign and a decimal point belong to their number.
    before = r"(?<!\d[.,])(?<!(?<!\w)[-−])" if answer[0].isdigit() else ""
    own = before + own + (r"(?![.,]\d)" if answer[-1].isdigit() else "")
    for found in re.finditer(own, text):
        begin, end = found.span()
        if not (_joined(text[begin - 1 : begin + 1]) or _joined(text[end - 1 : end + 1])):
            return begin, end
    return None


def _joined(pair: str) -> bool:
    """Whether two characters belong to one word."""
    return len(pair) == 2 and pair.isalnum() and len(spaced(pair).split()) == 1


def gives_away(question: str, answer: str) -> bool:
    """Whether words of the question are the answer, its letters in any form, or these backwards, or all its words stand
    there.
    """
    asked, letters = _words(question), _letters(answer)
    runs = {"".join(asked[begin:end]) for begin in range(len(asked)) for end in range(begin, len(asked) + 1)}
    return bool({letters, letters[::-1]} & runs) or {*_words(answer)} <= {*asked}


def _words(text: str) -> list[str]:
    """As letters; in scripts that write no blanks each letter is one."""
    return [letters for word in re.split(r"[\s/–-]+", spaced(text)) if (letters := _letters(word))]


def _letters(text: str) -> str:
    """Letters and digits alone, in one form: small, without accents, of one width."""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    return "".join(letter for letter in folded if letter.isalnum())


def names_subject(question: str, title: str) -> bool:
    """Whether a word of the question, which has to stand alone, begins with a name of the document's title: where that
    has none, with any longer word of it, up to a colon. Without a title nothing can be said against a question.
    """
    words = title.partition(":")[0].split()
    names = {name for name in named_in(f". {title}") if any(map(str.isalpha, name))}
    names = names or {word for word in words if len(_letters(word)) >= _TITLE_WORD} or {*words}
    wanted = [
        f" {' '.join(found)}" + ("" if len(found) > 1 or len(found[0]) >= _FEWEST_LETTERS else " ")
        for name in names
        if (found := _words(name))
    ]
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
            answer=each.answer,
            f1=f1(each.answer or "", [task.reference or ""], normal=number_normal),
            is_open=row < opened,
        )
        for row, each in enumerate(rollouts)
    )


def refused_by_readers(readings: Sequence[ReaderAnswer], settings: TasksConfig) -> Reason | None:
    """None where enough of them found the answer in the passages, and none knew it without: who says nothing readable
    from memory, or would search, does not. Where none that had the passages can be read, nothing is known.
    """
    if Reason.MISREAD in settings.answer_gates and all(
        each.answer is None for each in readings if each.is_open
    ):
        return Reason.UNREAD
    reached = [each for each in readings if each.f1 >= _REACHED]
    refuses = {
        Reason.MISREAD: sum(each.is_open for each in reached) < settings.readers.agree,
        Reason.KNOWN: any(not each.is_open for each in reached),
    }
    return _first(refuses, settings)
