"""What every episode of a run needs besides a policy: settings, prompts, evidence and judgement."""

from dataclasses import dataclass, field
from functools import cached_property

from scope_selfplay.config import RunConfig
from scope_selfplay.corpus import TaskSource
from scope_selfplay.episodes import (
    ChallengerPrompts,
    Episode,
    PolicyFormat,
    RolloutLimits,
    challenger_episode,
    run_episode,
    solver_episode,
)
from scope_selfplay.gates import Gate
from scope_selfplay.inference import PolicyModel
from scope_selfplay.inference.sampling_processes import SamplingProcesses
from scope_selfplay.judge.metered import MeteredJudge
from scope_selfplay.keys import Key
from scope_selfplay.progress import Activity
from scope_selfplay.prompts import Pack, PromptRole
from scope_selfplay.schemas import Role, Rollout, Task
from scope_selfplay.search import Searcher
from scope_selfplay.tools import SEARCH, OpenTools, Tool, Tools, search_tool
from scope_selfplay.tools.listing import listed


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
            prompts=self._challenger_prompts(policy_format, source),
            search_turns=source.search_turns,
            max_invalid=self.config.challenger.invalid_searches,
        )

    def limits(self, role: Role) -> RolloutLimits:
        settings = self.config.solver if role is Role.SOLVER else self.config.challenger
        search = self.config.search
        return RolloutLimits(
            settings.max_response,
            search.max_tokens,
            settings.max_prompt,
            settings.max_turn,
            search.truncation,
        )

    async def sample_rollout(self, episode: Episode, model: PolicyModel, key: Key) -> Rollout:
        with self.activity.rollout():
            return await run_episode(episode, model, self.tools, key=key)

    def _challenger_prompts(self, policy_format: PolicyFormat, source: TaskSource) -> ChallengerPrompts:
        kind, syntax = source.task_type, policy_format.dialect.search_syntax
        return ChallengerPrompts(
            opening=challenger_opening(self.pack, syntax, source),
            after_search=lambda left: self.pack.render(
                PromptRole.CHALLENGER_NEXT, turns_left=left, search_syntax=syntax
            ),
            after_invalid=lambda left: self.pack.render(
                PromptRole.CHALLENGER_INVALID, turns_left=left, search_syntax=syntax
            ),
            closing=self.pack.render(PromptRole.CHALLENGER_FINAL, task_type=kind),
        )


def challenger_opening(pack: Pack, search_syntax: str, source: TaskSource) -> str:
    """The first prompt of a Challenger, with the document in it."""
    descriptions = {kind.name: kind.description for kind in pack.domain.task_types}
    return pack.render(
        PromptRole.CHALLENGER,
        document_title=source.document.title,
        document_text=source.document.text,
        task_type=source.task_type,
        task_description=descriptions[source.task_type],
        search_turns=source.search_turns,
        search_syntax=search_syntax,
    )
