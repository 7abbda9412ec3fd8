"""A small run with hostile texts in every place that a model writes to, behind the site."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from scope_selfplay.base.values import (
    Candidate,
    Comparison,
    Criterion,
    Document,
    Gate,
    Grade,
    Passage,
    ReaderAnswer,
    Rollout,
    Rubric,
    Verdict,
)
from scope_selfplay.report.app import Site, build_app
from scope_selfplay.report.pages import ShownRun
from scope_selfplay.store.files import read_records, write_atomic, write_records
from scope_selfplay.store.folder import RunFolder, Stage
from tests.reference_files import read_reference
from tests.unit.store.runs import rewrite, write_judgements, write_run

MARKUP = (
    "</pre></details><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J \u202e {{ 7 * 7 }} \"'>"
)
MARK = "alert("


def hostile_texts() -> list[str]:
    """Markup of our own, and the reference cases as they reach a record: valid UTF-8."""
    found = [MARKUP]
    for case in read_reference("hostile_answers.json")["cases"]:
        builder = case.get("answer_builder", {})
        if "same_as" not in builder:
            text = builder["repeat"] * min(builder["times"], 2000) if builder else case["answer"]
            found.append(text.encode("utf-8", "replace").decode())
    return found


HOSTILE = "\n".join(hostile_texts())


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Candidate 002 of iteration 1 and held-out task 002 are hostile wherever a model wrote."""
    made = write_run(tmp_path_factory.mktemp("viewer") / "demo")
    for iteration in (0, 1):
        poison(made, iteration, HOSTILE)
    documents = read_records(made.corpus, Document)
    documents[2] = documents[2].model_copy(update={"text": HOSTILE, "title": HOSTILE})
    write_records(made.corpus, documents)
    said = {"verdict": Verdict(value=True, reasoning=HOSTILE)}
    matches = made.stage(1, Stage.COMPARE).comparisons
    rewrite(matches, Comparison, lambda each: each.model_copy(update=said))
    write_judgements(made, 1, "task-1-002", HOSTILE)
    for kind in (Stage.CHALLENGER, Stage.SOLVER):
        where = made.stage(1, kind).path
        where.mkdir(parents=True, exist_ok=True)
        write_atomic(where / "metrics.jsonl", '{"step": 1, "reward": 0.25}\n{"step": 2, "reward": 0.5}\n')
    return made


@pytest.fixture(scope="session")
def client(folder: RunFolder) -> Iterator[TestClient]:
    with viewed(folder.path) as opened:
        yield opened


def viewed(run: Path, **how: Any) -> TestClient:
    """The site of a run."""
    return TestClient(build_app(ShownRun(run), Site()), base_url="http://localhost", **how)


def poison(made: RunFolder, iteration: int, text: str, number: int = 2) -> str:
    """Put a text into a candidate's task, gates, rubric, rollouts and grades; returns the candidate's id."""
    stage = made.stage(iteration, Stage.TASKS)
    candidates = read_records(stage.candidates, Candidate)
    chosen = candidates[number]
    assert chosen.task is not None and chosen.rubric is not None
    verdict = Verdict(value=True, reasoning=text)
    changes = {
        "task": chosen.task.model_copy(update={"text": text, "reference": text, "span": (3, 1234)}),
        "readings": (ReaderAnswer(answer=text, f1=1.0, is_open=True),),
        "gates": {Gate.SOURCE: verdict},
        "rubric": Rubric(task_id=chosen.task.id, criteria=(Criterion(text=text, dimension=text),) * 2),
    }
    candidates[number] = chosen.model_copy(update=changes)
    write_records(stage.candidates, candidates)
    passage = Passage(id="doc-001", title=text, text=text, score=1.0)
    turned = {"thinking": text, "query": text, "passages": (passage,), "text": text}
    ids = {*chosen.rollout_ids, chosen.challenger_rollout_id}

    def rolled(rollout: Rollout) -> Rollout:
        turns = tuple(turn.model_copy(update=turned) for turn in rollout.turns)
        changed = rollout.model_copy(update={"turns": turns, "answer": text, "error": text})
        return changed.without_ids() if rollout.id in ids else rollout

    def graded(grade: Grade) -> Grade:
        return grade.model_copy(update={"verdicts": (verdict,) * 2}) if grade.rollout_id in ids else grade

    rewrite(stage.rollouts, Rollout, rolled)
    rewrite(stage.grades, Grade, graded)
    return chosen.id
