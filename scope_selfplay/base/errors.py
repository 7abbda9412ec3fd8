"""Every error that we raise on purpose, by who can correct it, and the exit codes of all commands; and findings: what a
check says about a run, a pack, a machine or a cluster before anything fails.

The user corrects the input of a UserError (exit 64); after an OutsideError the same command is run again (exit 75).
Everything else that escapes is our own bug (exit 1, traceback).
"""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum, StrEnum


class ExitCode(IntEnum):
    DONE = 0
    BUG = 1
    USER = 64
    FAILED = 70
    """A run whose retries are used up, as its controller says: unlike BUG it is there to stay."""
    OUTSIDE = 75
    INTERRUPTED = 130
    TERMINATED = 143


class ScopeError(Exception):
    """Base of every error that we raise on purpose; its text is one line for a person."""

    exit_code = ExitCode.BUG


class UserError(ScopeError):
    """The user's input; the message says what was found, what was expected, and what to do."""

    exit_code = ExitCode.USER


class ConfigError(UserError):
    """A config file or an override."""


@contextmanager
def imports_for(what: str, extra: str) -> Iterator[None]:
    """Raises ConfigError where an import fails: `what` needs it, and the `extra` of this project installs it."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"{what} needs {error.name or error}: pip install 'scope-selfplay[{extra}]'"
        ) from None


class PromptError(UserError):
    """A prompt pack."""


class CorpusError(UserError):
    """A source corpus, or too little of it."""


class CheckpointError(UserError):
    """A model directory."""


class TrainingError(UserError):
    """A training whose next step would spoil the policy."""


class RecordError(UserError):
    """A stored file that is damaged in the middle."""


class RunMismatchError(UserError):
    """A run directory that belongs to another config or prompt pack."""


class OutsideError(ScopeError):
    """Something outside is down or full."""

    exit_code = ExitCode.OUTSIDE


class InferenceError(OutsideError):
    """A policy or judge endpoint."""


class SearchError(OutsideError):
    """The retriever."""


class ToolError(OutsideError):
    """The server of a tool."""


class JudgeError(OutsideError):
    """Too many unreadable or failed verdicts."""


class StorageError(OutsideError):
    """The disk."""


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """Something is missing: a run would go on and give less than it was asked for."""
    STOP = "stop"
    """A run would end in an error, most likely late."""


@dataclass(frozen=True)
class Finding:
    """What a check found in one place: a setting, `Kind/name`, `file:line`, a part of a machine.

    `advice` says what to change; "" where nothing is to be changed.
    """

    where: str
    what: str
    state: State = State.STOP
    advice: str = ""
    is_outside: bool = False
    """Whether the same command may do later, as where a server does not answer yet."""

    def __str__(self) -> str:
        return f"{self.where}: {self.said}"

    @property
    def said(self) -> str:
        """What was found, and what to do about it."""
        return f"{self.what}; {self.advice}" if self.advice else self.what


def passed(is_fine: object) -> State:
    """The state of a part that is there, or is lacking and lets the others be."""
    return State.OK if is_fine else State.WARNING


def raise_for_stops(findings: Sequence[Finding], *, are_shown: bool = False) -> None:
    """Raises ConfigError, or OutsideError where nothing of the user's has to change, for what stops a run; of what is
    shown it counts them.
    """
    stops = sorted((each for each in findings if each.state is State.STOP), key=lambda each: each.is_outside)
    if stops:
        more = f" (and {len(stops) - 1} more: `scope preflight` shows all)" if stops[1:] else ""
        said = f"{len(stops)} of {len(findings)} checks stop the run" if are_shown else f"{stops[0]}{more}"
        raise (OutsideError if stops[0].is_outside else ConfigError)(said)


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known word that `word` most probably means, or None when none is close."""
    return next(iter(get_close_matches(str(word), list(known), n=1)), None)


def did_you_mean(word: object, known: Iterable[str], form: str = " (did you mean {}?)") -> str:
    """The end of a message about an unknown word: `form` with the known word that is nearest, or nothing."""
    guess = nearest(word, known)
    return form.format(guess) if guess else ""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_RIGHTS = (errno.EACCES, errno.EPERM, errno.EROFS)
_BROKEN = (errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENOTCONN, errno.EREMOTEIO)
_HANDLES = (errno.EMFILE, errno.ENFILE)
_KIND_OF_PATH = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP)
_ADVICE = {
    **dict.fromkeys(_FULL, "make room, then run again"),
    **dict.fromkeys(_RIGHTS, "give this user access, then run again"),
    **dict.fromkeys(_BROKEN, "see to the disk or volume, then run again"),
    **dict.fromkeys(_HANDLES, "raise the limit (ulimit -n), then run again"),
}
# Rust's libraries end with the number; torch and numpy say only that less was written than was to be.
_WORDS = {
    errno.ENOSPC: (
        os.strerror(errno.ENOSPC),
        "(os error 28)",
        "PytorchStreamWriter failed",
        ". unexpected pos ",
        " requested and ",
    ),
    errno.EDQUOT: (os.strerror(errno.EDQUOT), "(os error 122)"),
    errno.EFBIG: (os.strerror(errno.EFBIG), "(os error 27)"),
    errno.EACCES: ("(os error 13)",),
}


def machine_fault(error: BaseException) -> ScopeError | None:
    """The error of ours that says it, with its exit code; None where nothing outside is to blame."""
    for each in _with_causes(error, set()):
        number = each.errno if isinstance(each, OSError) else None
        if number is None or number not in (*_ADVICE, *_KIND_OF_PATH):
            said = str(each)
            number = next(
                (known for known, words in _WORDS.items() if any(word in said for word in words)), None
            )
        if number is None:
            continue
        place = f"{each.filename}: " if isinstance(each, OSError) and each.filename is not None else ""
        if number in _ADVICE:
            return StorageError(f"{place}{os.strerror(number)}; {_ADVICE[number]}")
        if place:
            return UserError(f"{place}{os.strerror(number)}; give another path")
    return None


def _with_causes(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    """The error, what it was raised from or while handling, and the members of groups."""
    if id(error) in seen:
        return
    seen.add(id(error))
    yield error
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    context = None if error.__suppress_context__ else error.__context__
    for other in (*members, error.__cause__, context):
        if other is not None:
            yield from _with_causes(other, seen)
