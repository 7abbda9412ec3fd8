"""The rubric that a judge is shown: the task's own, one written from the query alone, or none."""

import asyncio

from scope_selfplay.config.rewards import Rubrics
from scope_selfplay.judge.metered import MeteredJudge
from scope_selfplay.judge.protocol import DIMENSIONS
from scope_selfplay.schemas import Rubric, Task


class Unjudgeable(Exception):
    """There is no rubric to judge a group by, although one is wanted."""


class RubricSource:
    """One written from the query alone is written once per task and then kept."""

    def __init__(self, choice: Rubrics) -> None:
        self._choice = choice
        self._written: dict[str, Rubric] = {}
        self._writing: dict[str, asyncio.Future[Rubric | None]] = {}

    def most_calls(self, task: Task) -> int:
        """Judge calls that finding the rubric of a task may take."""
        return int(self._choice == "query" and task.id not in self._written)

    def most_criteria(self, task: Task, own: Rubric) -> int:
        """So many at most; of one that is not written yet as many as the paper's writer may give."""
        known = own if self._choice == "task" else self._written.get(task.id)
        return max(DIMENSIONS) if known is None else len(known.criteria)

    async def find(self, task: Task, own: Rubric, judge: MeteredJudge) -> Rubric | None:
        """None where none is wanted. Raises Unjudgeable where the judge could not write one."""
        if self._choice != "query":
            return own if self._choice == "task" else None
        if task.id not in self._written:
            # Several rollouts of one group may ask at the same time.
            if task.id not in self._writing:
                self._writing[task.id] = asyncio.ensure_future(self._write(task, judge))
            if await self._writing[task.id] is None:
                raise Unjudgeable
        return self._written[task.id]

    async def _write(self, task: Task, judge: MeteredJudge) -> Rubric | None:
        try:
            rubric = await judge.write_rubric(task, ())
        finally:
            del self._writing[task.id]
        if rubric is not None:
            self._written[task.id] = rubric
        return rubric
