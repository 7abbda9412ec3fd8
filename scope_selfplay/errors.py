"""Every error that we raise on purpose, by who can correct it, and the exit codes of all commands.

The user corrects the input of a UserError (exit 64); after an OutsideError the same command is run again (exit 75).
Everything else that escapes is our own bug (exit 1, traceback).
"""

from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum


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


def nearest(word: object, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that `word` most probably means, or None when none is close; `cutoff` as difflib has it."""
    return next(iter(get_close_matches(str(word), list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(
    word: object, known: Iterable[str], form: str = " (did you mean {}?)", cutoff: float = 0.6
) -> str:
    """The end of a message about an unknown word: `form` with the known word that is nearest, or nothing."""
    guess = nearest(word, known, cutoff)
    return form.format(guess) if guess else ""
