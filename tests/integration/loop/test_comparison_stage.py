"""`compare` and `tasks` on disk, with scripted policies and a judge that counts: what is asked, kept, tried again."""

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import CorpusError, JudgeError, UserError
from scope_selfplay.base.sampling import ScriptedModel
from scope_selfplay.base.terminal import LineProgress
from scope_selfplay.base.values import (
    Candidate,
    Comparison,
    Criterion,
    Document,
    Key,
    Reason,
    Role,
    Rollout,
    RolloutStatus,
    Rubric,
    Verdict,
)
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.dialects.families import dialect
from scope_selfplay.evaluation import evaluate
from scope_selfplay.evaluation.contestants import Contestant
from scope_selfplay.evaluation.folder import EvaluationReader
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.protocol import GradeQuestion, Question, Reply, RubricQuestion
from scope_selfplay.policy.episodes import Player, PolicyFormat
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.run.candidate import RunContext
from scope_selfplay.run.run import Run
from scope_selfplay.stages.compare import compare
from scope_selfplay.stages.tasks import make_tasks
from scope_selfplay.stages.work import check_turn
from scope_selfplay.store.files import read_records, write_records
from scope_selfplay.store.folder import Policy, RunFolder, Stage, StageManifest, publish_manifest
from tests.unit.evaluation.contestants import UNREADABLE, candidate
from tests.unit.evaluation.test_rating import Reader
from tests.unit.run.test_candidate import Down
from tests.unit.stages.test_swap import Library
from tests.word_codec import WordCodec

PACK = load_pack(Path(__file__).parents[3] / "prompts" / "embedded")
TASKS = 12
SAID = Path(__file__).parents[2] / "golden" / "comparison.txt"


class Counting(Reader):
    """Prefers more words and meets a criterion with two; the comparisons numbered in `unreadable` cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.graded = 0
        self.unreadable: set[int] = set()

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        if isinstance(question, GradeQuestion):
            self.graded += 1
            met = len(question.answer.split()) > 1
            return Reply(met, Verdict(value=met))
        if isinstance(question, RubricQuestion):
            rubric = Rubric(task_id=question.task.id, criteria=(Criterion(text="Says two words."),))
            return Reply(rubric, Verdict(value=True))
        found = await super().ask(question)
        return Reply(None, UNREADABLE) if self.compared in self.unreadable else found


class Scripted(Run):
    """A run whose Solver S_t answers with t + 1 words; `down` lists checkpoints without an engine."""

    down: frozenset[str] = frozenset()
    greedy = True
    words: dict[str, int] = {}  # noqa: RUF012  one per test

    @cached_property
    def codec(self) -> Any:
        return WordCodec()

    @cached_property
    def context(self) -> RunContext:
        return RunContext(self.config, self.pack, Library(), MeteredJudge(Counting()), ())

    def solver(self, iteration: int) -> Policy:
        return Policy(f"S_{iteration}", self.folder.path)

    def policy_format(self, policy: Policy, role: Any, *, greedy: bool = False) -> PolicyFormat:
        assert greedy is self.greedy, "checkpoints are compared by their likeliest tokens"
        return PolicyFormat(self.codec, dialect("qwen2.5"), policy.name, self.context.limits(role), greedy)

    def engine(self, policy: Policy, role: Any) -> Any:
        if policy.name in self.down:
            return Down()
        if role is Role.CHALLENGER:

            def write(text: str, key: Key) -> str:
                which = "ODD" if "ODD" in text else "even"
                return f"<task>Which is {which}, {key[-2]}?</task>" if key[-1] else "<search>heron</search>"

            return ScriptedModel(self.codec, write)
        words = self.words.get(policy.name, int(policy.name[2:]) + 1)
        answers = [f"<answer>{' '.join(['word'] * count)}</answer>" for count in (words, 2)]
        return ScriptedModel(self.codec, lambda text, _: answers["ODD" in text], identity=policy.name)


def run_of(root: Path, *overrides: str, tasks: int = TASKS) -> Scripted:
    config: RunConfig = load_config(None, ["name=tiny", "domain=embedded", *overrides])
    run = Scripted(config, RunFolder(root / "tiny"), PACK)
    folder = run.folder.stage(0, Stage.TASKS)
    folder.path.mkdir(parents=True, exist_ok=True)
    # One is given twice, and has one answer all the same.
    write_records(folder.candidates, [candidate(number) for number in (*range(tasks), 0)])
    return run


def judge_of(run: Scripted) -> Counting:
    judge: Any = run.context.judge.judge
    return judge


def written(run: Run, iteration: int, name: str = "ratings") -> Any:
    return json.loads((run.folder.stage(iteration, Stage.COMPARE).path / f"{name}.json").read_text())


def compare_up_to(run: Run, last: int) -> None:
    for iteration in range(last + 1):
        compare(run, iteration)


def comparisons_of(run: Run, iteration: int) -> list[Comparison]:
    return read_records(run.folder.stage(iteration, Stage.COMPARE).comparisons, Comparison)


def test_each_iteration_judges_only_the_newest_and_reuses_the_rest(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    calls = []
    for iteration in range(3):
        before = judge_of(run).compared
        compare(run, iteration)
        calls.append(judge_of(run).compared - before)
    assert calls == [0, TASKS, 2 * TASKS]
    assert judge_of(run).graded == 3 * TASKS
    assert [len(comparisons_of(run, number)) for number in range(3)] == calls
    found = written(run, 2)
    assert found["ratings"] == pytest.approx({"S_0": 0.0, "S_1": 1.0, "S_2": 2.0}, abs=1e-4)
    assert [(each["older"], each["newer"], each["wins"]) for each in found["edges"]] == [
        ("S_0", "S_1", TASKS),
        ("S_0", "S_2", TASKS),
        ("S_1", "S_2", TASKS),
    ]
    assert all(each["newer_first"] == TASKS // 2 for each in found["edges"])


def test_searches_and_answers_of_two_solvers_are_swapped(tmp_path: Path) -> None:
    """Table 4. S_0's answers of one word meet no criterion, those of S_1 meet all; nobody searches."""
    run, said = run_of(tmp_path, "compare.swap_with=0"), list[str]()
    run.progress = LineProgress(lambda line: said.append(re.sub(r" \(\d+ s\)$", "", line)), every=1e9)
    compare_up_to(run, 1)
    assert not (run.folder.stage(0, Stage.COMPARE).path / "swaps.json").exists()
    folder = run.folder.stage(1, Stage.COMPARE)
    rows = written(run, 1, "swaps")["rows"]
    found = [(row["search"], row["answer"], row["score"]["mean_score"]) for row in rows]
    assert found == [("S_0", "S_0", 0.0), ("S_0", "S_1", 1.0), ("S_1", "S_0", 0.0), ("S_1", "S_1", 1.0)]
    assert [row["gain"] and row["gain"]["value"] for row in rows] == [None, 1.0, 0.0, 1.0]
    swapped = read_records(folder.path / "swapped" / "S_0-searches-S_1-answers" / "rollouts.jsonl", Rollout)
    assert [each.checkpoint for each in swapped] == ["S_1"] * TASKS
    served = run_of(
        tmp_path / "served", "compare.swap_with=0", "partners.solver.base_url=http://127.0.0.1:9/v1"
    )
    served.progress = run.progress
    compare_up_to(served, 1)
    assert said == SAID.read_text().splitlines()
    # Ratings and promotion are those of whole Solvers.
    assert list(written(run, 1)["ratings"]) == ["S_0", "S_1"]


def test_promotion_asks_the_judge_that_trains_nobody(tmp_path: Path) -> None:
    own = ["judge.kind=model", "judge.endpoint.base_url=http://127.0.0.1:1/v1"]
    run = run_of(tmp_path, *own, "judge.evaluate=[{base_url: 'http://127.0.0.1:2/v1', model: other}]")
    deciding, asked = Counting(), []

    def open_judge(settings: Any = None) -> Any:
        asked.append(settings.endpoint.model)
        return deciding

    run.open_judge = open_judge  # type: ignore[method-assign]
    compare_up_to(run, 1)
    assert asked == ["other"]
    assert (deciding.graded, deciding.compared) == (2 * TASKS, TASKS)
    assert (judge_of(run).graded, judge_of(run).compared) == (0, 0)


def test_every_solver_answers_the_benchmarks_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = tmp_path / "own.jsonl"
    questions.write_text('{"question": "One word?", "answer": "word"}\n')
    run = run_of(tmp_path, f"compare.benchmarks=[{questions}]", "model.max_length=512")

    def answering_as(place: Any, contestant: Contestant, decoding: Any) -> Player:
        assert contestant.policy is not None
        return run.player(contestant.policy, Role.SOLVER, greedy=True)

    monkeypatch.setattr(evaluate, "answering_as", answering_as)
    compare_up_to(run, 1)
    rows = EvaluationReader(run.folder.path / "benchmarks" / "own").result().rows
    # S_0 answers with one word, S_1 with two.
    found = {row.checkpoint: row.estimate.value for row in rows if row.scorer == "exact_match"}
    assert found == {"tiny:S_0": 1.0, "tiny:S_1": 0.0}
    assert run.config.hash == run_of(tmp_path / "other", "model.max_length=512").config.hash


def test_a_judge_that_fails_stops_the_stage_and_only_what_is_missing_is_asked_again(tmp_path: Path) -> None:
    tasks = 60
    run = run_of(tmp_path, tasks=tasks)
    compare(run, 0)
    judge_of(run).unreadable = set(range(2, 100, 3))
    with pytest.raises(JudgeError, match="failure_budget"):
        compare(run, 1)
    kept = sum(each.outcome is not None for each in comparisons_of(run, 1))
    assert 0 < kept < tasks
    again = run_of(tmp_path, tasks=tasks)
    compare(again, 1)
    assert judge_of(again).compared == tasks - kept and judge_of(again).graded == 0
    found = comparisons_of(again, 1)
    assert len(found) == tasks and all(each.outcome is not None for each in found)
    # The account is of the whole stage, not of the process that ended it.
    account = {"calls": 2 * tasks, "unreadable": 0, "failed": 0, "roles": {}}
    assert written(again, 1, "judge") == account


def test_a_resumed_comparison_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    """Every file of records is torn in its sixth line, and an engine had failed at a seventh answer."""
    whole, cut = run_of(tmp_path / "whole"), run_of(tmp_path / "cut")
    for run in (whole, cut):
        compare(run, 0)
    compare(whole, 1)
    folder, torn = (run.folder.stage(1, Stage.COMPARE) for run in (whole, cut))
    torn.path.mkdir(parents=True)
    for name in ("rollouts", "grades", "comparisons"):
        lines = getattr(folder, name).read_bytes().splitlines(keepends=True)
        getattr(torn, name).write_bytes(b"".join(lines[:5]) + lines[5][:7])
    compare(cut, 1)
    for name in ("rollouts.jsonl", "grades.jsonl", "comparisons.jsonl", "ratings.json", "judge.json"):
        assert (torn.path / name).read_bytes() == (folder.path / name).read_bytes(), name
    # Nothing that was paid for is paid again.
    assert judge_of(cut).compared == TASKS - 5 and judge_of(cut).graded == 2 * TASKS - 5


def test_answers_that_an_engine_failed_at_are_made_on_the_next_try(tmp_path: Path) -> None:
    run = run_of(tmp_path, "compare.promotion=better")
    run.down = frozenset({"S_1"})
    compare_up_to(run, 1)
    # Where every answer failed this is reported and breaks nothing.
    found = written(run, 1)
    assert (found["decision"], found["promoted"], found["held_out"]["S_1"]) == ("keep", False, {})
    assert found["ratings"] == {} and run.promoted_solver(1).name == "S_0"
    folder = run.folder.stage(1, Stage.COMPARE)
    (folder.path / "manifest.json").unlink()
    run.down = frozenset()
    compare(run, 1)
    rollouts = read_records(folder.rollouts, Rollout)
    assert [each.subject_id for each in rollouts] == [f"t{number}" for number in range(TASKS)]
    assert all(each.status is RolloutStatus.FINISHED for each in rollouts)


def test_the_next_iteration_starts_from_what_was_promoted(tmp_path: Path) -> None:
    run = run_of(tmp_path, "compare.promotion=better")
    run.words = {"S_0": 3, "S_1": 2, "S_2": 4}
    compare_up_to(run, 2)
    assert [run.promoted_solver(number).name for number in range(3)] == ["S_0", "S_0", "S_2"]
    assert written(run, 2)["starts"] == ["S_0", "S_0"]
    assert "S_2 is better than S_0: +1.000" in written(run, 2)["reason"]


def test_a_run_is_stopped_where_its_rule_says_so(tmp_path: Path) -> None:
    run = run_of(tmp_path, "compare.stop=worse")
    run.words = {"S_0": 3, "S_1": 2}
    compare_up_to(run, 1)
    assert run.stop_reason(0) is None and "S_1 is worse than S_0" in str(run.stop_reason(1))
    for number, stage in ((0, Stage.TASKS), (1, Stage.CHALLENGER), (1, Stage.TASKS), (1, Stage.SOLVER)):
        folder = run.folder.stage(number, stage).path
        folder.mkdir(parents=True, exist_ok=True)
        publish_manifest(folder, StageManifest(stage=stage.value, iteration=number, spec_hash="0"))
    check_turn(run, 1, Stage.COMPARE)
    with pytest.raises(UserError, match="iteration 2 challenger: stopped after iteration 1"):
        check_turn(run, 2, Stage.CHALLENGER)
    # The same run without the rule goes on.
    free = run_of(tmp_path, "compare.stop=never")
    assert free.config.hash == run.config.hash and free.stop_reason(1) is None


def test_tasks_are_made_until_enough_lie_in_the_window(tmp_path: Path) -> None:
    """S_0's answers meet the criterion where the document is odd."""
    said: list[str] = []
    settings = [
        "tasks.low=0.5",
        "tasks.high=1",
        "tasks.target=3",
        "tasks.rollouts=2",
        "tasks.search_turns={1: 1}",
    ]
    for name, odd in (("none", "even"), ("half", "ODD")):
        run = run_of(tmp_path / name, *settings, "judge.canaries.rate=0.2", "challenger.freeze_after=0")
        run.progress, run.greedy = LineProgress(said.append, every=-1.0), False
        documents = [Document(id=f"d{n}", title="T", text=odd if n % 2 else "even") for n in range(40)]
        write_records(run.folder.corpus, documents)
        if name == "none":
            counts = (
                r"only 0 of 12 candidates were accepted, 256 are needed \(too_hard 12\); add documents, widen"
            )
            with pytest.raises(CorpusError, match=counts):
                make_tasks(run, 1)
    make_tasks(run, 1)
    folder = run.folder.stage(1, Stage.TASKS)
    kept = read_records(folder.candidates, Candidate)
    odd_ones = [int(each.provenance.document_id[1:]) % 2 == 1 for each in kept]
    assert (
        [each.reason is Reason.ACCEPTED for each in kept] == odd_ones and sum(odd_ones) == 3 and odd_ones[-1]
    )
    assert said.count("iteration 1: make tasks ...") == 2
    assert any(line.startswith("iteration 1: make tasks: 0/3 of 1 candidates, canaries 1/4") for line in said)
    assert said[-2].startswith(f"iteration 1: make tasks: 3 of {len(kept)} candidates accepted (")
    assert json.loads(folder.target.read_text()) == {"accepted": 3, "target": 3}
