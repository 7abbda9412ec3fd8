"""A verifier in place of a judge: does the Solver, with the source passage in front of it, agree with itself?

A Challenger's task passes where most of the answers are the same, in the words of SQuAD's script. That answer is the
rubric, of one criterion; a Solver that has to search meets it by giving the same answer.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scope_selfplay.base.sampling import PolicyModel
from scope_selfplay.base.values import Criterion, Document, Passage, Priority, Role, Rubric, Task, Verdict
from scope_selfplay.config.judge import JudgeConfig
from scope_selfplay.judge.protocol import GateQuestion, GradeQuestion, Judge, Question, Reply, RubricQuestion
from scope_selfplay.judge.rules import VerifierJudge
from scope_selfplay.policy.conversation import PolicyFormat
from scope_selfplay.policy.episodes import run_episode
from scope_selfplay.rewards.verify import exact_match, squad_normal
from scope_selfplay.run.candidate import RunContext
from scope_selfplay.run.run import Run
from scope_selfplay.search.tools import SEARCH, ToolResult, UseTool

VOTES = 4
ENOUGH = 0.75
"""Share of the votes for one answer from which a task passes."""
_CRITERION = "Gives this answer: "


class Agreed(NamedTuple):
    """The commonest answer of those who read the passage, and the share of them that gave it."""

    answer: str | None
    share: float


def agreement(answers: Sequence[str | None]) -> Agreed:
    """No answer agrees with nothing, not even with another missing one."""
    said = [answer for answer in answers if answer is not None and squad_normal(answer)]
    if not said:
        return Agreed(None, 0.0)
    (commonest, votes), *_ = Counter(map(squad_normal, said)).most_common(1)
    return Agreed(next(each for each in said if squad_normal(each) == commonest), votes / len(answers))


@dataclass(frozen=True)
class OpenBook:
    """Search that always finds the same document."""

    document: Document
    index: str = "the source document"

    async def use(self, request: UseTool) -> ToolResult:
        assert request.tool == SEARCH.name
        document = self.document
        return ToolResult(passages=(Passage(id=document.id, title=document.title, text=document.text),))


@dataclass
class AgreementJudge(VerifierJudge):
    """`solver` reads; its answers are kept, so that a task is read once."""

    context: RunContext
    solver: PolicyModel
    policy_format: PolicyFormat
    seed: int
    identity: str = f"agreement of {VOTES}"
    _known: dict[str, Agreed] = field(default_factory=dict)

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        match question:
            case GateQuestion(task, document=document):
                verdict = await self._passes(task, document)
                return Reply(verdict.value, verdict)
            case RubricQuestion(task):
                criterion = Criterion(
                    text=f"{_CRITERION}{self._known[task.id].answer}", priority=Priority.CRITICAL
                )
                return Reply(Rubric(task_id=task.id, criteria=(criterion,)), Verdict(value=True))
            case GradeQuestion(criterion=criterion, answer=answer):
                wanted = criterion.text.removeprefix(_CRITERION)
                met = exact_match(answer, [wanted]) == 1.0
                return Reply(met, Verdict(value=met, reasoning=f"wanted {wanted!r}", attempts=0))
        return await super().ask(question)

    async def _passes(self, task: Task, document: Document | None) -> Verdict:
        assert document is not None
        found = self._known[task.id] = agreement(await self._read(task, document))
        passes = found.share >= ENOUGH
        return Verdict(value=passes, probability=found.share, reasoning=found.answer or "", attempts=VOTES)

    async def _read(self, task: Task, document: Document) -> list[str | None]:
        async def read(number: int) -> str | None:
            key = (self.seed, "reads", task.id, number)
            episode = self.context.solver_episode(self.policy_format, key, task)
            return (await run_episode(episode, self.solver, OpenBook(document), key=key)).answer

        return list(await asyncio.gather(*map(read, range(VOTES))))


class AgreementRun(Run):
    """A run whose Solver verifies what its Challenger asks."""

    def open_judge(self, settings: JudgeConfig | None = None) -> Judge:
        unjudged = Run(self.config, self.folder, self.pack, self.progress)
        policy = unjudged.solver(0)
        engine, policy_format = (
            unjudged.engine(policy, Role.SOLVER),
            unjudged.policy_format(policy, Role.SOLVER),
        )
        return AgreementJudge(unjudged.context, engine, policy_format, self.config.seed)
