"""Answers that a file holds, as those of a contestant: lines with the `id` of an item, and its `answer`."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from scope_selfplay.benchmarking.answering import Answerer, Wanted
from scope_selfplay.benchmarking.records import Answer
from scope_selfplay.errors import ConfigError
from scope_selfplay.keys import content_id
from scope_selfplay.schemas import Role, Rollout
from scope_selfplay.wire.strict_json import parse_object


def given_identity(path: Path) -> str:
    """Names the answers by what is in their file."""
    return f"{path.stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


def read_given_answers(path: Path) -> dict[str, str]:
    """The answers by item id. Raises ConfigError with file, line and field."""
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = parse_object(line)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}; one JSON object a line") from None
        for name in ("id", "answer"):
            if not isinstance(row.get(name), str):
                raise ConfigError(f"{where}: {name}: expected a text, found {row.get(name)!r}")
        if row["id"] in found:
            raise ConfigError(f"{where}: id: {row['id']} occurs twice; an item has one given answer")
        found[row["id"]] = row["answer"]
    return found


def given_by(answers: Mapping[str, str], identity: str) -> Answerer:
    """Answers that are there already; no tokens are known of them."""

    async def answer(wanted: Wanted) -> Answer:
        rollout = Rollout(
            id=content_id(Role.SOLVER.value, *wanted.key),
            role=Role.SOLVER,
            checkpoint=identity,
            subject_id=wanted.item.id,
            turns=(),
            answer=answers[wanted.item.id],
        )
        return Answer.of(rollout, wanted.item.id, wanted.checkpoint, wanted.sample)

    return answer
