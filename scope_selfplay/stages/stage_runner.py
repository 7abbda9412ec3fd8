"""What every stage does around its work: wait for its turn, skip when done, take fresh documents, account for the
judge, measure its time over all attempts, publish the manifest last.
"""

import contextlib
import hashlib
import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scope_selfplay import __version__
from scope_selfplay.corpus import TaskSource, assign_sources, documents_for, shuffled, take_unused
from scope_selfplay.errors import ConfigError, RunMismatchError, UserError
from scope_selfplay.folder_lock import folder_lock
from scope_selfplay.judge.metered import JudgeTally, MeteredJudge, check_failure_budget
from scope_selfplay.judge.metrics import added
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.keys import rng_from
from scope_selfplay.run import Run
from scope_selfplay.run_directory import task_types_of
from scope_selfplay.schedule import stages_of
from scope_selfplay.schemas import Candidate, CandidateStatus, Comparison, Grade, Score, Selection, Verdict
from scope_selfplay.stages.room import warn_of_little_room
from scope_selfplay.store import (
    Stage,
    StageFolder,
    StageManifest,
    publish_manifest,
    read_records,
    write_atomic,
)
from scope_selfplay.store.card import CARD, stage_card
from scope_selfplay.store.files import disk_faults, read_rows, read_value
from scope_selfplay.store.folders import MANIFEST, begin_format, checksums, parse_manifest
from scope_selfplay.store.judge_checks import canary_words, count_canaries, read_canaries
from scope_selfplay.store.parquet import write_parquet

# Seconds: longer than a stopped pod may take to save, and than a network volume takes to forget a lost node.
_LOCK_TIMEOUT = 180.0
# The file of a stage's work folder that marks when an attempt began.
_SPENT = "seconds"
_USAGE = "judge_usage.json"
# The documents that a stage used; later stages take others.
_DOCUMENTS = "documents.json"


def run_stage(
    run: Run, iteration: int, stage: Stage, inputs: dict[str, str], work: Callable[[StageFolder], None]
) -> StageManifest:
    folder = run.folder.stage(iteration, stage)
    spec = {
        "config": run.config_hash_of(iteration),
        "prompts": run.pack.hash,
        "stage": stage,
        "inputs": inputs,
    }
    spec_hash = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    if folder.manifest is None:
        with _stage_lock(run, folder):
            # Another process may have finished it while this one waited.
            if folder.manifest is None:
                begun = StageManifest(
                    stage=stage.value,
                    iteration=iteration,
                    spec_hash=spec_hash,
                    inputs=inputs,
                    attempt=run.attempt,
                    version=__version__,
                )
                _make(run, folder, begun, work)
    done = folder.manifest
    assert done is not None
    if done.spec_hash != spec_hash:
        raise ConfigError(
            f"{folder.path}: was made from other inputs than there are now; remove this stage and the later ones"
        )
    return done


@contextlib.contextmanager
def _stage_lock(run: Run, folder: StageFolder) -> Iterator[None]:
    """One process writes a stage at a time; StorageError where the lock cannot be written, or stays taken.

    Two can meet at one stage: a Job's pod that is still saving while its replacement has started, or the same command
    in two terminals. The second waits for the first; both would append to the same files otherwise.
    """
    lock = folder.path.with_name(f".{folder.path.name}.lock")
    with contextlib.ExitStack() as stack:
        with disk_faults(lock):
            lock.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(
                folder_lock(folder.path, lock, work="writing", say=run.progress.say, timeout=_LOCK_TIMEOUT)
            )
        yield


def _make(run: Run, folder: StageFolder, begun: StageManifest, work: Callable[[StageFolder], None]) -> None:
    """Do the work, write what readers need, and publish the manifest, filled in, last."""
    folder.work.mkdir(parents=True, exist_ok=True)
    begin_format(folder.work)
    earlier, began = begin_attempt(folder.path, folder.work), time.monotonic()
    earlier += time_of_attempts(shares_in(folder))
    warn_of_little_room(run, begun.iteration, Stage(begun.stage))
    work(folder)
    asked = canary_words(count_canaries(read_canaries(run.folder, begun.iteration, Stage(begun.stage))))
    if asked:
        run.progress.say(f"iteration {begun.iteration} {begun.stage}: canaries {asked}")
    tally = tally_of_records(folder)
    account = {"calls": tally.calls, "unreadable": tally.unreadable, "failed": tally.failed}
    write_atomic(folder.path / "judge.json", json.dumps(account) + "\n")
    write_usage(folder, run.judge_of(Stage(begun.stage)))
    write_parquet(folder.path)
    write_atomic(
        folder.path / CARD, stage_card(run.config.name, begun.iteration, Stage(begun.stage), folder.path)
    )
    made = {
        "outputs": checksums(folder.path),
        "rows": {path.name: len(read_rows(path)) for path in sorted(folder.path.glob("*.jsonl"))},
        "seconds": round(earlier + time.monotonic() - began, 2),
    }
    publish_manifest(folder.path, begun.model_copy(update=made))
    shutil.rmtree(folder.work, ignore_errors=True)


def write_usage(folder: StageFolder, judge: object) -> None:
    """What was asked of a model judge, by role: of this process, and of the ranks that it led."""
    if isinstance(judge, ModelJudge):
        others = [
            read_value(file, dict[str, Any], "remove it") or {}
            for file in folder.work.glob(f"rank-*/{_USAGE}")
        ]
        write_atomic(folder.path / _USAGE, json.dumps(added([judge.account(), *others]), indent=1) + "\n")


def begin_attempt(stage: Path, work: Path) -> float:
    """Note in a stage's work folder that an attempt begins; the seconds that all earlier ones took.

    A kill ends an attempt without a trace. So it began at the time of the file that it writes first, and ended at that
    of the last file it wrote: both are the volume's clock, on which pods on nodes with different clocks agree.
    """
    file = work / _SPENT
    spent = float(file.read_text()) + _since(file, stage) if file.exists() else 0.0
    write_atomic(file, f"{spent:.2f}\n")
    return spent


def time_of_attempts(folders: list[Path]) -> float:
    """Seconds of attempts that have each had a folder of their own, marked by `begin_attempt(folder, folder)`."""
    marks = [folder / _SPENT for folder in folders]
    return sum(_since(mark, mark.parent) for mark in marks if mark.exists())


def _since(mark: Path, folder: Path) -> float:
    """From when the mark was written until something below the folder was for the last time."""
    last = max((path.stat().st_mtime for path in folder.rglob("*") if path.is_file()), default=0.0)
    return max(0.0, last - mark.stat().st_mtime)


def shares_in(folder: StageFolder) -> list[Path]:
    """The folders of workers that shared the stage's documents; one of its own for every start of each."""
    return sorted(path for path in (folder.work / "shares").glob("*-of-*-*") if path.is_dir())


def tally_of_records(folder: StageFolder) -> JudgeTally:
    """Every verdict behind the records that a stage keeps, whichever try it came from.

    Candidates of one task share its gate verdicts: the judge was asked once.
    """
    tally = JudgeTally()
    candidates = read_records(folder.candidates, Candidate)
    gates = {(candidate.task or candidate).id: candidate.gates for candidate in candidates}
    verdicts: list[Verdict | None] = [verdict for asked in gates.values() for verdict in asked.values()]
    verdicts += [verdict for grade in read_records(folder.grades, Grade) for verdict in grade.verdicts]
    verdicts += [comparison.verdict for comparison in read_records(folder.comparisons, Comparison)]
    verdicts += [selection.verdict for selection in read_records(folder.selections, Selection)]
    verdicts += [score.verdict for score in read_records(folder.scores, Score)]
    for verdict in verdicts:
        if verdict is not None:
            tally.add(verdict)
    return tally


def _folders_before(run: Run, iteration: int, stage: Stage) -> Iterator[tuple[str, StageFolder]]:
    """The name and folder of every stage that comes before this one, in order."""
    for number, other in itertools.product(range(iteration + 1), Stage):
        if (number, other) == (iteration, stage):
            return
        yield f"{number:02d}/{other.value}", run.folder.stage(number, other)


def inputs_of(run: Run, iteration: int, stage: Stage) -> dict[str, str]:
    """The manifests of everything before this stage; a change in one would change this one."""
    manifests = {name: parse_manifest(folder.path) for name, folder in _folders_before(run, iteration, stage)}
    return {name: manifest.hash for name, manifest in manifests.items() if manifest is not None}


def check_turn(run: Run, iteration: int, stage: Stage) -> None:
    """Raises UserError when the run has no such stage or was stopped before it, RunMismatchError when one before it is
    not done.
    """
    stages = stages_of(run.config)
    if (iteration, stage) not in stages:
        last = max(number for number, _ in stages)
        raise UserError(
            f"iteration {iteration} {stage.value}: this run has no such stage; its config has iterations 0 to {last}"
            f", challenger.freeze_after={_shown(run.config.challenger.freeze_after)} and solver.tasks="
            f"{_shown(run.config.solver.tasks)}"
        )
    for number, before in stages[: stages.index((iteration, stage))]:
        folder = run.folder.stage(number, before)
        if not (folder.path / MANIFEST).exists():
            raise RunMismatchError(
                f"iteration {iteration} {stage.value}: {folder.path} is not finished; run iteration {number} "
                f"{before.value} first"
            )
        reason = run.stop_reason(number) if before is Stage.COMPARE and number < iteration else None
        if reason is not None:
            raise UserError(f"iteration {iteration} {stage.value}: {reason}")


def _shown(setting: object) -> str:
    return "null" if setting is None else str(setting)


def stage_sources(
    run: Run, iteration: int, stage: Stage, count: int, *, or_fewer: bool = False
) -> list[TaskSource]:
    """`count` documents that no stage before has used, with task types and search turns assigned.

    `or_fewer`: as many as there are. Raises CorpusError where too few are left.
    """
    lists = [folder.path / _DOCUMENTS for _, folder in _folders_before(run, iteration, stage)]
    advice = "restore it, or remove the stage folder"
    taken = {name for path in lists for name in read_value(path, list[str], advice) or ()}
    pool = documents_for(run.documents, held_out=iteration == 0)
    if or_fewer:
        count = min(count, len({document.id for document in pool} - taken))
    documents = take_unused(
        shuffled(pool, seed=run.config.seed),
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
