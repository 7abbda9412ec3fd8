"""Short answers against right ones, exactly as the official scripts of the data sets compute it. Pure.

SQuAD's `evaluate-v1.1.py` (NQ, PopQA, MuSiQue, Bamboogle go by it), HotpotQA's `hotpot_evaluate_v1.py` (2WikiMultihopQA
has the same), TriviaQA's `triviaqa_evaluation.py`. Cover is Search-R1's `subem_check`: the right answer occurs in the
one given. The best over all right answers counts.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

Normaliser = Callable[[str], str]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = frozenset(string.punctuation)
_TRIVIA_PUNCTUATION = _PUNCTUATION | set("‘’´`")
_CLOSED = frozenset({"yes", "no", "noanswer"})


def squad_normal(text: str) -> str:
    """Lower case, without punctuation, articles and repeated space; in this order."""
    bare = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def trivia_normal(text: str) -> str:
    """As SQuAD's, but punctuation and underscores become spaces: `AC/DC` is two words."""
    lowered = text.replace("_", " ").lower()
    bare = "".join(" " if character in _TRIVIA_PUNCTUATION else character for character in lowered)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(answer: str, right: Sequence[str], *, normal: Normaliser = squad_normal) -> float:
    """1 where the answer equals one of the right ones."""
    found = normal(answer)
    return float(any(found == normal(each) for each in right))


def f1(answer: str, right: Sequence[str], *, normal: Normaliser = squad_normal) -> float:
    """Harmonic mean of precision and recall over words, each counted as often as it occurs."""
    return max(_f1(normal(answer).split(), normal(each).split()) for each in right)


def hotpot_f1(answer: str, right: Sequence[str]) -> float:
    """F1, but yes and no are right or wrong: `yes` shares nothing with `yes indeed`."""
    return max(_hotpot_f1(squad_normal(answer), squad_normal(each)) for each in right)


def cover_exact_match(answer: str, right: Sequence[str]) -> float:
    """1 where one of the right answers occurs in the one given, as characters."""
    found = squad_normal(answer)
    return float(any(squad_normal(each) in found for each in right))


def _f1(found: Sequence[str], expected: Sequence[str]) -> float:
    shared = sum((Counter(found) & Counter(expected)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(found), shared / len(expected)
    return 2 * precision * recall / (precision + recall)


def _hotpot_f1(found: str, expected: str) -> float:
    if found != expected and not _CLOSED.isdisjoint((found, expected)):
        return 0.0
    return _f1(found.split(), expected.split())
