"""Tasks with a short answer that stands in their document, of task types with `answer: span`. No judge is asked.

    <task>question | answer</task>  ->  rules  ->  readers  ->  Solver episodes, compared with the answer

Rules cost nothing and come first. Readers are the Solver itself: with the document and passages near to it open they
must find the answer, and without any they must not. They only refuse: the answer is always the Challenger's, taken from
the text.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scope_selfplay.base.text import letters_of, names_of, shown, spaced, stem_of
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
_REACHED = 0.8 - 1e-9
"""F1 from which a reader's answer is the task's."""
_LONGEST_WORD = 20
"""Letters that a word of an answer has at most on average."""
_PARTICLES = "은는이가을를의에와과도로만으였년일월"
"""With which Korean goes on behind a name or a number, without a blank."""
_REVERSED, _INSIDE = 4, 5
"""Letters from which an answer is given away backwards, and within a word."""
_IN_NUMBERS = ".,'’٫٬\u00a0\u202f"
"""Between the digits of one number."""
_LOOK_ALIKE = str.maketrans("авенікморстухјѕαβεικμνορτυχı013457", "abehikmopctyxjsabeikmnoptuxioleast")
"""Letters of Russian and Greek, and digits, that stand for Latin ones."""
_FEWEST_LETTERS = 3
"""Of a name with which a word of the question may begin, as `Aruba's` does; a shorter one is a word of it."""


class Pair(NamedTuple):
    """A question, its answer, and where that begins and ends in the document, in characters."""

    question: str
    answer: str
    span: tuple[int, int]


def read_pair(written: str, document: Document, settings: TasksConfig) -> Pair | Reason:
    """What a Challenger wrote, or the first gate that refuses it."""
    question, mark, answer = (part.strip() for part in shown(written).replace("｜", "|").rpartition("|"))
    if not mark or "\n" in question or len(question) > _LONGEST_QUESTION or not letters_of(answer):
        return Reason.NO_QUESTION
    if not _QUESTION.search(question):
        return Reason.NO_QUESTION
    if (span := span_of(answer, document.text)) is None:
        return Reason.NO_SPAN
    others = document.text[: span[0]] + document.text[span[1] :]
    # A letter of a script that writes no blanks is a third of a word.
    words = (2 * len(answer.split()) + len(spaced(answer).split())) / 3
    is_long = max(words, len(answer) / _LONGEST_WORD) > settings.longest_answer
    refuses = {
        Reason.LONG_ANSWER: is_long or not any(map(str.isalnum, others)),
        Reason.GIVEN_AWAY: gives_away(question, answer),
        Reason.NO_SUBJECT: not names_subject(question, document.title),
    }
    return _first(refuses, settings) or Pair(question, answer, span)


def _first(refuses: Mapping[Reason, bool], settings: TasksConfig) -> Reason | None:
    """The first gate in use that refuses."""
    return next((gate for gate, holds in refuses.items() if holds and gate in settings.answer_gates), None)


def span_of(answer: str, text: str) -> tuple[int, int] | None:
    """Where it stands word for word, whatever white space is between the words and whatever a prompt does not show is
    within them; None where it stands nowhere.
    """
    if hidden := {each for each in {*text} if not shown(each)}:
        places = [row for row, each in enumerate(text) if each not in hidden]
        seen = span_of(answer, "".join(text[row] for row in places))
        return seen and (places[seen[0]], places[seen[1] - 1] + 1)
    own = r"\s+".join(map(re.escape, answer.split()))
    # A sign and a decimal point belong to their number.
    before = rf"(?<!\d[{_IN_NUMBERS}])(?<!(?<!\w)[-−])" if answer[0].isdigit() else ""
    own = before + own + (rf"(?![{_IN_NUMBERS}]\d)" if answer[-1].isdigit() else "")
    for found in re.finditer(own, text):
        begin, end = found.span()
        ends = not _joined(text[end - 1 : end + 1]) or text[end] in _PARTICLES
        if ends and not _joined(text[begin - 1 : begin + 1]):
            return begin, end
    return None


def _joined(pair: str) -> bool:
    """Whether two characters belong to one word."""
    return len(pair) == 2 and pair.isalnum() and len(spaced(pair).split()) == 1


def gives_away(question: str, answer: str) -> bool:
    """Whether words of the question are the answer, its letters in any form, or these backwards, or all its words stand
    there; of a longer answer also whether a word begins, ends or goes on with it.
    """
    asked, words = ([word.translate(_LOOK_ALIKE) for word in _words(text)] for text in (question, answer))
    runs = {"".join(asked[begin:end]) for begin in range(len(asked)) for end in range(begin, len(asked) + 1)}
    forms = {letters := "".join(words)}
    if len(letters) >= _REVERSED:
        forms |= {letters[::-1], "".join(word[::-1] for word in words)}
    inside = len(letters) >= _INSIDE and any(form in word for form in forms for word in asked)
    return inside or bool(forms & runs) or (len(answer.split()) > 1 and {*words} <= {*asked})


def _words(text: str) -> list[str]:
    """As letters; in scripts that write no blanks each letter is one."""
    return [letters for word in re.split(r"[\s/–-]+", spaced(text)) if (letters := letters_of(word))]


def names_subject(question: str, title: str) -> bool:
    """Whether a word of the question, which has to stand alone, begins with what the title names. Without a title
    nothing can be said against a question.
    """
    asked = f" {' '.join(_words(question))} "
    subjects = [_subject(found) for name in names_of(title) if (found := _words(name))]
    return not subjects or any(subject in asked for subject in subjects)


def _subject(words: Sequence[str]) -> str:
    first = words[0]
    if len(words) > 1:
        # Without blanks nothing tells where a name ends.
        return f" {' '.join(words[:2] if len(first) == 1 else words)}"
    if len(first) < _FEWEST_LETTERS:
        return f" {first} "
    # Hebrew and Arabic write small words before it without a blank.
    return stem_of(first) if "\u0590" <= first[0] <= "\u06ff" else f" {stem_of(first)}"


def rubric_of(task: Task) -> Rubric:
    """One criterion, which a rule decides."""
    return Rubric(
        task_id=task.id, criteria=(Criterion(text=f"Is the answer: {task.reference}", check=Check.TEXT),)
    )


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
