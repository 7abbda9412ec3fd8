"""Who may be evaluated, by which words, and with how much of a benchmark's budget; the folder of an evaluation: what
is kept, in which order, who may join, and what its readers show."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from scope_selfplay.base.errors import CheckpointError, ConfigError, RecordError, RunMismatchError
from scope_selfplay.base.values import Outcome, Passage, Role, Rollout, Turn, Verdict
from scope_selfplay.cli import cli
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.corpus.world import embedded_documents
from scope_selfplay.evaluation.benchmarks import Benchmark, Budget, Decoding, embedded_benchmark
from scope_selfplay.evaluation.contestants import budgeted, fitting_budget, read_contestant
from scope_selfplay.evaluation.evaluate import finish, given_identity, read_given_answers
from scope_selfplay.evaluation.folder import (
    ContestantRecord,
    EvaluationFolder,
    EvaluationReader,
    EvaluationSpec,
)
from scope_selfplay.evaluation.rows import Fields, Item
from scope_selfplay.evaluation.scorers import Answer, AnswerScore
from scope_selfplay.report.app import Site, build_app
from scope_selfplay.store.files import Appender, read_records
from tests.models import write_model
from tests.unit.evaluation.contestants import judged_pair

ITEMS = tuple(Item(id=f"i{row}", question=f"Question {row} <b>?", answers=("heron",)) for row in range(3))
LOADED = Benchmark("tiny", "Tiny", "nobody", Fields(), ("exact_match",), items=ITEMS)
SPEC = EvaluationSpec(
    benchmark="tiny",
    items=LOADED.identity,
    count=3,
    seed=0,
    decoding=Decoding(),
    budget=Budget(),
    scorers=("exact_match",),
    judges=("judge-1",),
    dialect="qwen2.5",
    prompts="0" * 16,
    index="bm25",
    version="1",
)
RIGHT = {"new": (1, 1, 0), "old": (0, 1, 0)}
"""Which items each checkpoint answers right."""


def write_evaluation(path: Path, *, backwards: bool = False) -> EvaluationFolder:
    """The records in the order of the items, or the other way round; then the result."""
    path.mkdir()
    folder = EvaluationFolder(path)
    folder.begin(SPEC, ITEMS)
    for name in RIGHT:
        folder.join(ContestantRecord(name=name, identity=f"{name}-0badcafe"))
    places = [(name, row) for name in RIGHT for row in range(len(ITEMS))]
    with (
        Appender(folder.answers) as answers,
        Appender(folder.scores) as scores,
        Appender(folder.comparisons) as met,
    ):
        for name, row in places[:: -1 if backwards else 1]:
            answers.append(answer_of(name, row))
            scores.append(score_of(name, row))
        for first, second in [("new", "old"), ("old", "new")][:: -1 if backwards else 1]:
            outcome = Outcome(1.0, 0.0) if first == "new" else Outcome(0.0, 1.0)
            verdict = Verdict(value=True, reasoning="The new one knows.")
            met.append(judged_pair("i0", first, second, outcome, judge="judge-1", verdict=verdict))
    finish(folder, LOADED, seed=0)
    return folder


def answer_of(name: str, row: int) -> Answer:
    text = "heron" if RIGHT[name][row] else "\x1b[31mowl"
    found = (Passage(id="p", title="Birds", text="The heron."),)
    turns = (Turn(ids=(1, 2, 3), query="bird", passages=found), Turn(prompt_ids=(1,) * 8, ids=(4, 5)))
    rollout = Rollout(
        id=f"{name}-{row}", role=Role.SOLVER, checkpoint=name, subject_id=f"i{row}", turns=turns, answer=text
    )
    return Answer.of(rollout, name, f"i{row}", 0)


def score_of(name: str, row: int, value: float | None = None) -> AnswerScore:
    right = float(RIGHT[name][row]) if value is None else value
    return AnswerScore(
        item_id=f"i{row}", answer_id=f"{name}-{row}", checkpoint=name, scorer="exact_match", value=right
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests that read only."""
    return write_evaluation(tmp_path_factory.mktemp("evaluation") / "a").path


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_order_in_which_answers_came_does_not_show(written: Path, tmp_path: Path) -> None:
    other = write_evaluation(tmp_path / "b", backwards=True).path
    for name in ("result.json", "answers.jsonl", "scores.jsonl", "comparisons.jsonl", "README.md"):
        assert (written / name).read_bytes() == (other / name).read_bytes(), name
    ids = pq.read_table(other / "answers.parquet", columns=["id"])["id"].to_pylist()
    assert ids == ["new-0", "new-1", "new-2", "old-0", "old-1", "old-2"]


def test_a_score_that_was_made_again_replaces_the_first(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "a")
    with Appender(folder.scores) as scores:
        scores.append(score_of("old", 0, 1.0))
    result = finish(folder, LOADED, seed=0)
    assert len(read_records(folder.scores, AnswerScore)) == 6
    headline = result.headline("old")
    assert headline is not None and headline.value == pytest.approx(2 / 3)


def test_another_evaluation_and_other_weights_of_one_name_are_refused(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "a")
    folder.begin(SPEC.model_copy(update={"version": "2"}), ITEMS)
    with pytest.raises(
        RunMismatchError, match=r"another evaluation \(other: seed, judges\); use another --out"
    ):
        folder.begin(SPEC.model_copy(update={"seed": 1, "judges": ()}), ITEMS)
    folder.join(ContestantRecord(name="third", identity="third-1"))
    with pytest.raises(RunMismatchError, match="third was third-1 and is now third-2"):
        folder.join(ContestantRecord(name="third", identity="third-2"))


def test_terminal_report_and_browser_show_leaderboard_item_and_difference(
    written: Path, tmp_path: Path
) -> None:
    path, report = str(written), tmp_path / "report.html"
    board = shown("report", path)
    assert board.index("new ") < board.index("old ") and "0.667" in board and "Beside each other" in board
    item = shown("tasks", "show", path, "i0", "--passages")
    for text in ("Question 0", "new, answer 1", "old, answer 1", "The heron.", "new against old: 1 : 0"):
        assert text in item
    # What a model wrote cannot colour the terminal.
    assert "\x1b" not in item and "\\x1b[31mowl" in item
    assert shown("tasks", "diff", path, "old", "new", "--limit", "1").splitlines()[1:] == [
        "task\told\tnew\ttext",
        "i0\t0.000\t1.000\tQuestion 0 <b>?",
    ]
    assert json.loads(shown("report", path, "--json"))["benchmark"] == "tiny"
    assert json.loads(shown("tasks", "show", path, "i0", "--json"))["item"]["id"] == "i0"
    shown("report", path, "-o", str(report))
    page = report.read_text()
    assert "Question 0 &lt;b&gt;?" in page and "<b>?" not in page and "Beside each other" in page
    with TestClient(build_app(EvaluationReader(written), Site(hosts=("*",)))) as client:
        assert "Beside each other" in client.get("/").text
        items = client.get("/items", params={"a": "old", "b": "new"}).text
        assert items.index("Question 0") < items.index("Question 1")
        one = client.get("/items/i0").text
        assert "new, answer 1" in one and "The new one knows." in one and "<b>?" not in one
        assert client.get("/items/nothing").status_code == 404
        assert client.get("/items/i0", params={"a": "nobody"}).status_code == 404
        refused = client.get("/items", params={"a": "nobody"})
        assert refused.status_code == 400 and "no such checkpoint; there are new, old" in refused.text


def test_an_evaluation_that_has_not_ended_says_how_to_go_on(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "a")
    folder.result.unlink()
    with pytest.raises(RecordError, match="has no result yet; give the same `scope eval` command again"):
        EvaluationReader(folder.path).result()
    with pytest.raises(RecordError, match="no folder of `scope eval`"):
        EvaluationReader(tmp_path)


def run_with_checkpoint(root: Path) -> Path:
    run = root / "demo"
    (run / "iteration-02" / "solver").mkdir(parents=True)
    write_model(run / "iteration-02" / "solver" / "checkpoint")
    write_model(root / "base")
    (run / "run.yaml").write_text(f"name: demo\nmodel: {{path: {root / 'base'}}}\n")
    return run


def test_checkpoints_servers_folders_and_files_of_answers_are_told_apart(tmp_path: Path) -> None:
    run = run_with_checkpoint(tmp_path)
    for asked in (f"{run}:S_2", f"{run}:2"):
        found = read_contestant(asked)
        assert found.policy is not None and found.run == run and found.name == "demo:S_2"
        assert found.policy.path == run / "iteration-02" / "solver" / "checkpoint"
    base, folder = read_contestant(f"{run}:S_0"), read_contestant(str(tmp_path / "base"))
    assert base.policy is not None and base.policy.path == tmp_path / "base"
    assert folder.policy is not None and folder.name == "base" and folder.run is None
    served = read_contestant(f"{run}:S_2@http://127.0.0.1:8000/v1#other")
    assert (served.base_url, served.model, served.name) == ("http://127.0.0.1:8000/v1", "other", "demo:S_2")
    alone = read_contestant("http://127.0.0.1:8000/v1")
    assert (alone.base_url, alone.policy) == ("http://127.0.0.1:8000/v1", None)
    answers = tmp_path / "others.jsonl"
    answers.write_text('{"id": "i0", "answer": "a heron"}\n')
    assert read_contestant(str(answers)).name == "others"
    assert read_given_answers(answers) == {"i0": "a heron"} and given_identity(answers).startswith("others-")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("{run}:S_7", r"checkpoints of .*: S_2"),
        ("{run}", "no such model directory|no config.json"),
        ("nowhere", "there is no such model directory; give RUN:S_2"),
        ("nowhere:S_1", "there is no such folder"),
        ("nowhere.jsonl", "there is no such file of answers"),
        ("smollm2", "fetch it .scope models smollm2"),
    ],
)
def test_what_cannot_answer_is_refused_with_what_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, message: str
) -> None:
    monkeypatch.setenv("SCOPE_MODELS", str(tmp_path))
    run = run_with_checkpoint(tmp_path)
    with pytest.raises((CheckpointError, RecordError), match=message):
        read_contestant(asked.format(run=run))


def test_scopes_budgets_are_asked_of_a_model_that_holds_them_and_a_smaller_one_gets_what_it_holds() -> None:
    """Section 4.1: answers of 16,384 tokens in a context of 24,576."""
    budget = fitting_budget(Budget(), RunConfig(), 32_768, can_search=True)
    assert (budget.context, budget.answer, budget.search_turns, budget.passages) == (24_576, 16_384, 5, 3)
    config = budgeted(RunConfig(), budget, Decoding(samples=4, temperature=0.7, top_p=0.9))
    assert (config.model.max_length, config.solver.max_turn) == (24_576, 16_384)
    assert (config.sampling.temperature, config.sampling.top_p) == (0.7, 0.9)
    # It searches as in its run.
    run = load_config(None, ["model.max_length=512", "search.topk=1", "search.max_tokens=100"])
    budget = fitting_budget(Budget(), run, 1024, can_search=True)
    assert (budget.context, budget.answer, budget.passages, budget.passage_tokens) == (512, 512, 1, 100)
    assert fitting_budget(Budget(), run, 1024, can_search=False).search_turns == 0


def test_the_embedded_worlds_questions_are_spread_over_its_depths() -> None:
    config = load_config(None, ["corpus.sample=60"]).corpus
    documents = embedded_documents(0, config)
    loaded = embedded_benchmark(documents, seed=0, count=30)
    groups = [item.group for item in loaded.items]
    assert len(set(groups)) == 5 and all(groups.count(group) == 6 for group in set(groups))
    assert all(item.criteria for item in loaded.items)
    assert loaded.identity == embedded_benchmark(documents, seed=0, count=30).identity
    assert loaded.identity != embedded_benchmark(documents, seed=1, count=30).identity
    with pytest.raises(ConfigError, match="no articles of the embedded world"):
        embedded_benchmark([], seed=0)
