"""Warm start before iteration 1: a policy learns the protocol from trajectories, or from what a run accepted."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scope_selfplay.corpus import TaskSource
from scope_selfplay.dialects import Dialect
from scope_selfplay.episodes import Episode, PolicyFormat
from scope_selfplay.errors import UserError
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.run import Run
from scope_selfplay.schemas import Grade, Role, Rollout, RolloutStatus
from scope_selfplay.stages.stage_runner import accepted_in
from scope_selfplay.stages.training import lineage_of
from scope_selfplay.store import Stage, StageFolder, read_records
from scope_selfplay.store.human import HumanFolder
from scope_selfplay.store.weights import Policy, weights_hash
from scope_selfplay.training.policy import policy_path
from scope_selfplay.training.rows import TrainingRow, rows_from
from scope_selfplay.training.trained_model import Lineage
from scope_selfplay.training.trajectories import trajectory_rows
from scope_selfplay.training.warm_start import WarmStart, replay, sft


@dataclass(frozen=True)
class WarmStartRows:
    """Rows to learn from; `refused` rollouts do not read back in this family as they were recorded."""

    rows: list[TrainingRow]
    rollouts: int
    refused: int


def warm_start(run: Run, out: Path, *, min_score: float, settings: WarmStart) -> list[float]:
    """Train M0 on the accepted rollouts of all of a run's iterations. Returns the losses.

    Raises UserError where `out` is taken, CorpusError where nothing is left to learn from.
    """
    if out.exists():
        raise UserError(f"{out}: exists already; give another --out")
    found = warm_start_rows(run, min_score=min_score)
    run.progress.say(
        f"{found.rollouts} rollouts, {len(found.rows)} rows; {found.refused} do not read back in "
        f"{run.config.model.dialect}"
    )
    lineage = lineage_of(run, "warm start", 0, "M0")
    return sft(found.rows, run.base, out, settings=settings, codec=run.codec, lineage=lineage)


def learn_from_trajectories(
    files: Sequence[Path],
    start: Path,
    out: Path,
    *,
    family: Dialect,
    max_length: int,
    settings: WarmStart,
    say: Callable[[str], None],
) -> list[float]:
    """Train a model on trajectories from outside. Returns the losses; none where `out` is there already.

    Raises CorpusError for what is not a trajectory, or where none is left.
    """
    if out.exists():
        say(f"{out}: is there already")
        return []
    base = policy_path(str(start))
    codec = ChatCodec.load(base)
    found = trajectory_rows(files, codec, family, max_length=max_length)
    say(
        f"{found.trajectories} trajectories, {len(found.rows)} rows; {found.refused} are not written as one "
        f"conversation by the chat template or hold special tokens, {found.unread} hold calls that {family.name} "
        f"does not read, {found.too_long} exceed {max_length} tokens"
    )
    lineage = Lineage(role="warm start", base_hash=weights_hash(base), start=str(start))
    return sft(found.rows, base, out, settings=settings, codec=codec, lineage=lineage)


def warm_start_rows(run: Run, *, min_score: float) -> WarmStartRows:
    """The Solver rollouts that scored at least `min_score` on accepted tasks, and the Challenger's that wrote them;
    policies' and people's. Held-out tasks are left out.
    """
    rows: list[TrainingRow] = []
    rollouts = refused = 0
    human, made = HumanFolder(run.folder), range(1, run.config.iterations + 1)
    folders = [run.folder.stage(iteration, Stage.TASKS) for iteration in made]
    for tasks in [*folders, *(human.tasks(iteration) for iteration in human.iterations() if iteration)]:
        for policy_format, recorded, episode in _recorded(run, tasks, min_score):
            played = replay(recorded, episode, policy_format, end=run.codec.end_of_turn)
            if played is None:
                refused += 1
                continue
            rollouts += 1
            rows += rows_from(played, per_turn=policy_format.dialect.drops_earlier_thinking).rows
    return WarmStartRows(rows, rollouts, refused)


def _recorded(
    run: Run, folder: StageFolder, min_score: float
) -> Iterator[tuple[PolicyFormat, Rollout, Episode]]:
    recorded = read_records(folder.rollouts, Rollout)
    rollouts = {rollout.id: rollout for rollout in recorded if rollout.status is RolloutStatus.FINISHED}
    scores = {grade.rollout_id: grade.score for grade in read_records(folder.grades, Grade)}
    documents = {document.id: document for document in run.documents}
    formats = {role: run.policy_format(Policy("M0", run.base), role) for role in Role}
    for candidate in accepted_in(folder):
        task = candidate.task
        assert task is not None
        for name in candidate.rollout_ids:
            rollout, score = rollouts.get(name), scores.get(name)
            if rollout and score is not None and score >= min_score:
                episode = run.context.solver_episode(formats[Role.SOLVER], (name,), task)
                yield formats[Role.SOLVER], rollout, episode
        writer = rollouts.get(candidate.challenger_rollout_id)
        document = documents.get(candidate.provenance.document_id)
        if writer and document:
            turns = task.search_turns if task.assigned_turns is None else task.assigned_turns
            source = TaskSource(document, task.type, turns)
            episode = run.context.challenger_episode(formats[Role.CHALLENGER], (writer.id,), source)
            yield formats[Role.CHALLENGER], writer, episode
