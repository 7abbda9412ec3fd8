"""The folder of an evaluation: what is written while it works, and what a reader finds when it is done.

evaluation.json    what all contestants have in common: benchmark, decoding, budgets, prompts, judges, seed
items.jsonl        the questions
contestants.jsonl  who answered, in the order in which they came: later ones join the leaderboard
answers.jsonl      one line per answer, with its whole episode
scores.jsonl       one line per answer, scorer and judge
comparisons.jsonl  one line per pair of answers, order and judge
result.json        leaderboard, differences, groups; the same to the byte however often the command was stopped

Beside the lines lie the same records as parquet, and a card. Judgements that were paid for are in judgements.sqlite.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from scope_selfplay.errors import RunMismatchError
from scope_selfplay.evaluation.benchmark import Budget, Decoding
from scope_selfplay.schemas import Rollout, Value
from scope_selfplay.store import Appender, write_atomic
from scope_selfplay.store.files import (
    disk_faults,
    part_of,
    read_value,
    stream_records,
    sync_folder,
    with_lines,
)

Model = TypeVar("Model", bound=BaseModel)


class Answer(Value):
    """One answer of one contestant to one item; a line of `answers.jsonl`."""

    id: str
    """That of the rollout."""
    item_id: str
    checkpoint: str
    """The contestant's name."""
    sample: int
    tokens: int
    """Tokens that the policy sampled, in all turns."""
    context: int
    """Tokens of its last turn with all before it."""
    rollout: Rollout

    @property
    def place(self) -> tuple[str, str, int]:
        return (self.checkpoint, self.item_id, self.sample)

    @classmethod
    def of(cls, rollout: Rollout, item_id: str, checkpoint: str, sample: int) -> "Answer":
        last = rollout.turns[-1] if rollout.turns else None
        return cls(
            id=rollout.id,
            item_id=item_id,
            checkpoint=checkpoint,
            sample=sample,
            tokens=sum(len(turn.ids) for turn in rollout.turns),
            context=0 if last is None else len(last.prompt_ids) + len(last.ids),
            rollout=rollout.without_ids(),
        )


class EvaluationSpec(Value):
    """What all contestants of an evaluation have in common; another value is another evaluation."""

    benchmark: str
    items: str
    """Names the questions and how they are scored."""
    count: int
    seed: int
    decoding: Decoding
    budget: Budget
    scorers: tuple[str, ...]
    judges: tuple[str, ...]
    dialect: str
    prompts: str
    index: str
    version: str


class ContestantRecord(Value):
    """A line of `contestants.jsonl`."""

    name: str
    identity: str
    """Names the weights, or the file of answers."""


class EvaluationFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = path / "evaluation.json"
        self.items = path / "items.jsonl"
        self.contestants = path / "contestants.jsonl"
        self.answers = path / "answers.jsonl"
        self.scores = path / "scores.jsonl"
        self.comparisons = path / "comparisons.jsonl"
        self.result = path / "result.json"
        self.judgements = path / "judgements.sqlite"

    def begin(self, spec: EvaluationSpec, items: Sequence[BaseModel]) -> None:
        """Write what the evaluation is. Raises RunMismatchError where the folder holds another one."""
        before = self.read_spec()
        if before is not None and (changed := _changed(before, spec)):
            raise RunMismatchError(
                f"{self.path}: holds another evaluation (other: {', '.join(changed)}); use another --out, or the "
                "settings that it was begun with"
            )
        with disk_faults(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        if before is None:
            write_atomic(self.items, b"".join(each.model_dump_json().encode() + b"\n" for each in items))
            write_atomic(self.spec, spec.model_dump_json(indent=1) + "\n")

    def read_spec(self) -> EvaluationSpec | None:
        return read_value(self.spec, EvaluationSpec, "restore it, or use another --out")

    def join(self, joining: ContestantRecord) -> None:
        """Put a contestant on the list. Raises RunMismatchError where another one has its name."""
        known = {each.name: each for each in stream_records(self.contestants, ContestantRecord)}
        if joining.name not in known:
            with Appender(self.contestants) as contestants:
                contestants.append(joining)
        elif known[joining.name] != joining:
            raise RunMismatchError(
                f"{self.path}: {joining.name} was {known[joining.name].identity} and is now {joining.identity}; use "
                "another --out"
            )


def _changed(before: EvaluationSpec, now: EvaluationSpec) -> list[str]:
    old, new = before.model_dump(mode="json"), now.model_dump(mode="json")
    return [name for name in old if name != "version" and old[name] != new[name]]


class SharedAppender:
    """Appends records for many tasks of one event loop; `append` returns when they are on disk.

    What comes while a write is under way goes with the next: one fsync for all, in a thread, so that the disk holds
    nobody up who has nothing to write.
    """

    def __init__(self, path: Path) -> None:
        self._appender = Appender(path)
        self._waiting: list[tuple[Sequence[BaseModel], asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def append(self, *records: BaseModel) -> None:
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((records, written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.ensure_future(self._write())
        await written

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            records = [record for group, _ in batch for record in group]
            try:
                await asyncio.to_thread(self._appender.append, *records)
            except Exception as error:  # noqa: BLE001 - whoever waits for the write gets its error
                for _, written in batch:
                    if not written.done():
                        written.set_exception(error)
            else:
                for _, written in batch:
                    if not written.done():
                        written.set_result(None)

    async def __aenter__(self) -> "SharedAppender":
        return self

    async def __aexit__(self, *ending: Any) -> None:
        if self._writer is not None:
            # What is being written ends as a whole.
            await asyncio.gather(self._writer, return_exceptions=True)
        self._appender.close()


def sort_lines(
    path: Path, model: type[Model], name: Callable[[Model], Hashable], order: Iterable[Hashable]
) -> None:
    """Put the records of a file into this order of their names: the last of several of one name counts.

    What is not in `order` goes to the end as it was. Long texts stay on disk: only places are held in memory.
    """
    if not path.exists():
        return
    places: dict[Hashable, tuple[int, int]] = {}
    start = 0
    with disk_faults(path), path.open("rb") as file:
        for line, record in with_lines(file, path, model):
            places[name(record)] = (start, len(line))
            start += len(line)
        wanted = dict.fromkeys(each for each in order if each in places)
        if is_in_order(places, wanted, start):
            return
        temporary = part_of(path)
        with temporary.open("wb") as sorted_file:
            for each in (*wanted, *(each for each in places if each not in wanted)):
                file.seek(places[each][0])
                sorted_file.write(file.read(places[each][1]))
            sorted_file.flush()
            os.fsync(sorted_file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)


def is_in_order(places: Mapping[Hashable, tuple[int, int]], wanted: Collection[Hashable], size: int) -> bool:
    """Whether a file of this size holds each record once, at these places, and first those that are wanted."""
    ends = 0
    for each in (*wanted, *(each for each in places if each not in wanted)):
        start, length = places[each]
        if start != ends:
            return False
        ends += length
    return ends == size
