r"""Whether a final answer in `\boxed{...}` equals the reference: the verifiable reward of maths tasks.

Equivalence is Math-Verify's (LaTeX and plain expressions through SymPy). What a policy writes is untrusted, and a
short expression can keep SymPy busy for ever (`9^{9^{9^9}}`): so the library runs in a process of its own, with a
limit on CPU time and memory, that is killed and replaced when an answer is too much for it. CPU time, not wall time:
the same answer gets the same reward on a busy machine. Source: Reasoning Arena, equation 2 (R_v in {0, 1}).

    python -m scope_selfplay.rewards.verify     serves one parent: [answer, reference] a line in; out, one byte
                                                     each, whether the reference can be read, and if so whether
                                                     both are equal
"""

import contextlib
import functools
import json
import os
import re
import select
import string
import subprocess
import sys
import threading
import unicodedata
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.text import spaced

LONGEST = 200
"""The most characters of a box that counts as a final answer."""
DEEPEST = 10
"""The most brackets within brackets of such a box: reading them takes time that doubles with every level."""
CPU_SECONDS = 2
"""CPU time for one comparison; the operating system counts whole seconds."""
_MEMORY = 2 << 30
# The first reply comes when the library is imported, on a slow disk after many seconds.
_WALL_SECONDS = 120.0
# Characters at the end of an answer in which its box must be.
_TAIL = 10_000
_BOX = "\\boxed"
_BOXES = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_BARE = re.compile(r"[^\s${}][^\s$]*")
# A formula of chemistry, or a name with a number, may set its numbers low or not: C_6H_{12} is C6H12.
_SUBSCRIPT = re.compile(r"_(?:\{(\d+)\}|(\d))")
_FORMULA = re.compile(r"(?:[A-Z][a-z]?\d*|\(|\)\d*)+")
_UPRIGHT = re.compile(r"\\(?:mathrm|text|ce|rm)\b|[{}\s]")
_YES, _NO = b"1", b"0"


def boxed_reward(answer: str, reference: str) -> float | None:
    r"""1.0 where the last `\boxed{...}` of `answer` equals `reference`, 0.0 where not, or where there is no box.

    `reference` is an expression with or without a box of its own. An answer that is too long, or too much to compute,
    is wrong. None where nothing can be said: the reference cannot be read, or the verifier itself cannot run. Never
    raises, but ConfigError where Math-Verify is not installed.
    """
    return _shared(os.getpid()).reward(answer, reference)


def last_box(text: str) -> str | None:
    r"""The content of the last closed `\boxed{...}`, its braces balanced; None without one.

    `\fbox{...}` is a box too, and so is `\boxed 3`, whose content ends at the next space or dollar sign. Only the end
    of the text is read, and of a box no more than it may hold: a megabyte of unclosed boxes costs little.
    """
    text = text[-_TAIL:]
    ends = [box.end() for box in _BOXES.finditer(text)]
    contents = (_content(text[end : end + LONGEST + 2].lstrip(" ")) for end in reversed(ends))
    return next((content for content in contents if content is not None), None)


def _content(text: str) -> str | None:
    """What a box holds whose command is followed by `text`."""
    if text.startswith("{"):
        return _balanced(text)
    bare = _BARE.match(text)
    content = bare[0].rstrip(".,;:!?") if bare is not None else ""
    is_whole = content.count("{") == content.count("}") and not _BOXES.search(content)
    return content if content and is_whole else None


def _is_expression(text: str) -> bool:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return bool(text.strip()) and len(text) <= LONGEST and deepest <= DEEPEST


def _balanced(text: str) -> str | None:
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[1:place]
    return None


def _is_same_formula(found: str, expected: str) -> bool:
    one, other = (_UPRIGHT.sub("", _SUBSCRIPT.sub(r"\1\2", text)) for text in (found, expected))
    return one == other and _FORMULA.fullmatch(one) is not None


class BoxedVerifier:
    """A process that compares answers: started on the first question, one question at a time, safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[Any, Any] | None = None

    @property
    def process(self) -> int | None:
        """The id of the process that compares, where one was started."""
        return self._worker.pid if self._worker is not None else None

    def reward(self, answer: str, reference: str) -> float | None:
        """See `boxed_reward`."""
        expected = last_box(reference) if _BOXES.search(reference) else reference
        if expected is None or not _is_expression(expected):
            return None
        found = last_box(answer)
        if found is None or not _is_expression(found):
            return 0.0
        if found.split() == expected.split() or _is_same_formula(found, expected):
            return 1.0
        with self._lock:
            verdict = self._ask(found, expected)
        return None if verdict is None else float(verdict)

    def close(self) -> None:
        """End the process; the next question starts another."""
        if self._end is not None:
            self._end()
        self._worker = self._end = None

    def _ask(self, found: str, expected: str) -> bool | None:
        worker = self._started()
        if worker is None:
            return None
        assert worker.stdin is not None
        line = json.dumps([found, expected]).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.write(line)
        is_readable = _reply_of(worker)
        if is_readable is False:
            return None
        is_equal = _reply_of(worker) if is_readable else None
        if is_equal is not None:
            return is_equal
        has_died = worker.poll() is not None
        self.close()
        # An answer that killed the process is wrong; a process that is alive and silent has CPU time left: no verdict.
        return False if has_died and is_readable else None

    def _started(self) -> subprocess.Popen[bytes] | None:
        if self._worker is None:
            worker = subprocess.Popen(
                [sys.executable, "-m", "scope_selfplay.rewards.verify"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
            self._worker, self._end = worker, weakref.finalize(self, _end, worker)
            is_ready = _reply_of(worker)
            if not is_ready:
                self.close()
            if is_ready is False:
                raise ConfigError(
                    "the verifier of boxed answers needs Math-Verify: pip install 'scope-selfplay[math]'"
                )
        return self._worker


@functools.cache
def _shared(process: int) -> BoxedVerifier:
    """One verifier per process; a forked child must not read its parent's replies."""
    return BoxedVerifier()


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _reply_of(worker: subprocess.Popen[bytes]) -> bool | None:
    """The next reply of the process; None when it has ended or stays silent."""
    assert worker.stdout is not None
    if not select.select([worker.stdout], [], [], _WALL_SECONDS)[0]:
        return None
    reply = worker.stdout.read(1)
    if not reply:
        worker.kill()
        worker.wait()
        return None
    return reply == _YES


def _serve() -> None:
    """Answer questions until the parent goes away. The first byte tells whether the library is installed."""
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    # Whatever a library prints must not look like a reply.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        import math_verify  # noqa: F401
    except ImportError:
        replies.write(_NO)
        return
    replies.write(_YES)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    for line in sys.stdin.buffer:
        # The kernel ends this process when its CPU time is used up: no handler could stop a long multiplication.
        usage = resource.getrusage(resource.RUSAGE_SELF)
        soft = int(usage.ru_utime + usage.ru_stime) + CPU_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
        found, expected = json.loads(line)
        is_readable = _equal(expected, expected)
        replies.write(_YES if is_readable else _NO)
        if is_readable:
            replies.write(_YES if _equal(found, expected) else _NO)


def _equal(found: str, expected: str) -> bool:
    """Math-Verify's verdict; False for what it cannot read."""
    from math_verify import LatexExtractionConfig, parse, verify

    # LaTeX alone: the library's other reader hands plain text to SymPy, which evaluates it as Python.
    latex = [LatexExtractionConfig(boxed_match_priority=0)]

    def read(text: str) -> Any:
        return parse(f"{_BOX}{{{text}}}", extraction_config=latex, parsing_timeout=None)

    try:
        return bool(verify(read(expected), read(found), timeout_seconds=None))
    except Exception:  # noqa: BLE001  hostile input raises anything, MemoryError and RecursionError included
        return False


Normaliser = Callable[[str], str]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = frozenset(string.punctuation)
_MINUS, _DECIMAL_POINT = re.compile(r"(?<!\w)[-−](?=\d)"), re.compile(r"(?<=\d)\.(?=\d)")
_MARKS = frozenset({"Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Cf"})
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


def number_normal(text: str) -> str:
    """As SQuAD's, for digits and punctuation of all scripts, but signs and decimal points belong to numbers; what has
    articles alone (vitamin A) keeps them.
    """
    plain = "".join(str(unicodedata.decimal(each, each)) for each in unicodedata.normalize("NFKC", text))
    signed = _DECIMAL_POINT.sub("point", _MINUS.sub("minus", plain))
    bare = "".join(each for each in signed if unicodedata.category(each) not in _MARKS)
    return squad_normal(bare) or " ".join(plain.lower().split())


def exact_match(answer: str, right: Sequence[str], *, normal: Normaliser = squad_normal) -> float:
    """1 where the answer equals one of the right ones."""
    found = normal(answer)
    return float(any(found == normal(each) for each in right))


def text_match(answer: str, reference: str) -> float:
    """How a short answer is graded."""
    return exact_match(answer, [reference], normal=number_normal)


def f1(answer: str, right: Sequence[str], *, normal: Normaliser = squad_normal) -> float:
    """Harmonic mean of precision and recall over words, each counted as often as it occurs."""
    return max(_f1(normal(answer), normal(each)) for each in right)


_NUMBER = re.compile(r"(?:(?<!\d)[-−+])?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_YEAR = re.compile(r"\D*[12]\d{3}\s*(?:年|년|года?|году|г|ad|b?ce|bc)?\W*", re.IGNORECASE)


def number_match(answer: str, reference: str) -> float | None:
    """1 where the answer is the reference, or its last number is within a hundredth of the reference's first, and
    equals one of four digits behind which no unit stands, a year; None where the reference has none.
    """
    if text_match(answer, reference):
        return 1.0
    wanted, found = (
        [float(each.replace(",", "").replace("−", "-")) for each in _NUMBER.findall(text)]
        for text in (reference, answer)
    )
    tolerance = 0.0 if _YEAR.fullmatch(reference) else 0.01
    return float(bool(found) and abs(found[-1] - wanted[0]) <= tolerance * abs(wanted[0])) if wanted else None


def hotpot_f1(answer: str, right: Sequence[str]) -> float:
    """F1, but yes and no are right or wrong: `yes` shares nothing with `yes indeed`."""
    return max(_hotpot_f1(squad_normal(answer), squad_normal(each)) for each in right)


def cover_exact_match(answer: str, right: Sequence[str]) -> float:
    """1 where one of the right answers occurs in the one given, as characters."""
    found = squad_normal(answer)
    return float(any(squad_normal(each) in found for each in right))


def _f1(answer: str, right: str) -> float:
    found, expected = spaced(answer).split(), spaced(right).split()
    shared = sum((Counter(found) & Counter(expected)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(found), shared / len(expected)
    return 2 * precision * recall / (precision + recall)


def _hotpot_f1(found: str, expected: str) -> float:
    if found != expected and not _CLOSED.isdisjoint((found, expected)):
        return 0.0
    return _f1(found, expected)


if __name__ == "__main__":
    _serve()
