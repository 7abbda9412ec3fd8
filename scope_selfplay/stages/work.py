"""What every stage does around its work: wait for its turn, skip when done, take fresh documents, account for the
judge, measure its time over all attempts, publish the manifest last.
"""

import hashlib
import itertools
import json
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from scope_selfplay import __version__
from scope_selfplay.base.errors import ConfigError, RunMismatchError, StorageError, UserError
from scope_selfplay.base.machine import folder_lock
from scope_selfplay.base.values import (
    Candidate,
    CandidateStatus,
    Comparison,
    Fault,
    Grade,
    Score,
    Selection,
    Verdict,
    rng_from,
)
from scope_selfplay.config.training import TrainConfig
from scope_selfplay.corpus.read import documents_for, reserves_pages
from scope_selfplay.corpus.screen import TaskSource, assign_sources, page_by_page, shuffled, take_unused
from scope_selfplay.inference.checkpoints import parameters_of
from scope_selfplay.judge.account import (
    ACCOUNT,
    MeteredJudge,
    StageAccount,
    check_failure_budget,
    read_account,
)
from scope_selfplay.judge.checks import canary_words, read_canaries
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.plan.load import training_peak
from scope_selfplay.plan.memory import FULL, HALF
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.run.begin import task_types_of
from scope_selfplay.run.run import Run
from scope_selfplay.run.schedule import stages_of
from scope_selfplay.store.card import CARD, stage_card
from scope_selfplay.store.columns import write_parquet
from scope_selfplay.store.files import disk_faults, read_records, read_rows, read_value, write_atomic
from scope_selfplay.store.folder import (
    MANIFEST,
    Stage,
    StageFolder,
    StageManifest,
    begin_format,
    checksums,
    parse_manifest,
    publish_manifest,
)
from scope_selfplay.store.ratings import read_fork

_TOKEN_BYTES = 5
"""Of a token of text in a record."""
# Seconds: longer than a stopped pod may take to save, and than a network volume takes to forget a lost node.
_LOCK_TIMEOUT = 180.0
# The file of a stage's work folder that marks when an attempt began.
_SPENT = "seconds"
# The documents that a stage used; later stages take others.
_DOCUMENTS = "documents.json"


def run_stage(run: Run, iteration: int, stage: Stage, work: Callable[[StageFolder], None]) -> None:
    """Do a stage's `work`, unless it is done, and publish it.

    One process writes a stage at a time. Two can meet at one: a Job's pod that is still saving while its replacement
    has started, or the same command in two terminals. The second waits for the first; both would append to the same
    files otherwise. Raises StorageError where the lock cannot be written, or stays taken; ConfigError for a stage that
    was made from other inputs.
    """
    folder = run.folder.stage(iteration, stage)
    # The manifests of everything before this stage: a change in one would change this one.
    found = {name: parse_manifest(each.path) for name, each in _folders_before(run, iteration, stage)}
    inputs = {name: manifest.hash for name, manifest in found.items() if manifest is not None}
    # Shared iterations of a fork were made by another run's config.
    fork = read_fork(run.folder)
    config = fork.config_hashes[iteration] if fork and iteration <= fork.after else run.config.hash
    spec = {"config": config, "prompts": run.pack.hash, "stage": stage, "inputs": inputs}
    begun = StageManifest(
        stage=stage.value,
        iteration=iteration,
        spec_hash=hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16],
        inputs=inputs,
        attempt=run.attempt,
        version=__version__,
    )
    if folder.manifest is None:
        lock, say = folder.path.with_name(f".{folder.path.name}.lock"), run.progress.say
        with ExitStack() as stack:
            with disk_faults(lock):
                lock.parent.mkdir(parents=True, exist_ok=True)
                held = folder_lock(folder.path, lock, work="writing", say=say, timeout=_LOCK_TIMEOUT)
                stack.enter_context(held)
            # Another process may have finished it while this one waited.
            if folder.manifest is None:
                _make(run, folder, begun, work)
    done = folder.manifest
    assert done is not None
    if done.spec_hash != begun.spec_hash:
        raise ConfigError(
            f"{folder.path}: was made from other inputs than there are now; remove this stage and the later ones"
        )


def _make(run: Run, folder: StageFolder, begun: StageManifest, work: Callable[[StageFolder], None]) -> None:
    """Do the work, write what readers need, and publish the manifest, filled in, last."""
    iteration, stage = begun.iteration, Stage(begun.stage)
    folder.work.mkdir(parents=True, exist_ok=True)
    begin_format(folder.work)
    earlier, began = begin_attempt(folder.path, folder.work), time.monotonic()
    # Attempts of workers had each a folder of their own.
    marks = [share / _SPENT for share in shares_in(folder)]
    earlier += sum(_since(mark, mark.parent) for mark in marks if mark.exists())
    warn_of_little_room(run, iteration, stage)
    work(folder)
    asked = canary_words(read_canaries(run.folder, iteration, stage))
    if asked:
        run.progress.say(f"iteration {iteration} {stage.value}: canaries {asked}")
    write_account(folder, run.judge_of(stage))
    write_parquet(folder.path)
    write_atomic(folder.path / CARD, stage_card(run.config.name, iteration, stage, folder.path))
    made = {
        "outputs": checksums(folder.path),
        "rows": {path.name: len(read_rows(path)) for path in sorted(folder.path.glob("*.jsonl"))},
        "seconds": round(earlier + time.monotonic() - began, 2),
    }
    publish_manifest(folder.path, begun.model_copy(update=made))
    shutil.rmtree(folder.work, ignore_errors=True)


def write_account(folder: StageFolder, judge: object) -> None:
    """The verdicts behind the records, and what a model judge was asked: of this process, and of ranks that it led."""
    roles: dict[PromptRole, Counter[str]] = defaultdict(Counter)
    if isinstance(judge, ModelJudge):
        ranks = (read_account(path).roles for path in folder.work.glob("rank-*"))
        asked: list[Mapping[PromptRole, Mapping[str, int]]] = [judge.roles, *ranks]
        for role, counts in itertools.chain.from_iterable(each.items() for each in asked):
            roles[role].update(counts)
    faults = [verdict.fault for verdict in _verdicts_in(folder) if verdict.attempts]
    account = StageAccount(
        calls=len(faults),
        unreadable=faults.count(Fault.UNREADABLE),
        failed=len(faults) - faults.count(None),
        roles=dict(sorted(roles.items())),
    )
    write_atomic(folder.path / ACCOUNT, account.model_dump_json(indent=1) + "\n")


def check_turn(run: Run, iteration: int, stage: Stage) -> None:
    """Raises UserError when the run has no such stage or was stopped before it, RunMismatchError when one before it is
    not done.
    """
    stages, this = stages_of(run.config), f"iteration {iteration} {stage.value}"
    if (iteration, stage) not in stages:
        frozen, given = run.config.challenger.freeze_after, run.config.solver.tasks
        raise UserError(
            f"{this}: this run has no such stage; its config has iterations 0 to {stages[-1][0]}, "
            f"challenger.freeze_after={'null' if frozen is None else frozen} and solver.tasks={given or 'null'}"
        )
    for number, before in stages[: stages.index((iteration, stage))]:
        folder = run.folder.stage(number, before)
        if not (folder.path / MANIFEST).exists():
            raise RunMismatchError(
                f"{this}: {folder.path} is not finished; run iteration {number} {before.value} first"
            )
        reason = run.stop_reason(number) if before is Stage.COMPARE and number < iteration else None
        if reason is not None:
            raise UserError(f"{this}: {reason}")


def _folders_before(run: Run, iteration: int, stage: Stage) -> Iterator[tuple[str, StageFolder]]:
    """The name and folder of every stage that comes before this one, in order."""
    for number, other in itertools.product(range(iteration + 1), Stage):
        if (number, other) == (iteration, stage):
            return
        yield f"{number:02d}/{other.value}", run.folder.stage(number, other)


def warn_of_little_room(run: Run, iteration: int, stage: Stage) -> None:
    """Says so, here and to the controller, where less is free than the rest of this stage may need."""
    folder = run.folder.stage(iteration, stage)
    usage, expected = shutil.disk_usage(folder.path), bytes_of(run, iteration, stage) - _size(folder.path)
    # Some volumes do not say what is free.
    if not usage.total or usage.free >= expected:
        folder.room.unlink(missing_ok=True)
        return
    line = (
        f"{folder.path}: {_shown(usage.free)} are free on its volume, and up to {_shown(expected)} may be written; "
        "make room before it is full (`scope plan` shows disk space by stage)"
    )
    run.progress.say(f"warning: {line}")
    # A note is nothing to end a stage for.
    with suppress(StorageError):
        write_atomic(folder.room, line + "\n")


def bytes_of(run: Run, iteration: int, stage: Stage) -> int:
    """The most that a stage has on disk at once: the texts of rollouts as long as they may be, and a training's weights
    by the tensors of the base model.
    """
    config, tasks = run.config, run.config.tasks
    settings: TrainConfig | None = None
    challenger, solver = config.challenger, config.solver
    candidates = tasks.max_candidates or 4 * (tasks.target if iteration else config.compare.tasks)
    # Rollouts of the Challenger and of the Solver.
    match stage:
        case Stage.CHALLENGER:
            writing, settings = challenger.steps * challenger.batch * challenger.group_size, challenger
            answering = writing * challenger.rollouts
        case Stage.TASKS:
            writing, answering = candidates, candidates * tasks.rollouts if iteration else 0
        case Stage.SOLVER:
            writing, answering, settings = 0, solver.steps * solver.batch * solver.group_size, solver
        case Stage.COMPARE:
            writing, answering = 0, config.compare.tasks
    text = _TOKEN_BYTES * (writing * challenger.max_response + answering * solver.max_response)
    if settings is None:
        return text
    parameters = parameters_of(run.base)
    # Of an adapter's checkpoints nothing is known.
    checkpoint = 0 if config.model.lora_rank else 3 * FULL * parameters
    return text + int(training_peak(settings, checkpoint, HALF * parameters))


def _size(folder: Path) -> int:
    """Of all files below a folder; one that goes meanwhile counts for nothing."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _shown(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"


def begin_attempt(stage: Path, work: Path) -> float:
    """Note in a stage's work folder that an attempt begins; the seconds that all earlier ones took.

    A kill ends an attempt without a trace. So it began at the time of the file that it writes first, and ended at that
    of the last file it wrote: both are the volume's clock, on which pods on nodes with different clocks agree.
    """
    file = work / _SPENT
    spent = float(file.read_text()) + _since(file, stage) if file.exists() else 0.0
    write_atomic(file, f"{spent:.2f}\n")
    return spent


def _since(mark: Path, folder: Path) -> float:
    """From when the mark was written until something below the folder was for the last time."""
    last = max((path.stat().st_mtime for path in folder.rglob("*") if path.is_file()), default=0.0)
    return max(0.0, last - mark.stat().st_mtime)


def shares_in(folder: StageFolder) -> list[Path]:
    """The folders of workers that shared the stage's documents; one of its own for every start of each."""
    return sorted(path for path in (folder.work / "shares").glob("*-of-*-*") if path.is_dir())


def _verdicts_in(folder: StageFolder) -> list[Verdict]:
    """Every verdict behind the records that a stage keeps, whichever try it came from.

    Candidates of one task share its gate verdicts: the judge was asked once.
    """
    candidates = read_records(folder.candidates, Candidate)
    gates = {(candidate.task or candidate).id: candidate.gates for candidate in candidates}
    verdicts: list[Verdict | None] = [verdict for asked in gates.values() for verdict in asked.values()]
    verdicts += [verdict for grade in read_records(folder.grades, Grade) for verdict in grade.verdicts]
    verdicts += [comparison.verdict for comparison in read_records(folder.comparisons, Comparison)]
    verdicts += [selection.verdict for selection in read_records(folder.selections, Selection)]
    verdicts += [score.verdict for score in read_records(folder.scores, Score)]
    return [verdict for verdict in verdicts if verdict is not None]


def stage_sources(
    run: Run, iteration: int, stage: Stage, count: int, *, or_fewer: bool = False
) -> list[TaskSource]:
    """`count` documents that no stage before has used, with task types and search turns assigned.

    `or_fewer`: as many as there are. Raises CorpusError where too few are left.
    """
    fork, advice = read_fork(run.folder), "restore it, or remove the stage folder"
    taken = set(fork.held_out if fork else ())
    for name, folder in _folders_before(run, iteration, stage):
        used = set(read_value(folder.path / _DOCUMENTS, list[str], advice) or ())
        is_shared = fork is not None and int(name.partition("/")[0]) <= fork.after
        taken |= used.difference(fork.rewritten) if fork and is_shared else used
    pool = documents_for(run.documents, held_out=iteration == 0)
    if or_fewer:
        count = min(count, len({document.id for document in pool} - taken))
    order = shuffled(pool, seed=run.config.seed)
    documents = take_unused(
        page_by_page(order) if iteration == 0 and reserves_pages(run.config, run.documents) else order,
        count=count,
        taken=taken,
        wanted_by=f"iteration {iteration} {stage.value}",
    )
    return assign_sources(
        documents,
        {kind.name: kind.weight for kind in task_types_of(run.config, run.pack)},
        rng_from(*run.key(iteration, stage), "prompts"),
        ratio=run.config.tasks.search_turns or run.pack.domain.search_turns,
    )


def write_documents(folder: StageFolder, ids: Sequence[str]) -> None:
    write_atomic(folder.path / _DOCUMENTS, json.dumps(list(ids)) + "\n")


def accepted_in(folder: StageFolder) -> list[Candidate]:
    candidates = read_records(folder.candidates, Candidate)
    return [candidate for candidate in candidates if candidate.status is CandidateStatus.ACCEPTED]


def check_budget(run: Run, judge: MeteredJudge) -> None:
    """Raises JudgeError when more verdicts of a stage failed than its budget allows."""
    check_failure_budget(judge.tally.calls, judge.tally.failed, run.config.judge.failure_budget)
