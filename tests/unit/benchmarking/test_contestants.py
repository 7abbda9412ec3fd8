"""Who may be evaluated, by which words, and with how much of a benchmark's budget."""

from pathlib import Path

import pytest

from scope_selfplay.base.errors import CheckpointError, ConfigError, RecordError
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.corpus.world import embedded_documents
from scope_selfplay.evaluation.benchmarks import Budget, Decoding, embedded_benchmark
from scope_selfplay.evaluation.contestants import budgeted, fitting_budget, read_contestant
from scope_selfplay.evaluation.evaluate import given_identity, read_given_answers
from tests.models import write_model


def run_with_checkpoint(root: Path) -> Path:
    run = root / "demo"
    (run / "iteration-02" / "solver").mkdir(parents=True)
    write_model(run / "iteration-02" / "solver" / "checkpoint")
    write_model(root / "base")
    (run / "run.yaml").write_text(f"name: demo\nmodel: {{path: {root / 'base'}}}\n")
    return run


def test_a_checkpoint_of_a_run_is_named_by_role_and_iteration(tmp_path: Path) -> None:
    run = run_with_checkpoint(tmp_path)
    for asked in (f"{run}:S_2", f"{run}:2"):
        found = read_contestant(asked)
        assert found.policy is not None and found.run == run and found.name == "demo:S_2"
        assert found.policy.path == run / "iteration-02" / "solver" / "checkpoint"
    base = read_contestant(f"{run}:S_0")
    assert base.policy is not None and base.policy.path == tmp_path / "base"
    served = read_contestant(f"{run}:S_2@http://127.0.0.1:8000/v1#other")
    assert (served.base_url, served.model, served.name) == ("http://127.0.0.1:8000/v1", "other", "demo:S_2")


def test_a_server_a_folder_and_a_file_of_answers_are_told_apart(tmp_path: Path) -> None:
    served = read_contestant("http://127.0.0.1:8000/v1")
    assert (served.base_url, served.policy) == ("http://127.0.0.1:8000/v1", None)
    write_model(tmp_path / "model")
    folder = read_contestant(str(tmp_path / "model"))
    assert folder.policy is not None and folder.name == "model" and folder.run is None
    (tmp_path / "others.jsonl").write_text('{"id": "i0", "answer": "a heron"}\n')
    given = read_contestant(str(tmp_path / "others.jsonl"))
    assert given.name == "others" and read_given_answers(tmp_path / "others.jsonl") == {"i0": "a heron"}
    assert given_identity(tmp_path / "others.jsonl").startswith("others-")


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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "i0"}', r":1: answer: missing; the row has id"),
        ('{"id": 3, "answer": "x"}', r":1: id: expected a text, found 3"),
        ("[]", r":1: .*one JSON object a line"),
        ('{"id": "a", "answer": "x"}\n{"id": "a", "answer": "y"}', r":2: id: a occurs twice"),
    ],
)
def test_a_wrong_line_of_answers_is_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ConfigError, match=message):
        read_given_answers(file)


def test_scopes_budgets_are_asked_of_a_model_that_holds_them() -> None:
    """Section 4.1: answers of 16,384 tokens in a context of 24,576."""
    budget = fitting_budget(Budget(), RunConfig(), 32_768, can_search=True)
    assert (budget.context, budget.answer, budget.search_turns, budget.passages) == (24_576, 16_384, 5, 3)
    config = budgeted(RunConfig(), budget, Decoding(samples=4, temperature=0.7, top_p=0.9))
    assert (config.model.max_length, config.solver.max_turn) == (24_576, 16_384)
    assert (config.sampling.temperature, config.sampling.top_p) == (0.7, 0.9)


def test_a_smaller_model_gets_what_it_holds_and_searches_as_in_its_run() -> None:
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
