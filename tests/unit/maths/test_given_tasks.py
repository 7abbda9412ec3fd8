"""Files of questions with answers, and `scope math new` that writes some."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from scope_selfplay.base.errors import ConfigError, RecordError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Candidate, CandidateStatus, Check, Criterion, Priority, Role, Rollout
from scope_selfplay.config.load import load_config
from scope_selfplay.judge.protocol import grade_answer
from scope_selfplay.judge.rules import VerifierJudge
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.rewards.problems import RUN_FILE, ProblemKind, math
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.given import read_given_tasks
from scope_selfplay.stages.tasks import make_tasks
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import Stage


def written(folder: Path, *lines: object) -> str:
    path = folder / "tasks.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def test_a_question_becomes_an_accepted_task_with_a_criterion_that_needs_no_judge(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"question": "1 + 1", "answer": "2"}, "", {"question": "2 + 2", "answer": "4", "id": "q2"}
    )
    first, second = read_given_tasks(path)
    assert first.status is CandidateStatus.ACCEPTED and first.task is not None and first.rubric is not None
    assert (first.task.text, first.task.reference, first.task.type) == ("1 + 1", "2", "question")
    assert [each.check for each in first.rubric.criteria] == [Check.BOXED]
    assert second.task is not None and second.task.id == "q2"
    assert read_given_tasks(path)[0].id == first.id


@pytest.mark.parametrize(
    ("check", "answer", "expected"),
    [
        ("boxed", "Paris", False),
        ("boxed", r"\boxed{Paris}", True),
        ("text", "paris.", True),
        ("text", r"So it is \boxed{the Paris}", True),
        ("text", "Paris or Rome", False),
    ],
)
async def test_a_short_answer_is_compared_as_its_question_says(
    tmp_path: Path, check: str, answer: str, expected: bool
) -> None:
    (row,) = read_given_tasks(written(tmp_path, {"question": "?", "answer": "Paris", "check": check}))
    assert row.task is not None and row.rubric is not None
    rollout = Rollout(id="r", role=Role.SOLVER, checkpoint="S", subject_id="q", turns=(), answer=answer)
    grade = await grade_answer(VerifierJudge(), row.task, row.rubric, rollout, key=("k",))
    assert [verdict.value for verdict in grade.verdicts] == [expected]
    assert [verdict.attempts for verdict in grade.verdicts] == [0]


def test_an_answer_that_can_be_said_in_several_ways_is_left_to_the_judge(tmp_path: Path) -> None:
    line = {"question": "When?", "answer": "14 March 1879", "check": "judge"}
    (row,) = read_given_tasks(written(tmp_path, line))
    assert row.rubric is not None
    (criterion,) = row.rubric.criteria
    assert (criterion.text, criterion.check) == ("Gives the right answer: 14 March 1879", None)


def test_a_question_may_bring_its_rubric_or_leave_it_to_the_judge(tmp_path: Path) -> None:
    weighed = {"text": "Explains spring tides.", "weight": 2}
    path = written(
        tmp_path,
        {"question": "How do tides work?", "rubric": ["Names the Moon.", weighed]},
        {"question": "Why is the sky blue?"},
    )
    first, second = read_given_tasks(path)
    assert first.rubric is not None and first.task is not None and first.task.reference is None
    criteria = [(each.text, each.weight, each.check) for each in first.rubric.criteria]
    assert criteria == [("Names the Moon.", 1.0, None), ("Explains spring tides.", 2.0, None)]
    assert second.rubric is None and second.status is CandidateStatus.ACCEPTED


def test_a_given_rubric_may_say_all_that_a_written_one_does(tmp_path: Path) -> None:
    """Tournament-GRPO, section 4.1: criteria have a title, a dimension and an importance, which weighs 3, 2 or 1."""
    named = {"text": "Explains spring tides.", "title": "Springs", "dimension": "Depth"}
    rubric = [
        {**named, "priority": "critical"},
        {"text": "Names the Moon.", "priority": "nice_to_have"},
        {"text": "Names the Sun.", "priority": "important", "weight": 2.5},
    ]
    (found,) = read_given_tasks(written(tmp_path, {"question": "How do tides work?", "rubric": rubric}))
    assert found.rubric is not None
    assert found.rubric.criteria == (
        Criterion(**named, priority=Priority.CRITICAL, weight=3.0),
        Criterion(text="Names the Moon.", priority=Priority.BONUS, weight=1.0),
        Criterion(text="Names the Sun.", priority=Priority.IMPORTANT, weight=2.5),
    )


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([{"question": "1 + 1"}, {"answer": "2"}], "tasks.jsonl:2: question: field required"),
        ([{"question": "1 + 1", "rubric": [""]}], "tasks.jsonl:1: rubric.0"),
        ([{"question": "1 + 1", "rubric": [{"text": "Says 2.", "weight": 0}]}], "tasks.jsonl:1: rubric.0"),
        ([{"question": "1", "rubric": [{"text": "A", "priority": "high"}]}], "tasks.jsonl:1: rubric.0"),
        ([{"question": "1 + 1", "answer": "2"}, {"question": "", "answer": "2"}], ":2: question: "),
        ([{"question": "1 + 1", "answer": "2", "anser": "3"}], ":1: anser: "),
        ([{"question": "1 + 1", "answer": "2"}, "nonsense"], ":2: not JSON"),
        ([{"question": "1 + 1", "answer": 2}], ":1: answer: "),
        ([{"question": "1 + 1", "answer": "2"}] * 2, ":2: task-"),
        ([{"question": "1 + 1", "answer": "2", "id": "../x"}], ":1: id: "),
        ([], "holds 0 candidates"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, lines: list[object], said: str) -> None:
    with pytest.raises(ConfigError, match=r"compare\.given: ") as error:
        read_given_tasks(written(tmp_path, *lines), "compare.given")
    assert said in str(error.value)


def test_what_is_neither_is_a_damaged_record_and_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"tasks\.jsonl:1"):
        read_given_tasks(written(tmp_path, "nonsense"))
    with pytest.raises(ConfigError, match=r"solver\.tasks: nowhere is not a file"):
        read_given_tasks("nowhere")


def test_new_writes_problems_and_a_run_that_loads(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    arguments = ["new", str(folder), "--count", "30", "--held-out", "12", "--level", "1", "--json"]
    done = CliRunner().invoke(math, arguments, catch_exceptions=False)
    assert json.loads(done.output)["train"] == 30
    config = load_config(folder / "run.yaml")
    assert (config.domain, config.solver.loss, config.judge.kind) == ("math", "cispo", "verifier")
    train = read_given_tasks(str(config.solver.tasks))
    held_out = read_given_tasks(str(config.compare.given), "compare.given")
    assert (len(train), len(held_out)) == (30, 12)
    texts = [{each.task.text for each in found if each.task} for found in (train, held_out)]
    assert not texts[0] & texts[1]
    arena = load_config(folder / "reasoning_arena.yaml").solver
    assert (arena.tasks, arena.loss, arena.kl_beta) == (config.solver.tasks, "cispo", 0.0)
    assert (arena.reward.design, arena.routing.by if arena.routing else None) == ("live", "auto")
    again = CliRunner().invoke(math, ["new", str(folder)])
    assert again.exit_code != 0 and "nothing is written over" in str(again.exception)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "kinds", [[], *([kind] for kind in ProblemKind)], ids=lambda kinds: "-".join(kinds) or "all"
)
def test_new_works_with_its_defaults_at_any_seed_and_for_any_one_kind(
    tmp_path: Path, seed: int, kinds: list[ProblemKind]
) -> None:
    """1,000 problems to train on and 200 held out, which is more than the smallest numbers have to give."""
    options = [option for kind in kinds for option in ("--kind", kind.value)]
    done = CliRunner().invoke(math, ["new", str(tmp_path / "sums"), "--seed", str(seed), *options])
    assert done.exit_code == 0, done.exception
    lines = [
        (tmp_path / "sums" / name).read_text().splitlines() for name in ("train.jsonl", "held_out.jsonl")
    ]
    assert list(map(len, lines)) == [1000, 200]


def test_too_many_problems_are_refused(tmp_path: Path) -> None:
    arguments = ["new", str(tmp_path / "x"), "--count", "5000", "--kind", "arithmetic", "--level", "1"]
    done = CliRunner().invoke(math, arguments)
    assert "ask for fewer" in str(done.exception) and not (tmp_path / "x").exists()


def test_the_pack_asks_for_a_box_and_for_no_search() -> None:
    pack = load_pack(pack_path("math"))
    prompt = pack.render(
        PromptRole.SOLVER,
        question="1 + 1",
        max_search_turns=0,
        search_syntax="<search>query</search>",
        budget=None,
    )
    assert r"\boxed{" in prompt and "<answer>" in prompt and "search" not in prompt
    assert pack.domain.gates == ()
    # What stands outside of think tags is what the judge of Reasoning Arena compares.
    assert "After </think> write out the solution" in prompt


def settings(tmp_path: Path, model: Path) -> list[str]:
    tasks = written(tmp_path, {"question": "1 + 1", "answer": "2"}, {"question": "2 + 2", "answer": "4"})
    return [
        f"model.path={model}",
        f"solver.tasks={tasks}",
        f"compare.given={tasks}",
        "compare.tasks=1",
    ]


@pytest.mark.integration
def test_a_run_on_given_tasks_has_no_documents_and_takes_its_held_out_tasks_from_the_file(
    tmp_path: Path, model: Path
) -> None:
    run = open_run(load_config(RUN_FILE, settings(tmp_path, model)), tmp_path / "runs", Progress())
    assert run.documents == [] and run.context.searcher.identity == "nothing"
    make_tasks(run, 0)
    folder = run.folder.stage(0, Stage.TASKS)
    (kept,) = read_records(folder.candidates, Candidate)
    assert kept.task is not None and kept.task.reference == "2"
    assert json.loads((folder.path / "documents.json").read_text()) == []


def test_a_judge_that_writes_no_rubrics_is_refused_questions_without(tmp_path: Path, model: Path) -> None:
    changes = [*settings(tmp_path, model), "solver.reward=rubric"]
    written(tmp_path, {"question": "1 + 1"})
    with pytest.raises(ConfigError, match=r"solver\.tasks: 1 of 1 questions have neither rubric nor answer"):
        open_run(load_config(RUN_FILE, changes), tmp_path / "runs", Progress())


@pytest.mark.parametrize(
    "change",
    ["solver.tasks=null", "compare.given=null", "solver.max_search_turns=3"],
)
def test_what_a_run_without_documents_cannot_do_is_refused(tmp_path: Path, model: Path, change: str) -> None:
    config = load_config(RUN_FILE, [*settings(tmp_path, model), change])
    with pytest.raises(ConfigError, match=rf"corpus\.path: none .* set {change.partition('=')[0]}"):
        open_run(config, tmp_path / "runs", Progress())
