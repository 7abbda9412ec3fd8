"""A document becomes a candidate task: the body that Challenger training and task making share.

    document -> Challenger episode -> task -> gates -> rubric -> N Solver episodes -> grades -> mean score

A failed gate costs its calls and no more; a fault leaves the candidate unresolved, never rejected and never
rewarded (Algorithm 1; method decisions 1-4).
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scope_selfplay.config import RunConfig
from scope_selfplay.corpus import TaskSource
from scope_selfplay.episodes import (
    ChallengerPrompts,
    Episode,
    PolicyFormat,
    RolloutLimits,
    challenger_episode,
    drive,
    solver_episode,
)
from scope_selfplay.inference import PolicyModel
from scope_selfplay.judge import Judge, grade_rollout
from scope_selfplay.judge.metered import JudgeTally
from scope_selfplay.prompts import Pack, PromptRole
from scope_selfplay.rewards import in_window
from scope_selfplay.schemas import (
    Candidate,
    CandidateStatus,
    Document,
    Gate,
    Grade,
    Key,
    Provenance,
    Reason,
    Role,
    Rollout,
    RolloutFault,
    Rubric,
    Task,
    Verdict,
    content_id,
)
from scope_selfplay.search import Searcher

_FAULT_REASONS = {
    RolloutFault.ENGINE: Reason.ENGINE_FAILED,
    RolloutFault.SEARCH: Reason.SEARCH_FAILED,
    RolloutFault.PROMPT: Reason.PROMPT_TOO_LONG,
}


class CandidateRecords(NamedTuple):
    """A candidate with everything that was generated for it."""

    candidate: Candidate
    rollouts: tuple[Rollout, ...] = ()
    grades: tuple[Grade, ...] = ()


@dataclass(frozen=True)
class RunContext:
    """Everything that an episode of this run needs besides a policy: settings, prompts, evidence, judgement."""

    config: RunConfig
    pack: Pack
    searcher: Searcher
    judge: Judge
    gates: tuple[Gate, ...]
    tally: JudgeTally = field(default_factory=JudgeTally)

    def solver_episode(self, policy_format: PolicyFormat, key: Key, task: Task) -> Episode:
        turns = self.config.solver.max_search_turns
        prompt = self.pack.render(
            PromptRole.SOLVER,
            question=task.text,
            max_search_turns=turns,
            search_syntax=policy_format.dialect.search_syntax,
            budget=None,
        )
        return solver_episode(policy_format, key, task_id=task.id, prompt=prompt, max_search_turns=turns)

    def challenger_episode(self, policy_format: PolicyFormat, key: Key, source: TaskSource) -> Episode:
        return challenger_episode(
            policy_format,
            key,
            document_id=source.document.id,
            prompts=self._challenger_prompts(policy_format, source),
            search_turns=source.search_turns,
            patience=self.config.challenger.invalid_searches,
        )

    def limits(self, role: Role) -> RolloutLimits:
        settings = self.config.solver if role is Role.SOLVER else self.config.challenger
        return RolloutLimits(
            settings.max_response, self.config.search.max_tokens, settings.max_prompt, settings.max_turn
        )

    async def sample_rollout(self, episode: Episode, model: PolicyModel, key: Key) -> Rollout:
        return await drive(episode, model, self.searcher, key=key, topk=self.config.search.topk)

    async def grade(self, task: Task, rubric: Rubric, rollout: Rollout, key: Key) -> Grade:
        grade = await grade_rollout(self.judge, task, rubric, rollout, key=key)
        for verdict in grade.verdicts:
            self.tally.add(verdict)
        return grade

    def _challenger_prompts(self, policy_format: PolicyFormat, source: TaskSource) -> ChallengerPrompts:
        kind = source.task_type
        description = next(each.description for each in self.pack.domain.task_types if each.name == kind)
        syntax = policy_format.dialect.search_syntax
        return ChallengerPrompts(
            opening=self.pack.render(
                PromptRole.CHALLENGER,
                document_title=source.document.title,
                document_text=source.document.text,
                task_type=kind,
                task_description=description,
                search_turns=source.search_turns,
                search_syntax=syntax,
            ),
            after_search=lambda left: self.pack.render(
                PromptRole.CHALLENGER_NEXT, turns_left=left, search_syntax=syntax
            ),
            after_invalid=lambda left: self.pack.render(
                PromptRole.CHALLENGER_INVALID, turns_left=left, search_syntax=syntax
            ),
            closing=self.pack.render(PromptRole.CHALLENGER_FINAL, task_type=kind),
        )


@dataclass(frozen=True)
class Difficulty:
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
    difficulty: Difficulty | None,
    provenance: Provenance,
    key: Key,
) -> CandidateRecords:
    """Judge what a Challenger rollout proposed. Without `difficulty`, gates and rubric alone decide."""
    build = _Builder(source, rollout, provenance)
    if rollout.fault is not None:
        return CandidateRecords(build.failed(_FAULT_REASONS[rollout.fault]))
    if rollout.task is None:
        return CandidateRecords(build.rejected(Reason.NO_TASK))
    task = build.task = _task_of(source, rollout)
    verdicts = await asyncio.gather(
        *(context.judge.gate(gate, task, source.document) for gate in context.gates)
    )
    build.gates = dict(zip(context.gates, verdicts, strict=True))
    for verdict in verdicts:
        context.tally.add(verdict)
    for gate, verdict in build.gates.items():
        if verdict.value is False:
            return CandidateRecords(build.rejected(Reason.refused_by(gate)))
    if any(verdict.value is None for verdict in verdicts):
        return CandidateRecords(build.unresolved(Reason.JUDGE_FAILED))
    rubric = build.rubric = await context.judge.write_rubric(task, [source.document, *evidence(rollout)])
    if rubric is None:
        return CandidateRecords(build.unresolved(Reason.RUBRIC))
    if difficulty is None:
        return CandidateRecords(build.accepted())
    tries = await _try(context, task, rubric, difficulty, key)
    build.rollout_ids = tuple(each.id for each, _ in tries)
    candidate = _decide(context.config, build, tries, window=difficulty.window)
    return CandidateRecords(candidate, tuple(each for each, _ in tries), tuple(grade for _, grade in tries))


def evidence(rollout: Rollout) -> list[Document]:
    """What the rollout retrieved, each document once, in the order of its first appearance."""
    passages = {passage.id: passage for turn in rollout.turns for passage in turn.passages}
    return [
        Document(id=each.id, title=each.title, text=each.text, source=each.source)
        for each in passages.values()
    ]


async def _try(
    context: RunContext, task: Task, rubric: Rubric, difficulty: Difficulty, key: Key
) -> Sequence[tuple[Rollout, Grade]]:
    async def one(number: int) -> tuple[Rollout, Grade]:
        # Keyed by the task, not by who asked: the same task of two Challenger rollouts has the same difficulty.
        each = (*key, task.id, number)
        rollout = await context.sample_rollout(
            context.solver_episode(difficulty.policy_format, each, task), difficulty.solver, each
        )
        return rollout, await context.grade(task, rubric, rollout, each)

    return await asyncio.gather(*(one(number) for number in range(difficulty.rollouts)))


def _decide(
    config: RunConfig, build: "_Builder", tries: Sequence[tuple[Rollout, Grade]], *, window: bool
) -> Candidate:
    known = [grade.score for _, grade in tries if grade.score is not None]
    if not known or len(tries) - len(known) > config.tasks.max_missing * len(tries):
        missing = [rollout.fault for rollout, grade in tries if grade.score is None]
        # The commonest cause; an answer without a score is the judge's.
        fault, _ = Counter(missing).most_common(1)[0]
        return build.failed(Reason.JUDGE_FAILED if fault is None else _FAULT_REASONS[fault])
    build.mean = sum(known) / len(known)
    if not window or in_window(build.mean, config.tasks.low, config.tasks.high):
        return build.accepted()
    return build.rejected(Reason.TOO_HARD if build.mean < config.tasks.low else Reason.TOO_EASY)


def _task_of(source: TaskSource, rollout: Rollout) -> Task:
    text = rollout.task or ""
    return Task(
        id=content_id("task", source.document.id, source.task_type, text),
        text=text,
        type=source.task_type,
        document_id=source.document.id,
        evidence_ids=tuple(each.id for each in evidence(rollout)),
        search_turns=source.search_turns,
    )


@dataclass
class _Builder:
    """Collects what is known of a candidate until its status is decided."""

    source: TaskSource
    rollout: Rollout
    provenance: Provenance
    task: Task | None = None
    gates: dict[Gate, Verdict] = field(default_factory=dict)
    rubric: Rubric | None = None
    rollout_ids: tuple[str, ...] = ()
    mean: float | None = None

    def accepted(self) -> Candidate:
        return self._build(CandidateStatus.ACCEPTED, Reason.ACCEPTED)

    def rejected(self, reason: Reason) -> Candidate:
        return self._build(CandidateStatus.REJECTED, reason)

    def failed(self, reason: Reason) -> Candidate:
        """Unresolved by a fault that may pass; a prompt that is too long will be so again."""
        return self.rejected(reason) if reason is Reason.PROMPT_TOO_LONG else self.unresolved(reason)

    def unresolved(self, reason: Reason) -> Candidate:
        return self._build(CandidateStatus.UNRESOLVED, reason)

    def _build(self, status: CandidateStatus, reason: Reason) -> Candidate:
        return Candidate(
            id=content_id("candidate", self.rollout.id),
            status=status,
            reason=reason,
            task=self.task,
            gates=self.gates,
            rubric=self.rubric,
            rollout_ids=self.rollout_ids,
            challenger_rollout_id=self.rollout.id,
            mean=self.mean,
            provenance=self.provenance,
        )
