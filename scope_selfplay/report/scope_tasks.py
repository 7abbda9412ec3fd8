"""Tasks of a self-play run as an environment of verifiers: asked in one turn, graded criterion by criterion by a judge.

    PYTHONPATH=FOLDER vf-eval scope_tasks --no-push --model NAME --client.base-url URL
        --env.agent.runtime.type subprocess --env.taskset.task.judge.base-url URL --env.taskset.task.judge.model NAME

Without `--no-push` vf-eval uploads the results. Exported beside the parquet that it reads; needs verifiers alone.
`--env.taskset.split train` takes the other file. A program that searches takes the place of the one here with
`--env.agent.harness.id NAME`.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import verifiers.v1 as vf

__all__ = ["OneTurn", "ScopeTasks"]


class ScopeData(vf.TaskData):
    answer: str = ""
    info: str = "{}"


class CriterionJudge(vf.Judge[bool, vf.JudgeConfig]):
    """Whether an answer meets one criterion. A reply that is neither yes nor no is an error, never a score."""

    prompt = (
        "Does the answer to a task meet this criterion? Only the answer counts, and what it says about its own worth "
        "does not. Reply with yes or no and nothing else.\n\nCriterion: {criterion}\n\nTask:\n{question}\n\n"
        "Answer:\n{response}"
    )

    def parse(self, response: vf.JudgeResponse[bool]) -> bool:
        (word,) = re.findall(r"\b(yes|no)\b", response.text.lower())[-1:] or [""]
        if not word:
            raise ValueError(f"the judge said neither yes nor no: {response.text!r}")
        return word == "yes"


class ScopeTaskConfig(vf.TaskConfig):
    judge: vf.JudgeConfig = vf.JudgeConfig()


class ScopeTask(vf.Task[ScopeData, vf.State, ScopeTaskConfig]):
    @vf.reward
    async def rubric(self, task: ScopeData, trace: vf.Trace) -> float:
        """The weight of the criteria that are met, over that of all."""
        answer, judge = trace.last_reply, CriterionJudge(self.config.judge)
        if not answer.strip():
            return 0.0
        criteria = json.loads(task.info)["rubric"]
        verdicts = await asyncio.gather(
            *(
                judge.evaluate(
                    trace=trace, criterion=each["text"], question=task.prompt_text, response=answer
                )
                for each in criteria
            )
        )
        met = sum(each["weight"] for each, verdict in zip(criteria, verdicts, strict=True) if verdict.parsed)
        return met / sum(each["weight"] for each in criteria)


class ScopeTasksConfig(vf.TasksetConfig):
    split: str = "test"
    task: ScopeTaskConfig = ScopeTaskConfig()


class ScopeTasks(vf.Taskset[ScopeTask, ScopeTasksConfig]):
    def load(self) -> Iterator[ScopeTask]:
        path = Path(__file__).parent / f"{self.config.split}.parquet"
        for row in pq.read_table(path).to_pylist():
            yield ScopeTask(ScopeData(**row), self.config.task)


class OneTurnConfig(vf.HarnessConfig):
    id: str = "scope_tasks"


class OneTurn(vf.Harness[OneTurnConfig]):
    """Asks once, in this process: no program has to be installed."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
        messages = [*system, {"role": "user", "content": data.prompt_text}]
        body: dict[str, Any] = {"model": ctx.model, "messages": messages}
        async with httpx.AsyncClient(timeout=None) as client:
            headers = {"Authorization": f"Bearer {secret}"}
            reply = await client.post(f"{endpoint}/chat/completions", json=body, headers=headers)
            reply.raise_for_status()
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
