"""Task making by several workers: the same corpus as by one.

Document k of the stage's order belongs to worker k mod N, so every document has one owner and needs no lock. A
worker reads what the others have finished and stops at the first of its documents that comes after the filled
quota; every task accepted before that document counts, whichever worker made it. Collecting walks the documents in
their order and publishes the stage, as one worker alone would have.

    iteration-NN/tasks/.work/shares/01-of-04-000/{candidates,rollouts,grades}.jsonl
                                    01-of-04.done

Every start of a worker writes to a folder of its own (the last number) and treats what all others hold as
finished: two pods of one worker at the same time, or another N after a restart, do some work twice and
change nothing else. Where a document has two candidates, that of the first folder counts, unless a fault left it
unresolved: the next start makes a candidate of such a document again.
"""

import asyncio
import json
import re
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from pydantic import BaseModel

from scope_selfplay.corpus import TaskSource
from scope_selfplay.errors import ConfigError, OutsideError, RecordError
from scope_selfplay.pipeline import CandidateRecords
from scope_selfplay.run import Run
from scope_selfplay.schemas import Candidate, CandidateStatus
from scope_selfplay.stages.room import warn_of_little_room
from scope_selfplay.stages.stage_runner import begin_attempt, check_budget, inputs_of, run_stage, shares_in
from scope_selfplay.stages.task_making import (
    Make,
    by_document,
    check_enough_accepted,
    has_records,
    open_records,
    task_maker,
    task_sources,
    task_target,
    title_of,
    write_candidates,
)
from scope_selfplay.store import Stage, StageFolder, StageManifest, read_records, write_atomic
from scope_selfplay.store.files import disk_faults, read_value


@dataclass(frozen=True)
class Shard:
    """Worker `number` of `workers`, from 0."""

    number: int
    workers: int

    def __str__(self) -> str:
        return f"{self.number:02d}-of-{self.workers:02d}"


def parse_shard(text: str) -> Shard:
    """`I/N` as a Shard. Raises ConfigError."""
    found = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    if not found or not int(found[1]) < int(found[2]):
        raise ConfigError(f"--shard {text}: expected I/N with I from 0 to N-1, such as 0/4")
    return Shard(int(found[1]), int(found[2]))


def make_share(run: Run, iteration: int, *, shard: Shard) -> None:
    """Make the candidates of one worker's documents that the quota needs. Raises as a stage does."""
    folder = run.folder.stage(iteration, Stage.TASKS)
    done = _shares(folder) / f"{shard}.done"
    if folder.manifest is not None or is_done(folder, done):
        run.progress.say(f"{title_of(iteration)}: the share of worker {shard} is done already")
        return
    sources = task_sources(run, iteration)
    positions = {source.document.id: row for row, source in enumerate(sources)}
    own = new_folder(folder, shard)
    begin_attempt(own.path, own.path)
    warn_of_little_room(run, iteration, Stage.TASKS)
    shared = SharedProgress(folder, positions)
    target, context = task_target(run, iteration), run.stage_context(iteration, Stage.TASKS)
    make = task_maker(run, iteration, context)
    run.progress.begin(f"{title_of(iteration)}, worker {shard}", None)
    shared.refresh()
    mine = [
        source
        for row, source in enumerate(sources)
        if row % shard.workers == shard.number and source.document.id not in shared.finished
    ]

    def in_flight() -> int:
        # Close to the target fewer are started, as in a quota that one worker fills.
        left = 2 * max(0, target - shared.accepted) + 8
        return min(run.config.tasks.in_flight, -(-left // shard.workers))

    with open_records(own) as append:

        def keep(made: CandidateRecords) -> None:
            run.check_outages()
            append(made)
            check_budget(run, context.judge)
            shared.refresh()
            run.progress.advance(shared.accepted, f"of {target} tasks by all workers")

        asyncio.run(
            fill_share(
                mine,
                make,
                in_flight=in_flight,
                is_needed=lambda source: shared.accepted_before(positions[source.document.id]) < target,
                keep=keep,
            )
        )
    seen = [path.name for path in shares_in(folder)]
    write_atomic(done, json.dumps({"attempt": run.attempt, "folders": seen}) + "\n")
    run.progress.end(f"{len(read_records(own.candidates, Candidate))} candidates made")


async def fill_share(
    sources: Sequence[TaskSource],
    make: Make,
    *,
    in_flight: Callable[[], int],
    is_needed: Callable[[TaskSource], bool],
    keep: Callable[[CandidateRecords], None],
    poll: float = 2.0,
) -> None:
    """Make the candidates of one worker's documents, in their order, as long as they are needed.

    `is_needed` may turn false while others work, and then stays false, for this document and all behind it; a
    candidate that is being made for nothing is given up. It is asked at least every `poll` seconds.
    """
    running: dict[asyncio.Future[CandidateRecords], TaskSource] = {}
    waiting = deque(sources)
    try:
        while True:
            while waiting and len(running) < in_flight():
                source = waiting.popleft()
                if not is_needed(source):
                    waiting.clear()
                    break
                running[asyncio.ensure_future(make(source))] = source
            if not running:
                break
            ended, _ = await asyncio.wait(running, timeout=poll, return_when=asyncio.FIRST_COMPLETED)
            for future in ended:
                del running[future]
            # What was made is kept before a fault of another ends the work.
            for future in sorted(ended, key=lambda future: future.exception() is not None):
                keep(future.result())
            for future in [future for future, source in running.items() if not is_needed(source)]:
                del running[future]
                future.cancel()
                await asyncio.gather(future, return_exceptions=True)
    finally:
        for future in running:
            future.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def collect_tasks(run: Run, iteration: int) -> StageManifest:
    """Put the workers' candidates together and publish the stage. Raises OutsideError while one is missing."""

    def work(folder: StageFolder) -> None:
        folders = share_folders(folder)
        run.progress.begin(f"{title_of(iteration)}: collect", None)
        documents = [source.document.id for source in task_sources(run, iteration)]
        kept = up_to_quota(documents, folders, target=task_target(run, iteration))
        write_candidates(folder, kept, folders)
        check_enough_accepted(run, iteration, kept)

    # The held-out tasks come before everything.
    inputs = inputs_of(run, iteration, Stage.TASKS) if iteration else {}
    return run_stage(run, iteration, Stage.TASKS, inputs, work)


def up_to_quota(documents: Sequence[str], made_in: Sequence[StageFolder], *, target: int) -> list[Candidate]:
    """The candidates of `documents`, in this order, up to the one that made `target` accepted.

    Raises OutsideError while one of them is missing.
    """
    made = by_document(made_in)
    kept: list[Candidate] = []
    accepted = 0
    for row, document in enumerate(documents):
        if accepted == target:
            break
        if document not in made:
            raise OutsideError(
                f"document {row} ({document}) of the task making has no candidate yet; let every worker "
                "(--shard I/N) end with exit code 0, then collect again"
            )
        kept.append(made[document])
        accepted += kept[-1].status is CandidateStatus.ACCEPTED
    return kept


class SharedProgress:
    """What all workers have settled so far, read from their growing folders."""

    def __init__(self, folder: StageFolder, positions: Mapping[str, int]) -> None:
        self._folder = folder
        self._positions = positions
        self._read: dict[Path, int] = {}
        self._accepted: list[int] = []
        self.finished: set[str] = set()

    @property
    def accepted(self) -> int:
        return len(self._accepted)

    def accepted_before(self, position: int) -> int:
        """Accepted candidates of the documents before the one at `position`; never shrinks."""
        return bisect_left(self._accepted, position)

    def refresh(self) -> None:
        """Read what was appended since. Raises RecordError for a damaged line."""
        for folder in share_folders(self._folder):
            for line in self._new_lines(folder.candidates):
                try:
                    row = json.loads(line)
                    document, status = row["provenance"]["document_id"], row["status"]
                except (ValueError, KeyError, TypeError):
                    raise RecordError(
                        f"{folder.candidates}: has a damaged line; remove this folder, its documents are made again"
                    ) from None
                if status != CandidateStatus.UNRESOLVED and document not in self.finished:
                    self.finished.add(document)
                    if status == CandidateStatus.ACCEPTED and document in self._positions:
                        insort(self._accepted, self._positions[document])

    def _new_lines(self, path: Path) -> Sequence[bytes]:
        if not path.exists():
            return []
        begin = self._read.get(path, 0)
        with disk_faults(path), path.open("rb") as file:
            file.seek(begin)
            data = file.read()
        # What follows the last line end is being written, or was torn by a kill.
        complete = data.rfind(b"\n") + 1
        self._read[path] = begin + complete
        return data[:complete].splitlines()


def share_folders(folder: StageFolder) -> list[StageFolder]:
    """The stage's own folder (one worker may have begun alone), then the folder of every start of every worker.

    Those whose rollouts or grades are gone count for nothing: their documents are made again.
    """
    return [each for each in (folder, *map(StageFolder, shares_in(folder))) if has_records(each)]


class _ShareNote(BaseModel):
    """What a worker leaves when it is through: the folders of all workers by which it judged what was needed."""

    folders: list[str]


def is_done(folder: StageFolder, done: Path) -> bool:
    """Whether a worker was through with its share, and the folders by which it judged that are all still there."""
    told = read_value(done, _ShareNote, "remove it: what its worker made is looked through again")
    return told is not None and set(told.folders) <= {share.path.name for share in share_folders(folder)}


def new_folder(folder: StageFolder, shard: Shard) -> StageFolder:
    """A folder that nobody writes to but the caller: made by exclusive create, numbered."""
    shares = _shares(folder)
    with disk_faults(shares):
        shares.mkdir(parents=True, exist_ok=True)
        for number in count():
            with suppress(FileExistsError):
                (path := shares / f"{shard}-{number:03d}").mkdir()
                return StageFolder(path)
    raise AssertionError("unreachable")


def _shares(folder: StageFolder) -> Path:
    return folder.work / "shares"
