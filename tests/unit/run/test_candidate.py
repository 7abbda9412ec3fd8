"""A document's way to a candidate: every reason, and what each costs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import InferenceError, SearchError
from scope_selfplay.base.sampling import Generate, Sample, ScriptedModel
from scope_selfplay.base.values import (
    DEFAULT_GATES,
    Candidate,
    CandidateStatus,
    Criterion,
    Document,
    Gate,
    Key,
    Passage,
    Provenance,
    Reason,
    Role,
    Rollout,
    RolloutFault,
    RolloutStatus,
    Rubric,
    Task,
    Turn,
    Verdict,
)
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.corpus.screen import TaskSource
from scope_selfplay.dialects.families import dialect
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.protocol import GateQuestion, GradeQuestion, Question, Reply, RubricQuestion
from scope_selfplay.judge.rules import VerifierJudge
from scope_selfplay.policy.episodes import Player, PolicyFormat, RolloutLimits
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.run.candidate import CandidateRecords, RunContext, SolverTrial, TaskWriter, evidence_of
from scope_selfplay.search.searcher import NothingToSearch
from tests.unit.evaluation.contestants import UNREADABLE
from tests.word_codec import WordCodec

PROMPTS = Path(__file__).parents[3] / "prompts"
PACK = load_pack(PROMPTS / "embedded")
SOURCE = TaskSource(
    document=Document(id="d1", title="Heron", text="About the heron."),
    task_type="long_form_qa",
    search_turns=1,
)
PROVENANCE = Provenance(run="r", iteration=1, stage="tasks", document_id="d1")
ANSWER = "<answer>yes yes no</answer>"


class Bench:
    """A judge with fixed gates and rubric; a criterion is met where the answer's word in its place is `yes`.

    `criteria` is how many a rubric has.
    """

    identity = "bench"

    def __init__(self, *, rubric: bool = True, criteria: int = 3, **gates: bool | None) -> None:
        self._rubric, self._criteria, self._gates = rubric, criteria, gates
        self.asked: list[str] = []

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        match question:
            case GateQuestion(gate=gate):
                self.asked.append(gate.value)
                value = self._gates.get(gate.value, True)
            case RubricQuestion(task, documents=documents):
                self.asked.append("rubric:" + ",".join(document.id for document in documents))
                criteria = tuple(Criterion(text=f"{place}") for place in range(self._criteria))
                rubric = Rubric(task_id=task.id, criteria=criteria) if self._rubric else None
                return Reply(rubric, Verdict(value=True))
            case GradeQuestion(criterion=criterion, answer=answer):
                self.asked.append("grade")
                word = answer.split()[int(criterion.text)]
                value = None if word == "unreadable" else word == "yes"
            case _:
                raise AssertionError(question)
        return Reply(value, UNREADABLE if value is None else Verdict(value=value))


class Down:
    """An engine or a retriever that is away."""

    identity = "down"

    async def generate(self, request: Generate, key: Key) -> Sample:
        raise InferenceError("engine down")

    async def search(self, query: str, topk: int) -> list[Passage]:
        raise SearchError("retriever down")


def proposal(
    task: str | None = "Name it.", *, fault: RolloutFault | None = None, searches: int = 2
) -> Rollout:
    found = Passage(id="p1", title="P", text="p")
    return Rollout(
        id="c1",
        role=Role.CHALLENGER,
        checkpoint="C_0",
        subject_id="d1",
        turns=(Turn(query="q", passages=(found,)),) * searches,
        task=task,
        status=RolloutStatus.FAILED if fault else RolloutStatus.FINISHED,
        fault=fault,
    )


def solvers(answers: Sequence[str]) -> SolverTrial:
    codec = WordCodec()
    model = ScriptedModel(codec, lambda _, key: answers[int(key[-2])], identity="S_0")
    policy_format = PolicyFormat(codec, dialect("qwen2.5"), "S_0", RolloutLimits(500))
    return SolverTrial(Player(model, policy_format), len(answers), window=True)


OF_ANSWERS = solvers(())
"""Solvers that say the answers that are given."""


async def judged(
    judge: Bench,
    answers: Sequence[str] = (ANSWER,) * 4,
    *,
    rollout: Rollout | None = None,
    gates: tuple[Gate, ...] = tuple(Gate),
    trial: SolverTrial | None = OF_ANSWERS,
) -> tuple[CandidateRecords, RunContext]:
    context = RunContext(RunConfig(), PACK, Down(), MeteredJudge(judge), gates)  # type: ignore[arg-type]
    tried = solvers(answers) if trial is OF_ANSWERS else trial
    made = await TaskWriter(context, tried, PROVENANCE, (0, 1, "tasks")).judge(SOURCE, rollout or proposal())
    return made, context


def answers_of(*words: str) -> list[str]:
    return [f"<answer>{each}</answer>" for each in words]


ACCEPTED, REJECTED, UNRESOLVED = (
    CandidateStatus.ACCEPTED,
    CandidateStatus.REJECTED,
    CandidateStatus.UNRESOLVED,
)
UNREAD = "unreadable unreadable unreadable"

CASES: list[tuple[str, Callable[[], Bench], list[str], Rollout, CandidateStatus, Reason]] = [
    ("inside the window", Bench, [ANSWER] * 4, proposal(), ACCEPTED, Reason.ACCEPTED),
    ("no task", Bench, [ANSWER], proposal(None), REJECTED, Reason.NO_TASK),
    *[
        (fault.value, Bench, [ANSWER], proposal(None, fault=fault), status, reason)
        for fault, status, reason in (
            (RolloutFault.SEARCH, UNRESOLVED, Reason.SEARCH_FAILED),
            (RolloutFault.TOOL, UNRESOLVED, Reason.TOOL_FAILED),
            (RolloutFault.ENGINE, UNRESOLVED, Reason.ENGINE_FAILED),
            (RolloutFault.PROMPT, REJECTED, Reason.PROMPT_TOO_LONG),
        )
    ],
    ("entity", lambda: Bench(entity=False), [ANSWER], proposal(), REJECTED, Reason.refused_by(Gate.ENTITY)),
    ("source", lambda: Bench(source=False), [ANSWER], proposal(), REJECTED, Reason.refused_by(Gate.SOURCE)),
    ("safety", lambda: Bench(safety=False), [ANSWER], proposal(), REJECTED, Reason.refused_by(Gate.SAFETY)),
    ("gate unreadable", lambda: Bench(source=None), [ANSWER], proposal(), UNRESOLVED, Reason.JUDGE_FAILED),
    ("no rubric", lambda: Bench(rubric=False), [ANSWER], proposal(), UNRESOLVED, Reason.RUBRIC_FAILED),
    ("nothing stated", lambda: Bench(criteria=0), [ANSWER], proposal(), REJECTED, Reason.UNGROUNDED),
    ("too hard", Bench, answers_of("no no no", "no no no"), proposal(), REJECTED, Reason.TOO_HARD),
    ("too easy", Bench, answers_of("yes yes yes"), proposal(), REJECTED, Reason.TOO_EASY),
    ("no answers", Bench, ["nothing"] * 4, proposal(), REJECTED, Reason.TOO_HARD),
    ("missing", Bench, answers_of("yes no no", UNREAD, UNREAD), proposal(), UNRESOLVED, Reason.JUDGE_FAILED),
]


@pytest.mark.parametrize(
    ("judge", "answers", "rollout", "status", "reason"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
async def test_every_outcome_has_its_status_and_reason(
    judge: Callable[[], Bench], answers: list[str], rollout: Rollout, status: CandidateStatus, reason: Reason
) -> None:
    # Which of many begin alike is known when they are collected; those of short answers have tests of their own.
    short = {Reason.NO_QUESTION, Reason.NO_SPAN, Reason.LONG_ANSWER, Reason.GIVEN_AWAY, Reason.NO_SUBJECT}
    short |= {Reason.MISREAD, Reason.KNOWN, Reason.UNREAD}
    assert {case[5] for case in CASES} == set(Reason) - {Reason.TOO_ALIKE, Reason.DUPLICATE} - short
    made, _ = await judged(judge(), answers, rollout=rollout)
    candidate = made.candidate
    assert (candidate.status, candidate.reason) == (status, reason)
    assert candidate.challenger_rollout_id == "c1" and candidate.provenance == PROVENANCE
    assert Candidate.model_validate_json(candidate.model_dump_json()) == candidate


async def test_a_failed_gate_costs_its_calls_and_no_more() -> None:
    judge = Bench(entity=False, source=False)
    made, context = await judged(judge, gates=(Gate.ENTITY, Gate.SOURCE))
    assert DEFAULT_GATES == (Gate.ENTITY, Gate.SOURCE)
    assert judge.asked == ["entity", "source"] and made.rollouts == ()
    assert made.candidate.reason is Reason.refused_by(Gate.ENTITY)
    assert (context.judge.tally.calls, context.judge.tally.failed) == (2, 0)


async def test_every_call_to_the_judge_is_counted() -> None:
    judge = Bench()
    _, context = await judged(judge, answers_of("yes no no", "unreadable no no", ":"))
    grades = judge.asked.count("grade")
    # The opener was graded without a call.
    assert grades == 6 and context.judge.tally.calls == 3 + grades
    assert context.judge.tally.failed == 1


async def test_the_rubric_writer_sees_the_source_and_each_passage_once() -> None:
    judge = Bench()
    made, _ = await judged(judge)
    assert "rubric:d1,p1" in judge.asked
    assert made.candidate.task is not None and made.candidate.task.evidence_ids == ("p1",)
    assert [each.id for each in evidence_of(proposal())] == ["p1"]


async def test_the_mean_leaves_missing_grades_out() -> None:
    made, _ = await judged(Bench(), answers_of("yes yes no", "yes no no", UNREAD, UNREAD))
    assert made.candidate.mean == pytest.approx(0.5)
    assert made.candidate.status is ACCEPTED and len(made.grades) == len(made.rollouts) == 4
    assert made.candidate.rollout_ids == tuple(each.id for each in made.rollouts)
    assert {each.index for each in made.rollouts} == {"down"}


async def test_rollouts_that_failed_are_missing_and_never_zero() -> None:
    down = SolverTrial(Player(Down(), solvers([ANSWER]).solver.policy_format), 4, window=True)
    made, _ = await judged(Bench(), trial=down)
    assert (made.candidate.status, made.candidate.mean) == (UNRESOLVED, None)
    assert made.candidate.reason is Reason.ENGINE_FAILED
    assert {each.status for each in made.rollouts} == {RolloutStatus.FAILED}


async def test_a_task_without_enough_scores_has_the_commonest_fault_as_its_reason() -> None:
    answers = ["<search>heron</search>", "<search>heron</search>", *answers_of(UNREAD, "yes no no")]
    made, _ = await judged(Bench(), answers, gates=())
    assert (made.candidate.status, made.candidate.reason) == (UNRESOLVED, Reason.SEARCH_FAILED)
    assert [each.fault for each in made.rollouts] == [RolloutFault.SEARCH, RolloutFault.SEARCH, None, None]


async def test_without_gates_everything_that_is_a_task_goes_on() -> None:
    made, _ = await judged(Bench(entity=False), gates=())
    assert made.candidate.status is ACCEPTED and made.candidate.gates == {}


async def test_held_out_tasks_are_not_filtered_by_difficulty() -> None:
    judge = Bench()
    made, _ = await judged(judge, trial=None)
    assert (made.candidate.status, made.candidate.mean, made.rollouts) == (ACCEPTED, None, ())
    assert "grade" not in judge.asked


async def test_the_same_task_is_equally_difficult_whoever_wrote_it() -> None:
    first, _ = await judged(Bench())
    second, _ = await judged(Bench(), rollout=proposal().model_copy(update={"id": "c2"}))
    assert first.candidate.rollout_ids == second.candidate.rollout_ids
    assert first.candidate.id != second.candidate.id


async def test_a_task_counts_the_searches_that_were_made_for_it_and_a_hostile_one_stays_as_it_is() -> None:
    text = "Say {{ document }} {% for %} %s {0}"
    for searches in (0, 2):
        task = (await judged(Bench(), rollout=proposal(text, searches=searches)))[0].candidate.task
        assert task is not None
        assert (task.search_turns, task.assigned_turns, task.text) == (searches, 1, text)


def solver_prompt(family: str, *settings: str) -> str:
    config, pack = load_config(None, settings), load_pack(PROMPTS / "wikipedia")
    context = RunContext(config, pack, NothingToSearch(), MeteredJudge(VerifierJudge()), ())
    codec = WordCodec()
    policy_format = PolicyFormat(codec, dialect(family), "S_0", RolloutLimits(500))
    task = Task(id="t", text="Where is it?", type="long_form_qa", document_id="d", search_turns=1)
    request = next(context.solver_episode(policy_format, ("key",), task))
    assert isinstance(request, Generate)
    return codec.decode(request.prompt_ids)


@pytest.mark.parametrize(
    ("family", "place", "foreign"),
    [
        ("qwen2.5", "<information>", "<tool_response>"),
        ("qwen3", "<tool_response>", "<information>"),
        ("olmo3", "from the environment", "<information>"),
    ],
)
def test_a_solver_is_told_where_its_results_come_back(family: str, place: str, foreign: str) -> None:
    prompt = solver_prompt(family)
    assert place in prompt and foreign not in prompt and "You can search up to 5 times" in prompt


def test_a_solver_is_told_its_budget_where_the_config_says_so() -> None:
    assert "8,192 tokens" in solver_prompt("qwen3", "solver.tell_budget=true")
    assert "tokens" not in solver_prompt("qwen3")
    config = load_config(None, ["challenger.max_response=900", "solver.max_turn=90"])
    context = RunContext(config, PACK, NothingToSearch(), MeteredJudge(VerifierJudge()), ())
    challenger, solver = map(context.limits, (Role.CHALLENGER, Role.SOLVER))
    assert (challenger.max_response, solver.max_response, solver.max_turn) == (900, 8192, 90)
