"""Before iteration 1: a policy that learns the protocol from rollouts which another run kept."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from scope_selfplay.corpus import TaskSource
from scope_selfplay.episodes import Episode
from scope_selfplay.errors import UserError
from scope_selfplay.run import Policy, Run
from scope_selfplay.schemas import Grade, Role, Rollout, RolloutStatus
from scope_selfplay.stages.stage_runner import accepted_in
from scope_selfplay.store import Stage, StageFolder, read_records
from scope_selfplay.training.policy import weights_hash
from scope_selfplay.training.rows import TrainingRow, rows_from
from scope_selfplay.training.trained_model import Lineage
from scope_selfplay.training.warm_start import WarmStart, replay, sft


class WarmStartRows(NamedTuple):
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
    lineage = Lineage(
        run=run.config.name,
        role="warm start",
        base_hash=weights_hash(run.base),
        start="M0",
        prompt_hash=run.pack.hash,
        config_hash=run.config.hash,
        dialect=run.config.model.dialect,
    )
    return sft(found.rows, run.base, out, settings=settings, codec=run.codec, lineage=lineage)


def warm_start_rows(run: Run, *, min_score: float) -> WarmStartRows:
    """The Solver rollouts that scored at least `min_score` on accepted tasks, and the Challenger's that wrote them."""
    rows: list[TrainingRow] = []
    rollouts = refused = 0
    for iteration in range(1, run.config.iterations + 1):
        for role, recorded, episode in _recorded(run, run.folder.stage(iteration, Stage.TASKS), min_score):
            policy_format = run.policy_format(Policy("M0", run.base), role)
            played = replay(recorded, episode, policy_format, end=run.codec.end_of_turn)
            if played is None:
                refused += 1
                continue
            rollouts += 1
            rows += rows_from(played, per_turn=policy_format.dialect.drops_earlier_thinking).rows
    return WarmStartRows(rows, rollouts, refused)


def _recorded(run: Run, folder: StageFolder, min_score: float) -> Iterator[tuple[Role, Rollout, Episode]]:
    rollouts = {each.id: each for each in read_records(folder.rollouts, Rollout)}
    scores = {each.rollout_id: each.score for each in read_records(folder.grades, Grade)}
    documents = {each.id: each for each in run.documents}
    for candidate in accepted_in(folder):
        assert candidate.task is not None
        for name in candidate.rollout_ids:
            rollout, score = rollouts.get(name), scores.get(name)
            if rollout and score is not None and score >= min_score and _is_whole(rollout):
                policy_format = run.policy_format(Policy("M0", run.base), Role.SOLVER)
                yield Role.SOLVER, rollout, run.context.solver_episode(policy_format, (name,), candidate.task)
        writer = rollouts.get(candidate.challenger_rollout_id)
        document = documents.get(candidate.provenance.document_id)
        if writer and document and _is_whole(writer):
            policy_format = run.policy_format(Policy("M0", run.base), Role.CHALLENGER)
            kind, turns = candidate.task.type, candidate.task.search_turns
            source = TaskSource(document=document, task_type=kind, search_turns=turns)
            yield Role.CHALLENGER, writer, run.context.challenger_episode(policy_format, (writer.id,), source)


def _is_whole(rollout: Rollout) -> bool:
    return rollout.status is RolloutStatus.FINISHED
