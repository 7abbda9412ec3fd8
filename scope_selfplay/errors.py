"""What can go wrong, told apart by who can fix it.

    ScopeError                    exit
    |- UserError                   64   the user's input: says what was found, what was expected, what to do
    |  |- ConfigError                   a config file or an override
    |  |- PromptError                   a prompt pack
    |  |- CorpusError                   a source corpus, or too little of it
    |  |- CheckpointError               a model directory
    |  |- RecordError                   a stored file that is damaged in the middle
    |  `- RunMismatchError              a run directory that belongs to another config or prompt pack
    `- OutsideError                75   something outside is down or full: run the same command again
       |- InferenceError                a policy or judge endpoint
       |- SearchError                   the retriever
       |- JudgeError                    too many unreadable or failed verdicts
       `- StorageError                  the disk

Everything else that escapes is our own bug (exit 1, traceback).
"""

from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum


class ExitCode(IntEnum):
    DONE = 0
    BUG = 1
    USER = 64
    OUTSIDE = 75
    INTERRUPTED = 130
    TERMINATED = 143


class ScopeError(Exception):
    """Base of every error that we raise on purpose; its text is one line for a person."""

    exit_code = ExitCode.BUG


class UserError(ScopeError):
    exit_code = ExitCode.USER


class ConfigError(UserError):
    pass


class PromptError(UserError):
    pass


class CorpusError(UserError):
    pass


class CheckpointError(UserError):
    pass


class RecordError(UserError):
    pass


class RunMismatchError(UserError):
    pass


class OutsideError(ScopeError):
    exit_code = ExitCode.OUTSIDE


class InferenceError(OutsideError):
    pass


class SearchError(OutsideError):
    pass


class JudgeError(OutsideError):
    pass


class StorageError(OutsideError):
    pass


def nearest(word: object, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that `word` most probably means, or None when none is close; `cutoff` as difflib has it."""
    return next(iter(get_close_matches(str(word), list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(
    word: object, known: Iterable[str], form: str = " (did you mean {}?)", cutoff: float = 0.6
) -> str:
    """The end of a message about an unknown word: `form` with the known word that is nearest, or nothing."""
    guess = nearest(word, known, cutoff)
    return form.format(guess) if guess else ""
