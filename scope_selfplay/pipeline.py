"""A document becomes a candidate task: what Challenger training and task making share.

    document -> Challenger episode -> task -> gates -> rubric -> N Solver episodes -> grades -> mean score

A failed gate costs its calls and no more; a fault leaves the candidate unresolved, never rejected and never
rewarded (SCOPE, Algorithm 1; gates come before the rubric, so that a refused task costs no more).
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scope_selfplay.config import RunConfig
from scope_selfplay.corpus import TaskSource
from scope_selfplay.episodes import PolicyFormat
from scope_selfplay.gates import Gate
from scope_selfplay.inference import PolicyModel
from scope_selfplay.judge import grade_answer
from scope_selfplay.keys import Key, content_id
from scope_selfplay.rewards import in_window
from scope_selfplay.run_context import RunContext
from scope_selfplay.schemas import (
    Candidate,
    CandidateStatus,
    Document,
    Grade,
    Provenance,
    Reason,
    Rollout,
    RolloutFault,
    Rubric,
    Task,
    Verdict,
)
from scope_selfplay.untrusted_text import suspicions

_FAULT_REASONS = {
    RolloutFault.ENGINE: Reason.ENGINE_FAILED,
    RolloutFault.SEARCH: Reason.SEARCH_FAILED,
    RolloutFault.TOOL: Reason.TOOL_FAILED,
    RolloutFault.PROMPT: Reason.PROMPT_TOO_LONG,
}
# Faults that may pass. A prompt that is too long will be so again: its candidate is rejected.
_TRANSIENT_REASONS = (
    Reason.JUDGE_FAILED,
    Reason.RUBRIC_FAILED,
    Reason.ENGINE_FAILED,
    Reason.SEARCH_FAILED,
    Reason.TOOL_FAILED,
)


@dataclass(frozen=True)
class CandidateRecords:
    """A candidate with everything that was generated for it."""

    candidate: Candidate
    rollouts: tuple[Rollout, ...] = ()
    grades: tuple[Grade, ...] = ()


@dataclass(frozen=True)
class SolverTrial:
    """Which Solver a candidate is tried on, how often, and whether the window decides."""

    solver: PolicyModel
    policy_format: PolicyFormat
    rollouts: int
    window: bool


async def make_candidate(
    context: RunContext,
    source: TaskSource,
    rollout: Rollout,
    *,
    trial: SolverTrial | None,
    provenance: Provenance,
    key: Key,
) -> CandidateRecords:
    """Judge what a Challenger rollout proposed. Without `trial`, gates and rubric alone decide."""
    draft = _Draft(rollout.id, source.document, provenance)
    if rollout.fault is not None:
        return CandidateRecords(draft.candidate(_FAULT_REASONS[rollout.fault]))
    if rollout.task is None:
        return CandidateRecords(draft.candidate(Reason.NO_TASK))
    task = draft.task = _task_of(source, rollout)

    calls = [context.judge.gate(gate, task, source.document) for gate in context.gates]
    verdicts = await asyncio.gather(*calls)
    draft.gates = dict(zip(context.gates, verdicts, strict=True))
    refusal = _refusal(draft.gates)
    if refusal is not None:
        return CandidateRecords(draft.candidate(refusal))

    rubric = draft.rubric = await context.judge.write_rubric(task, [source.document, *evidence(rollout)])
    if rubric is None:
        return CandidateRecords(draft.candidate(Reason.RUBRIC_FAILED))
    if trial is None:
        return CandidateRecords(draft.candidate(Reason.ACCEPTED))

    answers = await _solver_answers(context, task, rubric, trial, key)
    rollouts, grades = tuple(rollout for rollout, _ in answers), tuple(grade for _, grade in answers)
    draft.rollout_ids = tuple(rollout.id for rollout in rollouts)
    draft.mean, reason = _judged_difficulty(context.config, answers, window=trial.window)
    return CandidateRecords(draft.candidate(reason), rollouts, grades)


def evidence(rollout: Rollout) -> list[Document]:
    """What the rollout retrieved, each document once, in the order of its first appearance."""
    passages = {passage.id: passage for turn in rollout.turns for passage in turn.passages}
    return [
        Document(id=passage.id, title=passage.title, text=passage.text, source=passage.source)
        for passage in passages.values()
    ]


def _task_of(source: TaskSource, rollout: Rollout) -> Task:
    text = rollout.task or ""
    return Task(
        id=content_id("task", source.document.id, source.task_type, text),
        text=text,
        type=source.task_type,
        document_id=source.document.id,
        evidence_ids=tuple(document.id for document in evidence(rollout)),
        search_turns=rollout.searches,
        assigned_turns=source.search_turns,
    )


def _refusal(gates: Mapping[Gate, Verdict]) -> Reason | None:
    """The first gate that the task failed, else a missing verdict; None where it passed all of them."""
    for gate, verdict in gates.items():
        if verdict.value is False:
            return Reason.refused_by(gate)
    return Reason.JUDGE_FAILED if any(verdict.value is None for verdict in gates.values()) else None


async def _solver_answers(
    context: RunContext, task: Task, rubric: Rubric, trial: SolverTrial, key: Key
) -> Sequence[tuple[Rollout, Grade]]:
    async def answer(number: int) -> tuple[Rollout, Grade]:
        # Keyed by the task, not by the Challenger rollout: one task that two of them wrote has one difficulty.
        rollout_key = (*key, task.id, number)
        episode = context.solver_episode(trial.policy_format, rollout_key, task)
        rollout = await context.sample_rollout(episode, trial.solver, rollout_key)
        return rollout, await grade_answer(context.judge, task, rubric, rollout, key=rollout_key)

    return await asyncio.gather(*(answer(number) for number in range(trial.rollouts)))


def _judged_difficulty(
    config: RunConfig, answers: Sequence[tuple[Rollout, Grade]], *, window: bool
) -> tuple[float | None, Reason]:
    """The mean score and what follows from it; no mean where more scores are missing than `tasks.max_missing` allows.

    The reason is then the commonest cause of a missing score; an answer without a score is the judge's.
    """
    settings, scores = config.tasks, [grade.score for _, grade in answers if grade.score is not None]
    if not scores or len(answers) - len(scores) > settings.max_missing * len(answers):
        faults = Counter(rollout.fault for rollout, grade in answers if grade.score is None)
        fault, _ = faults.most_common(1)[0]
        return None, Reason.JUDGE_FAILED if fault is None else _FAULT_REASONS[fault]
    mean = sum(scores) / len(scores)
    if not window or in_window(mean, settings.low, settings.high):
        return mean, Reason.ACCEPTED
    return mean, Reason.TOO_HARD if mean < settings.low else Reason.TOO_EASY


@dataclass
class _Draft:
    """What is known of a candidate before its status is decided."""

    challenger_rollout_id: str
    document: Document
    provenance: Provenance
    task: Task | None = None
    gates: dict[Gate, Verdict] = field(default_factory=dict)
    rubric: Rubric | None = None
    rollout_ids: tuple[str, ...] = ()
    mean: float | None = None

    def candidate(self, reason: Reason) -> Candidate:
        if reason is Reason.ACCEPTED:
            status = CandidateStatus.ACCEPTED
        else:
            status = CandidateStatus.UNRESOLVED if reason in _TRANSIENT_REASONS else CandidateStatus.REJECTED
        return Candidate(
            id=content_id("candidate", self.challenger_rollout_id),
            status=status,
            reason=reason,
            task=self.task,
            gates=self.gates,
            rubric=self.rubric,
            rollout_ids=self.rollout_ids,
            challenger_rollout_id=self.challenger_rollout_id,
            mean=self.mean,
            injection_suspect=suspicions(self.task.text) if self.task else None,
            document_suspect=suspicions(self.document.text),
            provenance=self.provenance,
        )
