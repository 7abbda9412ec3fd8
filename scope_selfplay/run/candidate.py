"""A document becomes a candidate task: what Challenger training and task making share.

    document -> Challenger episode -> task -> gates -> rubric -> N Solver episodes -> grades -> mean score
                                      question and answer -> rules -> readers ('short_answers') -> N Solver episodes ...

A failed gate costs its calls and no more; a fault leaves the candidate unresolved, never rejected and never
rewarded (SCOPE, Algorithm 1; gates come before the rubric, so that a refused task costs no more).
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from scope_selfplay.base.errors import SearchError
from scope_selfplay.base.sampling import Message, PolicyModel, TextCodec
from scope_selfplay.base.suspicions import suspicions
from scope_selfplay.base.terminal import Activity
from scope_selfplay.base.values import (
    Candidate,
    CandidateStatus,
    Document,
    Gate,
    Grade,
    Key,
    Provenance,
    ReaderAnswer,
    Reason,
    Role,
    Rollout,
    RolloutFault,
    Rubric,
    Task,
    content_id,
)
from scope_selfplay.config.run import RunConfig
from scope_selfplay.corpus.screen import LANGUAGES, TaskSource, language_of, task_language
from scope_selfplay.dialects.families import dialect
from scope_selfplay.inference.processes import SamplingProcesses
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.canaries import CanaryWatch
from scope_selfplay.judge.protocol import GateQuestion, RubricQuestion, grade_answer
from scope_selfplay.policy.episodes import (
    ChallengerPrompts,
    Episode,
    Player,
    PolicyFormat,
    RolloutLimits,
    challenger_episode,
    run_episode,
    solver_episode,
)
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.roles import ABSENT, PromptRole
from scope_selfplay.rewards.equations import in_window
from scope_selfplay.run.short_answers import (
    NEAR,
    beside,
    read_pair,
    readings_of,
    refused_by_readers,
    rubric_of,
)
from scope_selfplay.search.searcher import Searcher
from scope_selfplay.search.tools import SEARCH, OpenTools, Tool, Tools, listed, search_tool


@dataclass(frozen=True)
class RunContext:
    """The same for all episodes of a stage; `judge` keeps the stage's account of judge calls."""

    config: RunConfig
    pack: Pack
    searcher: Searcher
    judge: MeteredJudge
    gates: tuple[Gate, ...]
    activity: Activity = field(default_factory=Activity)
    sampling: SamplingProcesses | None = None
    """Processes that sample beside this one."""
    other_tools: tuple[Tool, ...] = ()
    """What the Solver may call besides search."""
    canaries: CanaryWatch | None = None
    """The judge inside of `judge`, where a stage asks it questions with known verdicts."""

    @cached_property
    def with_short_answers(self) -> frozenset[str]:
        """The task types whose answers stand in the document."""
        return frozenset(kind.name for kind in self.pack.domain.task_types if kind.answer == "span")

    @cached_property
    def tools(self) -> Tools:
        """What answers the calls of episodes."""
        search = search_tool(self.searcher, self.config.search.topk)
        return OpenTools([search, *self.other_tools], index=self.searcher.identity)

    def solver_episode(self, policy_format: PolicyFormat, key: Key, task: Task) -> Episode:
        settings = self.config.solver
        turns = settings.max_search_turns
        prompt = self.pack.render(
            PromptRole.SOLVER,
            question=task.text,
            max_search_turns=turns,
            search_syntax=policy_format.dialect.search_syntax,
            result_syntax=policy_format.dialect.result_syntax,
            tools=listed(self.other_tools, policy_format.dialect) or None,
            budget=f"{settings.max_response:,}" if settings.tell_budget else None,
        )
        return solver_episode(
            policy_format,
            key,
            task_id=task.id,
            prompt=prompt,
            max_search_turns=turns,
            tools=(SEARCH, *self.other_tools),
        )

    def challenger_episode(self, policy_format: PolicyFormat, key: Key, source: TaskSource) -> Episode:
        return challenger_episode(
            policy_format,
            key,
            document_id=source.document.id,
            prompts=challenger_prompts(self.pack, policy_format.dialect.search_syntax, source),
            search_turns=source.search_turns,
            max_invalid=self.config.challenger.invalid_searches,
        )

    def limits(self, role: Role) -> RolloutLimits:
        settings = self.config.solver if role is Role.SOLVER else self.config.challenger
        search = self.config.search
        most = (settings.max_response, search.max_tokens, settings.max_prompt, settings.max_turn)
        return RolloutLimits(*most, search.truncation)

    def policy_format(self, codec: TextCodec, role: Role, checkpoint: str, *, greedy: bool) -> PolicyFormat:
        model = self.config.model
        family = dialect(model.dialect, model.earlier_thinking)
        return PolicyFormat(codec, family, checkpoint, self.limits(role), greedy)

    async def answer(self, solver: Player, key: Key, task: Task) -> Rollout:
        episode = self.solver_episode(solver.policy_format, key, task)
        return await self.sample_rollout(episode, solver.engine, key)

    async def sample_rollout(self, episode: Episode, model: PolicyModel, key: Key) -> Rollout:
        with self.activity.rollout():
            return await run_episode(episode, model, self.tools, key=key)


def challenger_prompts(pack: Pack, search_syntax: str, source: TaskSource) -> ChallengerPrompts:
    """All that a Challenger is told; the first prompt has the document in it."""
    domain, code = pack.domain, language_of(source.document)
    language = task_language(domain.language, source.document)
    named = LANGUAGES.get(language, ABSENT["language"])
    descriptions = {kind.name: kind.description for kind in domain.task_types}
    about: dict[str, str | None] = {
        "document_title": source.document.title,
        "task_type": source.task_type,
        "language": domain.language or (f"{named} ({code})" if code else None),
    }

    def after(role: PromptRole, left: int) -> str:
        return pack.render(role, turns_left=left, search_syntax=search_syntax)

    opening = pack.render(
        PromptRole.CHALLENGER,
        document_text=source.document.text,
        task_description=descriptions[source.task_type],
        examples="\n".join(f"- {example}" for example in domain.examples),
        search_turns=source.search_turns,
        search_syntax=search_syntax,
        **about,
    )
    return ChallengerPrompts(
        opening=opening,
        after_search=partial(after, PromptRole.CHALLENGER_NEXT),
        after_invalid=partial(after, PromptRole.CHALLENGER_INVALID),
        closing=pack.render(PromptRole.CHALLENGER_FINAL, **about),
        language=language,
    )


_MOST_MISSING = 0.5
"""Share of ungraded answers above which a candidate stays unresolved."""
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
    Reason.UNREAD,
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

    solver: Player
    rollouts: int
    window: bool


@dataclass(frozen=True)
class TaskWriter:
    """What makes candidates in a stage: a Challenger, and the Solver on which its tasks are tried, without which gates
    and rubric alone decide.
    """

    context: RunContext
    trial: SolverTrial | None
    provenance: Provenance
    key: Key
    challenger: Player | None = None

    async def write(self, source: TaskSource, *member: int) -> Rollout:
        assert self.challenger is not None
        key, (engine, policy_format) = (*self.key, source.document.id, *member), self.challenger
        episode = self.context.challenger_episode(policy_format, key, source)
        return await self.context.sample_rollout(episode, engine, key)

    async def judge(self, source: TaskSource, rollout: Rollout) -> CandidateRecords:
        """The candidate that a Challenger's rollout makes."""
        found = partial(_candidate, rollout, source.document, self.provenance)
        if rollout.fault is not None:
            return CandidateRecords(found(_FAULT_REASONS[rollout.fault]))
        if rollout.task is None:
            return CandidateRecords(found(Reason.NO_TASK))
        evidence = evidence_of(rollout)
        task = Task(
            id=content_id("task", source.document.id, source.task_type, rollout.task),
            text=rollout.task,
            type=source.task_type,
            document_id=source.document.id,
            evidence_ids=tuple(document.id for document in evidence),
            search_turns=rollout.searches,
            assigned_turns=source.search_turns,
        )
        if source.task_type in self.context.with_short_answers:
            pair = read_pair(task.text, source.document, self.context.config.tasks)
            if isinstance(pair, Reason):
                return CandidateRecords(found(pair, task=task))
            task = task.model_copy(
                update={"text": pair.question, "reference": pair.answer, "span": pair.span}
            )
            return await self._judge_answer(task, source, partial(found, task=task))
        calls = [
            self.context.judge.ask(GateQuestion(task, gate, source.document)) for gate in self.context.gates
        ]
        verdicts = [reply.verdict for reply in await asyncio.gather(*calls)]
        gates = dict(zip(self.context.gates, verdicts, strict=True))
        found = partial(found, task=task, gates=gates)
        refused = next((gate for gate, verdict in gates.items() if verdict.value is False), None)
        if refused is not None:
            return CandidateRecords(found(Reason.refused_by(refused)))
        if any(verdict.value is None for verdict in gates.values()):
            return CandidateRecords(found(Reason.JUDGE_FAILED))
        documents = [source.document, *evidence]
        reply = await self.context.judge.ask(RubricQuestion(task, documents))
        rubric = reply.value
        if rubric is None:
            return CandidateRecords(found(Reason.RUBRIC_FAILED, no_rubric=reply.verdict.reasoning))
        if not rubric.criteria:
            return CandidateRecords(found(Reason.UNGROUNDED, rubric=rubric))
        return await self._tried(task, rubric, found)

    async def _judge_answer(
        self, task: Task, source: TaskSource, found: Callable[..., Candidate]
    ) -> CandidateRecords:
        """Of a question with a short answer: readers, and the Solver's tries, compared with the answer."""
        settings = self.context.config.tasks
        if self.trial is not None and {Reason.MISREAD, Reason.KNOWN} & {*settings.answer_gates}:
            fault, readings = await self._read(task, source, self.trial.solver)
            found = partial(found, readings=readings)
            refused = fault or refused_by_readers(readings, settings)
            if refused is not None:
                return CandidateRecords(found(refused))
        return await self._tried(task, rubric_of(task), found)

    async def _read(
        self, task: Task, source: TaskSource, solver: Player
    ) -> tuple[Reason | None, tuple[ReaderAnswer, ...]]:
        """What readers answer; a reason where one of them failed."""
        settings, context = self.context.config.tasks.readers, self.context
        try:
            near = await context.searcher.search(task.text, NEAR)
        except SearchError:
            return Reason.SEARCH_FAILED, ()
        render = partial(context.pack.render, PromptRole.SOLVER_READING, question=task.text)
        with_passages, opened = _reading_format(solver.policy_format), ""
        for count in range(len(near), -1, -1):
            opened = render(passages=beside(source.document, near[:count], task))
            if _fits(opened, with_passages):
                break

        async def read(number: int) -> Rollout:
            key = (*self.key, task.id, "reads", number)
            is_open = number < settings.opened
            prompt, policy_format = (opened, with_passages) if is_open else (render(), solver.policy_format)
            episode = solver_episode(
                policy_format, key, task_id=task.id, prompt=prompt, max_search_turns=0, tools=()
            )
            return await context.sample_rollout(episode, solver.engine, key)

        rollouts = await asyncio.gather(*map(read, range(settings.opened + settings.closed)))
        fault = next((each.fault for each in rollouts if each.fault is not None), None)
        return _FAULT_REASONS[fault] if fault else None, readings_of(task, rollouts, settings.opened)

    async def _tried(self, task: Task, rubric: Rubric, found: Callable[..., Candidate]) -> CandidateRecords:
        if self.trial is None:
            return CandidateRecords(found(Reason.ACCEPTED, rubric=rubric))
        trying = (self._try(task, rubric, self.trial.solver, number) for number in range(self.trial.rollouts))
        answers = await asyncio.gather(*trying)
        rollouts, grades = tuple(rollout for rollout, _ in answers), tuple(grade for _, grade in answers)
        mean, reason = _judged_difficulty(self.context.config, answers, window=self.trial.window)
        ids = tuple(rollout.id for rollout in rollouts)
        return CandidateRecords(found(reason, rubric=rubric, rollout_ids=ids, mean=mean), rollouts, grades)

    async def _try(self, task: Task, rubric: Rubric, solver: Player, number: int) -> tuple[Rollout, Grade]:
        # Keyed by the task, not by the Challenger rollout: one task that two of them wrote has one difficulty.
        key = (*self.key, task.id, number)
        rollout = await self.context.answer(solver, key, task)
        return rollout, await grade_answer(self.context.judge, task, rubric, rollout, key=key)


def _reading_format(policy_format: PolicyFormat) -> PolicyFormat:
    """What is read may be longer than a question: half of a response is room for it, the other half for the answer."""
    limits = policy_format.limits
    half = limits.max_response // 2
    longest = None if limits.max_prompt is None else limits.max_prompt + half
    return replace(policy_format, limits=replace(limits, max_prompt=longest, max_response=half))


def _fits(prompt: str, policy_format: PolicyFormat) -> bool:
    most = policy_format.limits.max_prompt
    return most is None or len(policy_format.codec.encode_prompt([Message("user", prompt)])) <= most


def _candidate(
    written: Rollout, document: Document, provenance: Provenance, reason: Reason, **known: Any
) -> Candidate:
    """What is `known` of a candidate once its `reason` is decided: task, gates, rubric, rollouts and mean."""
    if reason is Reason.ACCEPTED:
        status = CandidateStatus.ACCEPTED
    else:
        status = CandidateStatus.UNRESOLVED if reason in _TRANSIENT_REASONS else CandidateStatus.REJECTED
    task = known.get("task")
    return Candidate(
        id=content_id("candidate", written.id),
        status=status,
        reason=reason,
        challenger_rollout_id=written.id,
        injection_suspect=suspicions(task.text) if task else None,
        document_suspect=suspicions(document.text),
        provenance=provenance.model_copy(update={"document_id": document.id}),
        **known,
    )


def evidence_of(rollout: Rollout) -> list[Document]:
    """What the rollout retrieved, each document once, in the order of its first appearance."""
    passages = {passage.id: passage for turn in rollout.turns for passage in turn.passages}
    return [
        Document(id=passage.id, title=passage.title, text=passage.text, source=passage.source)
        for passage in passages.values()
    ]


def _judged_difficulty(
    config: RunConfig, answers: Sequence[tuple[Rollout, Grade]], *, window: bool
) -> tuple[float | None, Reason]:
    """The mean score and what follows from it; no mean where more than half of the scores are missing.

    The reason is then the commonest cause of a missing score; an answer without a score is the judge's.
    """
    settings, scores = config.tasks, [grade.score for _, grade in answers if grade.score is not None]
    if not scores or len(answers) - len(scores) > _MOST_MISSING * len(answers):
        faults = Counter(rollout.fault for rollout, grade in answers if grade.score is None)
        fault = max(faults, key=faults.__getitem__)
        return None, Reason.JUDGE_FAILED if fault is None else _FAULT_REASONS[fault]
    mean = sum(scores) / len(scores)
    if not window or in_window(mean, settings.low, settings.high):
        return mean, Reason.ACCEPTED
    return mean, Reason.TOO_HARD if mean < settings.low else Reason.TOO_EASY
