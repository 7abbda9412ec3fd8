"""Files of questions with answers, and runs on them."""

import json
from pathlib import Path

import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Candidate, CandidateStatus, Check, Criterion, Priority, Rollout
from scope_selfplay.config.load import load_config
from scope_selfplay.judge.protocol import grade_answer
from scope_selfplay.judge.rules import VerifierJudge
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.given import read_given_tasks
from scope_selfplay.stages.tasks import make_tasks
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import Stage

RUN_FILE = Path(__file__).parents[3] / "examples" / "maths" / "run.yaml"


def written(folder: Path, *lines: object) -> str:
    path = folder / "tasks.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def criteria_of(candidate: Candidate) -> tuple[Criterion, ...] | None:
    return None if candidate.rubric is None else candidate.rubric.criteria


def test_a_question_becomes_an_accepted_task_with_what_its_answer_is_judged_by(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"question": "2 + 2", "answer": "4", "id": "q2"},
        "",
        {"question": "When?", "answer": "14 March 1879", "check": "judge"},
        {"question": "Why is the sky blue?"},
    )
    sums, asked, bare = read_given_tasks(path)
    assert {each.status for each in (sums, asked, bare)} == {CandidateStatus.ACCEPTED}
    assert sums.task is not None and bare.task is not None and bare.task.reference is None
    assert (sums.task.id, sums.task.text, sums.task.reference) == ("q2", "2 + 2", "4")
    assert [each.check for each in criteria_of(sums) or ()] == [Check.BOXED]
    (criterion,) = criteria_of(asked) or ()
    assert (criterion.text, criterion.check) == ("Gives the right answer: 14 March 1879", None)
    # Left to the judge.
    assert criteria_of(bare) is None
    assert read_given_tasks(path)[1].id == asked.id


def test_a_given_rubric_may_say_all_that_a_written_one_does(tmp_path: Path) -> None:
    """Tournament-GRPO, section 4.1: criteria have a title, a dimension and an importance, which weighs 3, 2 or 1."""
    named = {"text": "Explains spring tides.", "title": "Springs", "dimension": "Depth"}
    rubric = [
        {**named, "priority": "critical"},
        {"text": "Names the Moon.", "priority": "nice_to_have"},
        {"text": "Names the Sun.", "priority": "important", "weight": 2.5},
        {"text": "Names Newton.", "weight": 2},
        "Names Kepler.",
    ]
    (found,) = read_given_tasks(written(tmp_path, {"question": "How do tides work?", "rubric": rubric}))
    full, *others, weighed, plain = criteria_of(found) or ()
    assert full == Criterion(**named, priority=Priority.CRITICAL, weight=3.0)
    assert others == [
        Criterion(text="Names the Moon.", priority=Priority.BONUS, weight=1.0),
        Criterion(text="Names the Sun.", priority=Priority.IMPORTANT, weight=2.5),
    ]
    assert [(each.text, each.weight, each.check) for each in (weighed, plain)] == [
        ("Names Newton.", 2.0, None),
        ("Names Kepler.", 1.0, None),
    ]


async def test_a_short_answer_is_compared_as_its_question_says(tmp_path: Path) -> None:
    for check, answer, expected in (
        ("boxed", "Paris", False),
        ("boxed", r"\boxed{Paris}", True),
        ("text", "paris.", True),
        ("text", r"So it is \boxed{the Paris}", True),
        ("text", "Paris or Rome", False),
    ):
        (row,) = read_given_tasks(written(tmp_path, {"question": "?", "answer": "Paris", "check": check}))
        assert row.task is not None and row.rubric is not None
        given = Rollout.of_answer(answer)
        grade = await grade_answer(VerifierJudge(), row.task, row.rubric, given, key=("k",))
        assert [(verdict.value, verdict.attempts) for verdict in grade.verdicts] == [(expected, 0)]


GIVEN = {"question": "1 + 1", "answer": "2"}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([GIVEN, {"answer": "2"}], "tasks.jsonl:2: question: field required"),
        ([{"question": "1 + 1", "rubric": [""]}], "tasks.jsonl:1: rubric.0"),
        ([{"question": "1 + 1", "rubric": [{"text": "Says 2.", "weight": 0}]}], "tasks.jsonl:1: rubric.0"),
        ([{**GIVEN, "anser": "3"}], ":1: anser: "),
        ([GIVEN, "nonsense"], ":2: not JSON"),
        ([GIVEN, GIVEN], ":2: task-"),
        ([{**GIVEN, "id": "../x"}], ":1: id: "),
        ([], "holds 0 candidates"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, lines: list[object], said: str) -> None:
    with pytest.raises(ConfigError, match=r"compare\.given: ") as error:
        read_given_tasks(written(tmp_path, *lines), "compare.given")
    assert said in str(error.value)


def test_the_settings_of_reasoning_arena_are_an_example_beside_those_of_its_baseline() -> None:
    config, arena = load_config(RUN_FILE), load_config(RUN_FILE.with_name("reasoning_arena.yaml")).solver
    assert (config.domain, config.solver.loss, config.judge.kind) == ("math", "cispo", "verifier")
    assert (arena.tasks, arena.loss, arena.kl_beta) == (config.solver.tasks, "cispo", 0.0)
    assert (arena.reward.design, arena.routing.by if arena.routing else None) == ("live", "auto")


def settings(tmp_path: Path, model: Path, *lines: object) -> list[str]:
    tasks = written(tmp_path, *lines)
    return [f"model.path={model}", f"solver.tasks={tasks}", f"compare.given={tasks}", "compare.tasks=1"]


@pytest.mark.integration
def test_a_run_on_given_tasks_has_no_documents_and_takes_its_held_out_tasks_from_the_file(
    tmp_path: Path, model: Path
) -> None:
    given = settings(tmp_path, model, GIVEN, {"question": "2 + 2", "answer": "4"})
    run = open_run(load_config(RUN_FILE, given), tmp_path / "runs", Progress())
    assert run.documents == [] and run.context.searcher.identity == "nothing"
    make_tasks(run, 0)
    folder = run.folder.stage(0, Stage.TASKS)
    (kept,) = read_records(folder.candidates, Candidate)
    assert kept.task is not None and kept.task.reference == "2"
    assert json.loads((folder.path / "documents.json").read_text()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("solver.tasks=null", r"corpus\.path: none .* set solver\.tasks"),
        ("compare.given=null", r"corpus\.path: none .* set compare\.given"),
        ("solver.max_search_turns=3", r"corpus\.path: none .* set solver\.max_search_turns"),
        # The verifier writes no rubrics.
        ("solver.reward=rubric", r"solver\.tasks: 1 of 1 questions have neither rubric nor answer"),
    ],
)
def test_what_a_run_without_documents_cannot_do_is_refused(
    tmp_path: Path, model: Path, change: str, said: str
) -> None:
    line = {"question": "1 + 1"} if "rubric" in change else GIVEN
    config = load_config(RUN_FILE, [*settings(tmp_path, model, line), change])
    with pytest.raises(ConfigError, match=said):
        open_run(config, tmp_path / "runs", Progress())
