r"""Tasks that a user brings (`solver.tasks`, `compare.given`): a run's candidates, or one question a line.

    {"question": "What is 12 + 30?", "answer": "42"}
    {"question": "How do tides work?", "rubric": ["Names the Moon.", {"text": "Explains spring tides.", "weight": 2}]}
    {"question": "How do tides work?", "rubric": [{"title": "Springs", "text": "Explains spring tides.",
     "priority": "critical", "dimension": "Depth / Insight / Explanation"}]}
    {"question": "How do tides work?"}

`id` and `type` are optional, and so is all of a criterion but its text. A priority (critical, important, nice_to_have)
without a weight weighs 3, 2 or 1 (Tournament-GRPO, appendix F). The rubric of a question with nothing but an answer is
one criterion. By default the boxed answer meets it or not (`"check": "boxed"`); with `"check": "text"` the whole answer
does, as SQuAD's exact match compares; of these no judge is asked. With `"check": "judge"` a judge is, who is shown the
right answer: for those that can be said in several ways. A question alone gets a rubric from the judge,
written from the question, where a reward or a comparison needs one.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.suspicions import suspicions
from scope_selfplay.base.values import (
    Candidate,
    CandidateStatus,
    Check,
    Criterion,
    Priority,
    Provenance,
    Reason,
    Rubric,
    Task,
    Value,
    content_id,
)
from scope_selfplay.config.run import RunConfig
from scope_selfplay.config.training import SolverConfig
from scope_selfplay.net.json import given_lines, parse_object
from scope_selfplay.rewards.equations import priority_weight
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import RunFolder

EMBEDDED = "embedded"
"""Instead of a file in `compare.given`: a fixed mix of tasks about the embedded world."""


class GivenItem(Value):
    """One criterion with all that may be said of it; without a weight, that of the priority, if there is one."""

    text: str = Field(min_length=1)
    weight: float | None = Field(default=None, gt=0)
    priority: Literal["critical", "important", "bonus", "nice_to_have"] | None = None
    title: str = ""
    dimension: str = ""


GivenCriterion = Annotated[str, Field(min_length=1)] | GivenItem


class GivenQuestion(Value):
    """One line of a file of questions. `answer` is a text, or an expression in LaTeX or plain, boxed or not."""

    question: str = Field(min_length=1)
    answer: str | None = Field(default=None, min_length=1)
    check: Literal["boxed", "text", "judge"] = "boxed"
    rubric: tuple[GivenCriterion, ...] = ()
    id: str = Field(default="", pattern=r"^([a-z0-9][a-z0-9._-]{0,63})?$")
    type: str = "question"


def given_files(config: RunConfig) -> dict[str, Path]:
    """By the setting that names each."""
    files = {"solver.tasks": config.solver.tasks, "compare.given": config.held_out}
    return {setting: Path(path) for setting, path in files.items() if path not in (None, EMBEDDED)}


def read_given_tasks(
    path: str, setting: str = "solver.tasks", kept: RunFolder | None = None
) -> list[Candidate]:
    """The accepted candidates or the questions of a file. Raises ConfigError where it has none.

    `setting` is the one that named the file, of which a run has `kept` its own.
    """
    file = kept.given(setting) if kept and kept.given(setting).is_file() else Path(path)
    if not file.is_file():
        raise ConfigError(f"{setting}: {path} is not a file; give a candidates.jsonl, or a question a line")
    with file.open("rb") as lines:
        line = next((line for line in lines if line.strip()), b"{}")
    first: dict[str, Any] = {}
    # A damaged line is reported with its number when the whole file is read.
    with suppress(ValueError):
        first = parse_object(line)
    if "question" in first:
        return _questions(file, setting)
    candidates = read_records(file, Candidate)
    accepted = [
        candidate
        for candidate in candidates
        if candidate.status is CandidateStatus.ACCEPTED and candidate.task
    ]
    if not accepted:
        raise ConfigError(
            f"{setting}: {path} holds {len(candidates)} candidates and none that is accepted; give a "
            "candidates.jsonl with accepted tasks, or lines with a question each"
        )
    return accepted


def check_references(
    settings: SolverConfig, tasks: Sequence[Candidate] | None, kinds: Sequence[str] = ()
) -> None:
    """Raises ConfigError where a verifier is to decide over tasks that have no right answer.

    `tasks` are those of `solver.tasks`; None for the Challenger's, of which these `kinds` have no short answer.
    """
    by_reward = settings.reward.design == "verifier"
    if not by_reward and (settings.routing is None or settings.routing.by != "verifier"):
        return
    found = f"the Challenger's tasks of type {', '.join(kinds)} have none"
    if tasks is not None:
        lacking = [row.task.id for row in tasks if row.task and row.task.reference is None]
        if not lacking:
            return
        found = f"{len(lacking)} of {len(tasks)} tasks have none (the first is {lacking[0]})"
    raise ConfigError(
        f"solver.{'reward' if by_reward else 'routing'}: a verifier needs a reference answer, and {found}; give "
        "questions with answers, or tasks with `reference`, in solver.tasks, or use rubric"
    )


def check_rubrics(config: RunConfig, tasks: Sequence[Candidate], setting: str) -> None:
    """Raises ConfigError where rubrics are needed that tasks lack, and the judge of the run is one that writes none."""
    lacking = [row.task.id for row in tasks if row.task and row.rubric is None]
    needed = setting == "compare.given" or config.solver.needs_rubrics
    if lacking and needed and config.judge.kind == "verifier":
        raise ConfigError(
            f"{setting}: {len(lacking)} of {len(tasks)} questions have neither rubric nor answer (the first is "
            f"{lacking[0]}), and judge.kind verifier writes no rubrics; add them, or use judge.kind: model"
        )


def candidate_of(question: GivenQuestion) -> Candidate:
    task = Task(
        id=question.id or content_id("task", question.question, question.answer or ""),
        text=question.question,
        type=question.type,
        document_id="",
        search_turns=0,
        reference=question.answer,
    )
    criteria = _criteria_of(question)
    return given_candidate(task, Rubric(task_id=task.id, criteria=criteria) if criteria else None)


def given_candidate(task: Task, rubric: Rubric | None = None) -> Candidate:
    """A task that no Challenger wrote, accepted as it is."""
    return Candidate(
        id=content_id("candidate", task.id),
        status=CandidateStatus.ACCEPTED,
        reason=Reason.ACCEPTED,
        task=task,
        rubric=rubric,
        injection_suspect=suspicions(task.text),
        provenance=Provenance(run="given", iteration=0, stage="tasks", document_id=task.document_id),
    )


def _criteria_of(question: GivenQuestion) -> tuple[Criterion, ...]:
    if question.rubric:
        return tuple(map(_criterion, question.rubric))
    if question.answer is None:
        return ()
    if question.check == "judge":
        return (Criterion(text=f"Gives the right answer: {question.answer}", priority=Priority.CRITICAL),)
    text = "Gives the reference answer in a box." if question.check == "boxed" else "Is the reference answer."
    return (Criterion(text=text, priority=Priority.CRITICAL, check=Check(question.check)),)


def _criterion(given: GivenCriterion) -> Criterion:
    if isinstance(given, str):
        return Criterion(text=given)
    bare = Criterion(text=given.text, title=given.title, dimension=given.dimension)
    if given.priority is None:
        return bare.model_copy(update={"weight": given.weight or 1.0})
    priority = Priority.BONUS if given.priority == "nice_to_have" else Priority(given.priority)
    return bare.model_copy(update={"priority": priority, "weight": given.weight or priority_weight(priority)})


def _questions(file: Path, setting: str) -> list[Candidate]:
    found: dict[str, Candidate] = {}
    expected = "one JSON object a line has question, and may have answer, rubric, id and type"
    for where, question in given_lines(file, GivenQuestion, expected, named=setting):
        candidate = candidate_of(question)
        assert candidate.task is not None
        if candidate.task.id in found:
            raise ConfigError(f"{where}: {candidate.task.id} occurs twice; remove one of the lines")
        found[candidate.task.id] = candidate
    return list(found.values())
