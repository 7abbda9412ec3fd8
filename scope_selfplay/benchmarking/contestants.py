"""Who answers a benchmark: a Solver of a run, a model directory, a served model; or answers that a file holds.

demo:S_2  demo:2  runs/demo:C_1    the checkpoint of a run; demo:S_0 is the base model
/models/qwen3-8b  embedded         a model directory, or one that was fetched by its name (`scope models`)
http://127.0.0.1:8000/v1           whatever is served there, #NAME where a server has several models
demo:S_2@http://127.0.0.1:8000/v1  a checkpoint, sampled where it is served: the server must serve its weights
answers.jsonl                      lines with `id` and `answer`, to compare with
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from scope_selfplay.errors import CheckpointError
from scope_selfplay.inference.checkpoints import EMBEDDED, policy_path
from scope_selfplay.models import MODELS
from scope_selfplay.schedule import PolicyVersion
from scope_selfplay.schemas import Role
from scope_selfplay.store import RunFolder
from scope_selfplay.store.reader import find_run
from scope_selfplay.store.weights import Policy

_OF_RUN = re.compile(r"(?P<run>.+):(?P<role>[SC]_)?(?P<iteration>\d{1,4})")
_SERVED_AT = re.compile(r"@(?=https?://)")
_FORMS = "give RUN:S_2, a model directory, http://HOST:PORT/v1, or a file of answers that ends in .jsonl"


@dataclass(frozen=True)
class Contestant:
    """One of those that are compared. `name` is how it was asked for; without `policy` it is what `base_url` serves."""

    name: str
    policy: Policy | None = None
    base_url: str | None = None
    model: str | None = None
    """Which of several models of a server."""
    answers: Path | None = None
    """Its answers, where they are given."""
    run: Path | None = None
    """The run that it belongs to."""


def read_contestant(asked: str) -> Contestant:
    """A contestant by one of the forms above. Raises CheckpointError."""
    if asked.startswith(("http://", "https://")):
        url, _, model = asked.partition("#")
        return Contestant(asked, base_url=url, model=model or None)
    if asked.endswith(".jsonl"):
        if not Path(asked).is_file():
            raise CheckpointError(f"{asked}: there is no such file of answers; {_FORMS}")
        return Contestant(Path(asked).stem, answers=Path(asked))
    where, *served = _SERVED_AT.split(asked, maxsplit=1)
    url, _, model = served[0].partition("#") if served else ("", "", "")
    if (found := _OF_RUN.fullmatch(where)) and not Path(where).is_dir():
        role = Role.CHALLENGER if found["role"] == "C_" else Role.SOLVER
        found_there = _of_run(where, find_run(found["run"]), PolicyVersion(role, int(found["iteration"])))
        return replace(found_there, base_url=url or None, model=model or None)
    if where != EMBEDDED and where not in MODELS and not Path(where).is_dir():
        raise CheckpointError(f"{where}: there is no such model directory; {_FORMS}")
    folder = policy_path(where)
    name = Path(where).resolve().name if Path(where).is_dir() else where
    return Contestant(name, Policy(name, folder), base_url=url or None, model=model or None)


def _of_run(asked: str, run: Path, version: PolicyVersion) -> Contestant:
    from scope_selfplay.config import load_config

    folder = RunFolder(run)
    if not folder.config.is_file():
        raise CheckpointError(f"{asked}: {run} has no run.yaml, so it is no run; {_FORMS}")
    path = version.checkpoint(folder) or policy_path(load_config(folder.config).model.path)
    if not (path / "config.json").is_file():
        there = ", ".join(_checkpoints_of(folder)) or "none but S_0"
        raise CheckpointError(f"{asked}: {path} is not there; checkpoints of {run}: {there}")
    name = f"{run.resolve().name}:{version.name}"
    return Contestant(name, Policy(version.name, path), run=run)


def _checkpoints_of(folder: RunFolder) -> list[str]:
    found = sorted(folder.path.glob("iteration-*/*/checkpoint/config.json"))
    letters = {"challenger": "C", "solver": "S"}
    return [
        f"{letters[path.parent.parent.name]}_{int(path.parent.parent.parent.name.removeprefix('iteration-'))}"
        for path in found
        if path.parent.parent.name in letters
    ]
