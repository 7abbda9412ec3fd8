"""Held-out tasks, and the stage `tasks`: a Challenger writes tasks over fresh documents until enough are accepted.

The quota of tasks fills in document order, not in finishing order: which tasks are kept depends neither on timing nor
on how many workers make them. Document k of the stage's order belongs to worker k mod N, so every document has one
owner and needs no lock; a single worker owns all of them. Each reads what all have finished and stops at the first of
its documents that comes after the filled quota. Collecting walks the documents in their order and publishes the stage.

    iteration-NN/tasks/{candidates,rollouts,grades}.jsonl                           one worker alone
                       .work/shares/01-of-04-000/{candidates,rollouts,grades}.jsonl
                                    01-of-04.through

Every start of one of several workers writes to a folder of its own (the last number) and treats what all others hold
as finished: two pods of one worker at the same time, or another N after a restart, do some work twice and change
nothing else. Where a document has two candidates, that of the first folder counts, unless a fault left it unresolved:
the next start makes a candidate of such a document again.
"""

import asyncio
import json
import math
import re
from bisect import bisect_left, insort
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from pydantic import BaseModel

from scope_selfplay.base.errors import ConfigError, CorpusError, JudgeError, OutsideError, RecordError
from scope_selfplay.base.text import letters_of, opening
from scope_selfplay.base.values import Candidate, CandidateStatus, Grade, Reason, Role, Rollout
from scope_selfplay.corpus.read import documents_for, reserves_pages
from scope_selfplay.corpus.screen import TaskSource, kin_of
from scope_selfplay.corpus.world import embedded_tasks
from scope_selfplay.judge.protocol import RubricQuestion
from scope_selfplay.run.candidate import CandidateRecords, SolverTrial, TaskWriter
from scope_selfplay.run.given import EMBEDDED, given_candidate, read_given_tasks
from scope_selfplay.run.run import Run
from scope_selfplay.stages.work import (
    begin_attempt,
    check_budget,
    run_stage,
    shares_in,
    stage_sources,
    warn_of_little_room,
    write_documents,
)
from scope_selfplay.store.columns import TaskTarget, append_records
from scope_selfplay.store.files import (
    NewLines,
    disk_faults,
    read_records,
    read_value,
    write_atomic,
    write_records,
)
from scope_selfplay.store.folder import Stage, StageFolder

Kept = tuple[Candidate, StageFolder]
"""A candidate, and the folder of whoever made it."""


@dataclass(frozen=True)
class Shard:
    """Worker `number` of `workers`, from 0."""

    number: int = 0
    workers: int = 1

    def __str__(self) -> str:
        return f"{self.number:02d}-of-{self.workers:02d}"


def parse_shard(text: str) -> Shard:
    """`I/N` as a Shard. Raises ConfigError."""
    found = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    if not found or not int(found[1]) < int(found[2]):
        raise ConfigError(f"--shard {text}: expected I/N with I from 0 to N-1, such as 0/4")
    return Shard(int(found[1]), int(found[2]))


def make_tasks(run: Run, iteration: int) -> None:
    """The held-out tasks of iteration 0: given ones, or C_0's, judged but not filtered by difficulty. Later
    C_t writes tasks over fresh documents until enough lie inside the difficulty window of S_{t-1}.
    """

    def work(folder: StageFolder) -> None:
        if iteration == 0 and run.config.held_out is not None:
            write_candidates(folder, [(each, folder) for each in asyncio.run(_given_tasks(run))])
            return
        if not _has_records(folder):
            # Somebody removed what belongs to them: their documents are made again.
            folder.candidates.unlink()
        _make_candidates(run, iteration, folder, Shard())
        _collect(run, iteration, folder)

    run_stage(run, iteration, Stage.TASKS, work)


def make_share(run: Run, iteration: int, *, shard: Shard) -> None:
    """Make the candidates of one worker's documents that the quota needs. Raises as a stage does."""
    folder = run.folder.stage(iteration, Stage.TASKS)
    # Notes of 0.2, `.done`, are of another order of documents.
    done = folder.work / "shares" / f"{shard}.through"
    if folder.manifest is not None or is_done(folder, done):
        run.progress.say(f"{_title(iteration)}: the share of worker {shard} is done already")
        return
    own = new_folder(folder, shard)
    begin_attempt(own.path, own.path)
    warn_of_little_room(run, iteration, Stage.TASKS)
    _make_candidates(run, iteration, own, shard)
    seen = [path.name for path in shares_in(folder)]
    write_atomic(done, json.dumps({"attempt": run.attempt, "folders": seen}) + "\n")
    run.progress.end(f"{len(read_records(own.candidates, Candidate))} candidates made")


def collect_tasks(run: Run, iteration: int) -> None:
    """Put the workers' candidates together and publish the stage. Raises OutsideError while one is missing."""

    def work(folder: StageFolder) -> None:
        run.progress.begin(f"{_title(iteration)}: collect", None)
        _collect(run, iteration, folder)

    run_stage(run, iteration, Stage.TASKS, work)


async def _given_tasks(run: Run) -> list[Candidate]:
    """Every checkpoint is graded by the same rubrics: those that given tasks lack are written once."""
    count, judge = run.config.compare.tasks, run.stage_context(0, Stage.TASKS).judge
    documents = {document.id: document for document in run.documents}
    if run.config.held_out == EMBEDDED:
        held_out = documents_for(run.documents, held_out=True)
        candidates = list(map(given_candidate, embedded_tasks(run.config.seed, held_out, count)))
    else:
        candidates = read_given_tasks(str(run.config.held_out), "compare.given", run.folder)[:count]
    run.progress.say(f"held-out tasks: {len(candidates)} of {run.config.held_out}")

    async def complete(candidate: Candidate) -> Candidate:
        if candidate.rubric is not None or candidate.task is None:
            return candidate
        shown = dict.fromkeys((candidate.task.document_id, *candidate.task.evidence_ids))
        sources = [documents[name] for name in shown if name in documents]
        rubric = (await judge.ask(RubricQuestion(candidate.task, sources))).value
        run.check_outages()
        if rubric is None:
            raise JudgeError(
                f"compare.given: the judge wrote no rubric for {candidate.task.id}; run again, or add `rubric` to it"
            )
        # Nobody searched for a given task: what its source does not hold is no fault of its rubric.
        criteria = tuple(each.model_copy(update={"evidence": None}) for each in rubric.criteria)
        return candidate.model_copy(update={"rubric": rubric.model_copy(update={"criteria": criteria})})

    return list(await asyncio.gather(*map(complete, candidates)))


def _make_candidates(run: Run, iteration: int, own: StageFolder, shard: Shard) -> None:
    """Write to the folder `own` the candidates of the worker's documents that the quota needs."""
    sources = _sources(run, iteration)
    positions = {source.document.id: row for row, source in enumerate(sources)}
    target, context = _target(run, iteration), run.stage_context(iteration, Stage.TASKS)
    policy, solver = run.challenger(iteration), run.promoted_solver(iteration - 1) if iteration else None
    tries = run.config.tasks.rollouts
    writer = TaskWriter(
        context,
        None if solver is None else SolverTrial(run.player(solver, Role.SOLVER), tries, window=True),
        run.provenance(iteration, Stage.TASKS, policy, solver),
        run.key(iteration, Stage.TASKS),
        run.player(policy, Role.CHALLENGER),
    )
    shared = SharedProgress(run.folder.stage(iteration, Stage.TASKS), positions, most_alike(run, iteration))
    shared.refresh()
    mine = [
        source
        for row, source in enumerate(sources)
        if row % shard.workers == shard.number and source.document.id not in shared.finished
    ]
    alone = shard.workers == 1
    run.progress.begin(_title(iteration) + ("" if alone else f", worker {shard}"), target)

    async def make(source: TaskSource) -> CandidateRecords:
        rollout = await writer.write(source)
        made = await writer.judge(source, rollout)
        return replace(made, rollouts=(rollout, *made.rollouts))

    def in_flight() -> int:
        # Close to the target fewer are started: most of what runs behind the last accepted is not kept.
        left = 2 * max(0, target - shared.accepted) + 8
        return min(run.config.tasks.in_flight, -(-left // shard.workers))

    def keep(made: CandidateRecords) -> None:
        run.check_outages()
        keep_records(own, made)
        check_budget(run, context.judge)
        shared.refresh()
        right = [each.is_right for each in context.canaries.verdicts] if context.canaries else []
        tried = f"of {len(shared.finished)} candidates"
        tried += f", canaries {sum(right)}/{len(right)}" if right else ""
        run.progress.advance(min(target, shared.accepted), tried if alone else f"{tried} of all workers")

    def is_needed(source: TaskSource) -> bool:
        return shared.accepted_before(positions[source.document.id]) < target

    asyncio.run(fill_quota(mine, make, in_flight=in_flight, is_needed=is_needed, keep=keep))


async def fill_quota(
    sources: Sequence[TaskSource],
    make: Callable[[TaskSource], Awaitable[CandidateRecords]],
    *,
    in_flight: Callable[[], int],
    is_needed: Callable[[TaskSource], bool],
    keep: Callable[[CandidateRecords], None],
    poll: float = 2.0,
) -> None:
    """Make the candidates of one worker's documents, in their order, as long as they are needed.

    `is_needed` may turn false while others work, and then stays false, for this document and all behind it; a
    candidate that is being made for nothing is given up. It is asked at least every `poll` seconds. `keep` is called
    with each candidate as soon as it exists.
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


def _target(run: Run, iteration: int) -> int:
    """How many accepted tasks the stage needs."""
    return run.config.tasks.target if iteration else run.config.compare.tasks


def _sources(run: Run, iteration: int) -> list[TaskSource]:
    """As many fresh documents as may be tried, or as there are, in the order in which the quota fills."""
    wanted = run.config.tasks.max_candidates or 4 * _target(run, iteration)
    return stage_sources(run, iteration, Stage.TASKS, wanted, or_fewer=True)


def _title(iteration: int) -> str:
    return "make held-out tasks" if iteration == 0 else f"iteration {iteration}: make tasks"


def keep_records(folder: StageFolder, made: CandidateRecords) -> None:
    """Add a candidate, and everything generated for it, to the folder's records."""
    for file in (folder.rollouts, folder.grades):
        # Where nothing was generated it has to be there too (see `share_folders`).
        file.touch()
    append_records(folder, [*made.rollouts, *made.grades])
    # Last: it says that everything of it is on disk.
    append_records(folder, [made.candidate])


class SharedProgress:
    """What all workers have settled so far, read from their growing folders."""

    def __init__(self, folder: StageFolder, positions: Mapping[str, int], most_alike: int = 1 << 30) -> None:
        self._folder = folder
        self._positions = positions
        self._most_alike = most_alike
        self._lines: dict[Path, NewLines] = {}
        self._accepted: defaultdict[str, list[int]] = defaultdict(list)
        self._first: dict[str, int] = {}
        self.finished: set[str] = set()

    @property
    def accepted(self) -> int:
        return self.accepted_before(len(self._positions))

    def accepted_before(self, position: int) -> int:
        """Accepted candidates of the documents before the one at `position`, as many as are kept; never shrinks."""
        return sum(min(bisect_left(rows, position), self._most_alike) for rows in self._accepted.values())

    def refresh(self) -> None:
        """Read what was appended since. Raises RecordError for a damaged line."""
        for folder in share_folders(self._folder):
            lines = self._lines.setdefault(folder.path, NewLines(folder.candidates))
            for line in b"".join(lines.blocks(1 << 20)).splitlines():
                try:
                    row = json.loads(line)
                    document, status = row["provenance"]["document_id"], row["status"]
                    text = (row.get("task") or {}).get("text", "")
                except (ValueError, KeyError, TypeError):
                    raise RecordError(
                        f"{folder.candidates}: has a damaged line; remove this folder, its documents are made again"
                    ) from None
                if status != CandidateStatus.UNRESOLVED and document not in self.finished:
                    self.finished.add(document)
                    if status == CandidateStatus.ACCEPTED and document in self._positions:
                        self._accept(text, self._positions[document])

    def _accept(self, text: str, position: int) -> None:
        """Of tasks that ask the same the first counts."""
        alike, same = self._accepted[opening(text)], letters_of(text)
        known = self._first.get(same)
        if known is None or position < known:
            insort(alike, position)
            self._first[same] = position
            if known is not None:
                alike.remove(known)


def share_folders(folder: StageFolder) -> list[StageFolder]:
    """The stage's own folder (one worker may have begun alone), then the folder of every start of every worker.

    Those whose rollouts or grades are gone count for nothing: their documents are made again.
    """
    return [each for each in (folder, *map(StageFolder, shares_in(folder))) if _has_records(each)]


def _has_records(folder: StageFolder) -> bool:
    """Whether what was made for the candidates of a folder is there beside them, unless somebody removed it."""
    return not folder.candidates.exists() or (folder.rollouts.exists() and folder.grades.exists())


class _ShareNote(BaseModel):
    """What a worker leaves when it is through: the folders of all workers by which it judged what was needed."""

    folders: list[str]


def is_done(folder: StageFolder, done: Path) -> bool:
    """Whether a worker was through with its share, and the folders by which it judged that are all still there."""
    told = read_value(done, _ShareNote, "remove it: what its worker made is looked through again")
    return told is not None and {share.path.name for share in share_folders(folder)}.issuperset(told.folders)


def new_folder(folder: StageFolder, shard: Shard) -> StageFolder:
    """A folder that nobody writes to but the caller: made by exclusive create, numbered."""
    shares = folder.work / "shares"
    with disk_faults(shares):
        shares.mkdir(parents=True, exist_ok=True)
        for number in count():
            with suppress(FileExistsError):
                (path := shares / f"{shard}-{number:03d}").mkdir()
                return StageFolder(path)
    raise AssertionError("unreachable")


def _collect(run: Run, iteration: int, folder: StageFolder) -> None:
    """Leave the kept candidates of all workers in the stage's records, and say how many were accepted."""
    documents = [source.document.id for source in _sources(run, iteration)]
    target, alike = _target(run, iteration), most_alike(run, iteration)
    kept = up_to_quota(documents, share_folders(folder), target=target, most_alike=alike)
    kin: list[str] = []
    if iteration == 0 and reserves_pages(run.config, run.documents):
        held = {each.provenance.document_id for each, _ in kept if each.status is CandidateStatus.ACCEPTED}
        if kin := kin_of(held, run.documents):
            run.progress.say(f"{len(kin):,} documents of held-out pages, or nearly the same, give no tasks")
    write_candidates(folder, kept, kin)
    check_enough_accepted(run, iteration, [candidate for candidate, _ in kept])


def most_alike(run: Run, iteration: int) -> int:
    """How many accepted tasks may begin alike."""
    # .29 * 100 is a little less than 29.
    return max(1, math.floor(run.config.tasks.largest_share * _target(run, iteration) + 1e-9))


def up_to_quota(
    documents: Sequence[str], made_in: Sequence[StageFolder], *, target: int, most_alike: int = 1 << 30
) -> list[Kept]:
    """The candidates of `documents`, in this order, up to the one that made `target` accepted: of each the first that
    was settled, else the last that was tried. One that a fault left unresolved is made again: the judge, an engine or
    the retriever may have been down. Of those that ask the same the first is accepted, and of those that begin alike
    the first `most_alike`.

    Raises OutsideError while one of them is missing.
    """
    made: dict[str, Kept] = {}
    for folder in made_in:
        for candidate in read_records(folder.candidates, Candidate):
            name = candidate.provenance.document_id
            if name not in made or made[name][0].status is CandidateStatus.UNRESOLVED:
                made[name] = (candidate, folder)
    kept: list[Kept] = []
    alike, asked, accepted = Counter[str](), set[str](), 0
    for row, document in enumerate(documents):
        if accepted == target:
            break
        if document not in made:
            raise OutsideError(
                f"document {row} ({document}) of the task making has no candidate yet; let every worker "
                "(--shard I/N) end with exit code 0, then collect again"
            )
        candidate, folder = made[document]
        if candidate.status is CandidateStatus.ACCEPTED and candidate.task is not None:
            kind, same = opening(candidate.task.text), letters_of(candidate.task.text)
            alike[kind] += same not in asked
            if same in asked or alike[kind] > most_alike:
                reason = Reason.DUPLICATE if same in asked else Reason.TOO_ALIKE
                refused = {"status": CandidateStatus.REJECTED, "reason": reason}
                candidate = candidate.model_copy(update=refused)
            asked.add(same)
        kept.append((candidate, folder))
        accepted += candidate.status is CandidateStatus.ACCEPTED
    return kept


def write_candidates(folder: StageFolder, kept: Sequence[Kept], kin: Sequence[str] = ()) -> None:
    """Leave exactly the kept candidates in the stage's records, in document order, with what belongs to them. From
    documents of the ids in `kin` later stages write no tasks either.
    """
    own = {
        name: made_in for each, made_in in kept for name in (each.challenger_rollout_id, *each.rollout_ids)
    }
    rollouts, grades = dict[str, Rollout](), dict[str, Grade]()
    for made_in in {made_in for _, made_in in kept}:
        found = read_records(made_in.rollouts, Rollout), read_records(made_in.grades, Grade)
        rollouts |= {each.id: each for each in found[0] if own.get(each.id) is made_in}
        grades |= {each.rollout_id: each for each in found[1] if own.get(each.rollout_id) is made_in}
    write_records(folder.rollouts, [rollouts[name] for name in own if name in rollouts])
    write_records(folder.grades, [grades[name] for name in own if name in grades])
    write_records(folder.candidates, [candidate for candidate, _ in kept])
    documents = [candidate.provenance.document_id for candidate, _ in kept]
    # A given task has no document.
    write_documents(folder, list(dict.fromkeys(filter(None, [*documents, *kin]))))


def check_enough_accepted(run: Run, iteration: int, kept: Sequence[Candidate]) -> None:
    """Say and note how many were accepted. Raises CorpusError when they are too few to go on with."""
    target = _target(run, iteration)
    accepted = sum(candidate.status is CandidateStatus.ACCEPTED for candidate in kept)
    run.progress.end(f"{accepted} of {len(kept)} candidates accepted")
    if accepted < target:
        reasons = Counter(candidate.reason for candidate in kept)
        counts = ", ".join(f"{reason} {number}" for reason, number in sorted(reasons.items()))
        enough = run.config.solver.batch if iteration else 1
        if accepted < enough:
            # Held-out tasks are accepted whatever their difficulty: no window could be widened for them.
            easier = "add documents, widen tasks.low/tasks.high," if iteration else "add held-out documents"
            rollouts = read_records(run.folder.stage(iteration, Stage.TASKS).rollouts, Rollout)
            if errors := Counter(each.error for each in rollouts if each.error).most_common(1):
                counts += f", {errors[0][1]} times: {errors[0][0]}"
            raise CorpusError(
                f"iteration {iteration}: only {accepted} of {len(kept)} candidates were accepted, {enough} are needed "
                f"({counts}); {easier} or see `scope tasks ls {run.folder.path} --iteration {iteration}`"
            )
        run.progress.say(
            f"WARNING: iteration {iteration} ended below its target, with {accepted} of {target} tasks ({counts}); it "
            "goes on with these"
        )
    reached = TaskTarget(accepted=accepted, target=target)
    write_atomic(run.folder.stage(iteration, Stage.TASKS).target, reached.model_dump_json() + "\n")
