"""What a checkup consists of: measured values, the bounds that they are held against, the tasks behind warnings; and
what an iteration's tasks are like: suspect of injection, near duplicates, of one pattern, in need of their searches.

Near duplicates are found by MinHash over word trigrams, so that a corpus of any size takes one pass. A Challenger's
search is needed when it was the only one to find a document that the rubric names as evidence; where it names none,
when its passages hold a name or a number that the rubric asks for and that is neither in the source document nor in
another search's passages.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from scope_selfplay.base.intervals import Estimate
from scope_selfplay.base.text import SIGNS, named_in, spaced, words_of
from scope_selfplay.base.values import GATES, Document, Value
from scope_selfplay.corpus.screen import near_copies
from scope_selfplay.store.reader import RunReader

LOOKS = 5
"""Intervals hold 99 %, as five of 95 % at once: a run asks dozens of questions, and chance must not answer them."""
LEAST_TASKS = 20
"""Signals that compare tasks or answers by their words, and those with intervals, say nothing about fewer."""


class Bounds(NamedTuple):
    """What a signal is called, where it is healthy, what an unhealthy value often means, and its unit."""

    title: str
    low: float | None
    high: float | None
    meaning: str
    unit: str = "share"


_NO_GRADIENT = "steps without gradient"

BOUNDS: Mapping[str, Bounds] = {
    "acceptance": Bounds("candidates kept", 0.1, None, "most of the generation is thrown away"),
    "target_share": Bounds(
        "tasks of tasks.target",
        1.0,
        None,
        "documents or candidates ran out, so the Solver trains fewer steps",
    ),
    "mean_score": Bounds(
        "mean score of tried tasks", 0.3, 0.7, "tasks have left the Solver's frontier (0.5)", "0-1"
    ),
    **{
        gate.label: Bounds(f"pass the {gate} gate", terms.healthy_share, None, terms.low_share_means)
        for gate, terms in GATES.items()
    },
    "grounded": Bounds(
        "rubrics that the documents hold", 0.2, None, "tasks ask for what their searches did not find"
    ),
    "unresolved": Bounds("unresolved by a fault", None, 0.05, "the judge or the search fails"),
    "judge_failures": Bounds("verdicts that failed", None, 0.02, "see the judge's log"),
    "suspect_tasks": Bounds(
        "tasks suspect of injection", None, 0.01, "the Challenger has begun to write to judges or policies"
    ),
    "duplicates": Bounds("near duplicates", None, 0.1, "the Challenger repeats itself"),
    "common_pattern": Bounds("tasks of the commonest pattern", None, 0.5, "the Challenger asks one thing"),
    "searches_needed": Bounds(
        "searches that a rubric needs", 0.3, None, "tasks can be answered without them"
    ),
    "solver_gain": Bounds(
        "held-out score against the Solver that it was trained from", 0.0, None, "the Solver is worse", "0-1"
    ),
    "repeated_sentences": Bounds(
        "held-out answers that say a sentence twice", None, 0.2, "repetition is not punished"
    ),
    "suspect_answers": Bounds(
        "answers suspect of injection", None, 0.01, "the Solver has begun to write to its judge"
    ),
    "answer_growth": Bounds(
        "held-out answers against S_0's", 0.5, 2.0, "length is being learnt, not content", "times"
    ),
    "length_correlation": Bounds(
        "correlation of length and score among answers to one task",
        None,
        0.8,
        "the length decides the score",
        "-1-1",
    ),
    "same_score": Bounds("tried tasks whose rollouts all score alike", None, 0.5, "they teach nothing"),
    "zero_variance": Bounds("Solver's training groups without variance", None, 0.5, _NO_GRADIENT),
    "zero_variance_challenger": Bounds(
        "Challenger's training groups without variance", None, 0.5, _NO_GRADIENT
    ),
    "canary_accuracy": Bounds(
        "canaries judged right", 0.9, None, "the judge errs where the right verdict is known"
    ),
    "judge_agreement": Bounds(
        "judgements that agree when asked again", 0.85, None, "much of what is rewarded is chance"
    ),
    "position_bias": Bounds(
        "what being shown first adds to a win",
        -0.05,
        0.05,
        "the place decides comparisons; ask in both orders",
        "-1-1",
    ),
    "length_bias": Bounds(
        "what words that say nothing add to a verdict", -0.05, 0.05, "the judge goes by length", "-1-1"
    ),
    "judge_drift": Bounds(
        "change in the share met by the same answers", -0.1, 0.1, "the judge is not the one it was", "-1-1"
    ),
    "judge_unread": Bounds(
        "judgements asked again that cannot be read", None, 0.02, "what it refuses to judge is masked"
    ),
}
"""Every one has a bound; the last five are an audit's alone."""


SHOWN = 5
"""Tasks that are named behind a warning."""
LONGEST_TEXT = 400
"""Characters of a task or an answer that are shown; the task's own page shows all."""


class Evidence(Value):
    """A task behind a warning, and the answer or criterion in which it is seen; "" where that is the task itself.

    `iteration` is the one that made the task; 0 for held-out tasks.
    """

    iteration: int
    task_id: str
    task: str
    shown: str = ""


@dataclass(frozen=True)
class Signal:
    """What was measured of one iteration; without a value where nothing could be.

    `interval` holds 99 % over tasks, where chance matters; `about` says what it was found in, such as a criterion that
    repeats; `behind` are tasks in which it is seen.
    """

    value: float | None = None
    interval: tuple[float, float] | None = None
    about: str = ""
    behind: tuple[Evidence, ...] = ()
    name: str = ""
    """That of the bounds it is held against, once it is."""

    @property
    def bounds(self) -> Bounds:
        return BOUNDS[self.name]

    @property
    def verdict(self) -> str:
        """`fine`, `low` or `high`, `by chance` where its interval is not wholly out of bounds; "" without a value."""
        if self.value is None:
            return ""
        least, greatest = self.interval or (self.value, self.value)
        low, high = self.bounds.low, self.bounds.high
        if low is not None and self.value < low:
            return "low" if greatest < low else "by chance"
        if high is not None and self.value > high:
            return "high" if least > high else "by chance"
        return "fine"

    @property
    def warning(self) -> str:
        """In one line for a person; "" when nothing is wrong."""
        if self.verdict not in ("low", "high"):
            return ""
        limit = f"under {self.bounds.low:g}" if self.verdict == "low" else f"over {self.bounds.high:g}"
        interval = " [{:.3g}, {:.3g}]".format(*self.interval) if self.interval else ""
        about = f' ("{self.about}")' if self.about else ""
        return f"{self.bounds.title}{about}: {self.value:.3g}{interval} is {limit}: {self.bounds.meaning}"


class Checkup(NamedTuple):
    """All signals of one iteration, in the order of `BOUNDS`, and what it took."""

    iteration: int
    signals: tuple[Signal, ...]
    costs: Mapping[str, float]
    """Of an accepted task, and GPU-hours, by name; only what is known."""

    @property
    def warnings(self) -> list[Signal]:
        return [signal for signal in self.signals if signal.warning]


def evidence(iteration: int, task_id: str, task: str, shown: str = "") -> Evidence:
    """With texts cut to what a line or two can show."""
    return Evidence(iteration=iteration, task_id=task_id, task=cut(task), shown=cut(shown))


def measured(found: Estimate, about: str = "", behind: tuple[Evidence, ...] = ()) -> Signal:
    interval = None if found.low is None or found.high is None else (found.low, found.high)
    return Signal(found.value, interval, about, behind)


def signal_of(name: str, found: Signal | float | None) -> Signal:
    known = found if isinstance(found, Signal) else Signal(found)
    return replace(known, name=name, behind=known.behind[:SHOWN])


def cut(text: str, longest: int = LONGEST_TEXT) -> str:
    return text if len(text) <= longest else f"{text[:longest].rstrip()} …"


_TEXTS = {
    "suspect_answers": "SELECT subject_id AS task_id, answer AS shown, injection_suspect AS signs, ordinal "
    "FROM rollouts WHERE iteration = $1 AND role = 'solver' AND answer IS NOT NULL",
    "suspect_tasks": "SELECT coalesce(task.id, id) AS task_id, '' AS shown, injection_suspect AS signs, ordinal "
    "FROM candidates WHERE iteration = $1 AND stage = 'tasks'",
}


def suspect_texts(reader: RunReader, iteration: int) -> dict[str, Signal | None]:
    """By signal; None where no text of the kind was looked at. Behind it the tasks of the first suspect texts, which
    the iteration made, or another one for its held-out answers.
    """
    return {signal: _share(reader, iteration, texts) for signal, texts in _TEXTS.items()}


def _share(reader: RunReader, iteration: int, texts: str) -> Signal | None:
    (counts,) = reader.sql(
        f"SELECT count(signs) AS texts, count(*) FILTER (len(signs) > 0) AS suspect FROM ({texts})",
        [iteration],
    )
    if not counts["suspect"]:
        return Signal(0.0) if counts["texts"] else None
    signs = reader.sql(
        f"SELECT sign, count(*) AS texts FROM (SELECT unnest(signs) AS sign FROM ({texts})) "
        "GROUP BY sign ORDER BY texts DESC, sign",
        [iteration],
    )
    first = reader.sql(
        "SELECT s.task_id, s.shown, coalesce(arg_max(c.task.text, c.iteration), '') AS text, "
        "coalesce(max(c.iteration), $1) AS made FROM "
        f"(SELECT * FROM ({texts}) WHERE len(signs) > 0 ORDER BY ordinal LIMIT {SHOWN}) s "
        "LEFT JOIN candidates c ON c.task.id = s.task_id GROUP BY s.task_id, s.shown, s.ordinal ORDER BY s.ordinal",
        [iteration],
    )
    return Signal(
        counts["suspect"] / counts["texts"],
        about=", ".join(f"{row['sign']} {row['texts']}" for row in signs),
        behind=tuple(evidence(row["made"], row["task_id"], row["text"], row["shown"]) for row in first),
    )


SEARCHES_SAMPLE = 500
"""Accepted tasks of an iteration whose searches are looked at."""


def duplicate_share(texts: Sequence[str], *, before: Sequence[str] = ()) -> float | None:
    """The share of `texts` with a near duplicate before them, among themselves or in `before`; None without texts.

    Two share .8 of their word trigrams, which is found with high probability and not with certainty.
    """
    copies = near_copies([*before, *texts])
    return sum(row >= len(before) for row in copies) / len(texts) if texts else None


def needed_searches(reader: RunReader, iteration: int) -> float | None:
    """The share of the Challenger's searches that are needed, over the first accepted tasks of an iteration; short
    answers stand in their own document.
    """
    rows = reader.sql(
        "SELECT c.rubric, c.provenance.document_id AS document_id, r.turns FROM candidates c "
        "JOIN rollouts r ON r.id = c.challenger_rollout_id AND r.iteration = ? AND r.stage = 'tasks' "
        "WHERE c.iteration = ? AND c.stage = 'tasks' AND c.status = 'accepted' AND c.task.span IS NULL "
        "ORDER BY c.ordinal LIMIT ?",
        [iteration, iteration, SEARCHES_SAMPLE],
    )
    documents = reader.documents([row["document_id"] for row in rows])
    flags = [
        flag
        for row in rows
        for flag in _needs(
            row["rubric"]["criteria"],
            documents.get(row["document_id"]),
            [turn["passages"] or () for turn in row["turns"] if turn["query"] is not None],
        )
    ]
    return sum(flags) / len(flags) if flags else None


def _needs(
    criteria: Sequence[Mapping[str, Any]],
    document: Document | None,
    searches: Sequence[Sequence[Mapping[str, Any]]],
) -> list[bool]:
    needed = {each for criterion in criteria for each in criterion["evidence"] or ()}
    if needed:
        known = {document.id} if document else set()
        found = [needed & {passage["id"] for passage in passages} for passages in searches]
    else:
        needed = {fact for criterion in criteria for fact in named_in(criterion["text"])}
        known = words_of([document.title, document.text] if document else [])
        texts = ([each["title"] + " " + each["text"] for each in passages] for passages in searches)
        found = [needed & words_of(each) for each in texts]
    return [
        bool(own - known - set().union(*(found[other] for other in range(len(found)) if other != row)))
        for row, own in enumerate(found)
    ]


SLOT = "…"
RARE = 0.05
"""A word that fewer of the texts have is taken out: a value, or what a single text is about."""
NAME = 0.5
"""So is one that is written as a name, unless this many of the texts have it: then it is no choice of the text's."""
LEAST_WORDS = 3
"""Fewer words say nothing about a pattern."""
LEAST_KEPT = 0.75
"""Of the words that are neither names nor numbers; where fewer stay, only small words are left of the text."""

_LETTERS = rf"(?:[^\W_]|[{SIGNS}])+"
_WORD = re.compile(f"{_LETTERS}(?:['’-]{_LETTERS})*")
SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)|[。！？\n]+")


class _Word(NamedTuple):
    text: str
    """In small letters."""
    is_capital: bool
    """A number counts as one."""
    is_first: bool
    """Of its sentence, where a capital letter says nothing."""


def patterns_of(texts: Sequence[str]) -> list[str]:
    """The pattern of every text; "" where it has none."""
    split = [_words_of_wording(text) for text in texts]
    counts = Counter(word for words in split for word in {each.text for each in words})
    names = _names(word for words in split for word in words)
    kept = {
        word
        for word, count in counts.items()
        if count >= max(2, (NAME if word in names else RARE) * len(texts))
    }
    return [_pattern([word.text for word in words], kept, names) for words in split]


def repeated_sentence(text: str) -> str:
    """The first sentence of at least `LEAST_WORDS` words that a text says twice, whatever its case and marks; "" where
    there is none.
    """
    counts = Counter(
        " ".join(word.text for word in _words_of_wording(part)) for part in SENTENCE_END.split(text)
    )
    return next(
        (said for said, count in counts.items() if count > 1 and said.count(" ") + 1 >= LEAST_WORDS), ""
    )


def word_count(text: str) -> int:
    return sum(1 for _ in _WORD.finditer(spaced(text)))


def _words_of_wording(text: str) -> list[_Word]:
    return [
        _Word(word.lower(), word[:1].isupper() or any(letter.isdigit() for letter in word), place == 0)
        for part in SENTENCE_END.split(text)
        for place, word in enumerate(_WORD.findall(spaced(part)))
    ]


def _names(words: Iterable[_Word]) -> set[str]:
    """Words that are only ever written with a capital letter, at least once inside a sentence; and numbers."""
    small: set[str] = set()
    capital: set[str] = set()
    for word in words:
        if not word.is_capital:
            small.add(word.text)
        elif not word.is_first or not word.text.isalpha():
            capital.add(word.text)
    return capital - small


def _pattern(words: Sequence[str], kept: set[str], names: set[str]) -> str:
    plain = [word in kept for word in words if word not in names]
    if sum(word in kept for word in words) < LEAST_WORDS or sum(plain) < LEAST_KEPT * len(plain):
        return ""
    shown = [word if word in kept else SLOT for word in words]
    return " ".join(
        word for place, word in enumerate(shown) if word != SLOT or shown[place - 1 : place] != [SLOT]
    )


SAMPLE = 5_000
"""Accepted tasks of an iteration whose texts are looked at."""
PATTERNS_SAMPLE = 1_000
"""Those of them whose patterns are taken."""


class MadeTask(NamedTuple):
    """An accepted task."""

    iteration: int
    id: str
    text: str


def made_tasks(reader: RunReader, iteration: int) -> list[MadeTask]:
    """The first `SAMPLE` accepted tasks of an iteration, in the order in which they were made."""
    rows = reader.sql(
        "SELECT task.id AS id, task.text AS text FROM candidates "
        "WHERE iteration = ? AND stage = 'tasks' AND status = 'accepted' AND task IS NOT NULL ORDER BY ordinal LIMIT ?",
        [iteration, SAMPLE],
    )
    return [MadeTask(iteration, row["id"], row["text"]) for row in rows]


def common_pattern(tasks: Sequence[MadeTask]) -> Signal | None:
    """The share of tasks that follow the commonest pattern; None for too few tasks."""
    tasks = tasks[:PATTERNS_SAMPLE]
    if len(tasks) < LEAST_TASKS:
        return None
    patterns = patterns_of([task.text for task in tasks])
    counts = Counter(pattern for pattern in patterns if pattern)
    if not counts:
        return Signal(0.0)
    found, count = counts.most_common(1)[0]
    behind = tuple(evidence(*task) for task, own in zip(tasks, patterns, strict=True) if own == found)
    return Signal(count / len(tasks), about=found, behind=behind)
