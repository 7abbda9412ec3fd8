"""`fork.json` of a run that shares its first iterations with another run: whose they are, and what made them."""

from scope_selfplay.schemas import Value
from scope_selfplay.store.files import read_value
from scope_selfplay.store.folders import RunFolder


class Fork(Value):
    """A run whose iterations 0 to `after` are those of `run`.

    `config_hashes` are the configs that made them, one per iteration: a fork of a fork has several. `changed` are the
    settings that the run went on with and their values before and after.
    """

    run: str
    after: int
    config_hashes: tuple[str, ...]
    changed: dict[str, tuple[object, object]]
    version: str


def read_fork(folder: RunFolder) -> Fork | None:
    """None for a run of its own. Raises RecordError where the file is damaged."""
    return read_value(folder.fork, Fork, "restore it, or fork the run again")


def shared_words(fork: Fork) -> str:
    """Whose iterations a run has, in words."""
    which = "iteration 0" if fork.after == 0 else f"iterations 0 to {fork.after}"
    changed = ", ".join(f"{name}={after}" for name, (_, after) in fork.changed.items())
    return f"{which} are those of the run {fork.run}" + (f"; from then on {changed}" if changed else "")
