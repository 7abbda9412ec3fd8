"""The health signals on tasks whose answer is known by construction."""

import json
import random
from pathlib import Path

import pytest

from scope_selfplay.base.values import Criterion, Document, Passage, Priority, Rubric, Turn
from scope_selfplay.report.health import examine
from scope_selfplay.report.health_answers import costs_of, judge_use
from scope_selfplay.report.health_tasks import duplicate_share, needed_searches
from scope_selfplay.report.signals import BOUNDS
from scope_selfplay.store.files import write_atomic, write_records
from scope_selfplay.store.folder import RunFolder, Stage, StageManifest, publish_manifest
from scope_selfplay.store.reader import RunReader
from tests.unit.store.runs import candidate, challenger_rollout, grade, solver_rollout, write_run

pytestmark = pytest.mark.integration

GPU_HOURS = "GPU-hours of the finished stages"


def test_repeated_tasks_are_duplicates_and_invented_ones_are_not() -> None:
    rng = random.Random(1)
    fresh = [" ".join(f"word{rng.randrange(500)}" for _ in range(20)) for _ in range(40)]
    assert duplicate_share(fresh) == 0
    assert duplicate_share([*fresh, *fresh[:10]]) == pytest.approx(0.2)
    assert duplicate_share(fresh, before=fresh) == 1
    one_word_off = [f"{text} more" for text in fresh]
    assert duplicate_share([*fresh, *one_word_off]) == pytest.approx(0.5, abs=0.05)
    assert duplicate_share([]) is None


def write_one_task(path: Path, found: list[str], asked: str) -> RunReader:
    """One accepted task whose Challenger's searches found `found`, and whose rubric asks for `asked`."""
    folder = RunFolder(path)
    stage = folder.stage(1, Stage.TASKS)
    stage.path.mkdir(parents=True)
    write_atomic(folder.config, "name: demo\n")
    write_records(folder.corpus, [Document(id="doc-002", title="The lantern", text="It stands in Orlund.")])
    made = candidate(1, 2)
    assert made.task is not None
    rubric = Rubric(task_id=made.task.id, criteria=(Criterion(text=asked, priority=Priority.CRITICAL),))
    task = made.task
    passages = [Passage(id=f"p{row}", title="", text=text) for row, text in enumerate(found)]
    turns = tuple(Turn(query="q", passages=(each,)) for each in passages)
    writer = challenger_rollout(made.challenger_rollout_id, "doc-002", task.text).model_copy(
        update={"turns": turns}
    )
    seen = solver_rollout(made.rollout_ids[0], "S_0-b", task.id, "x").model_copy(update={"turns": turns[:1]})
    blind = solver_rollout(made.rollout_ids[1], "S_0-b", task.id, "x")
    write_records(stage.candidates, [made.model_copy(update={"rubric": rubric, "task": task})])
    write_records(stage.rollouts, [writer, seen, blind])
    write_records(stage.grades, [grade(seen.id, (True, True)), grade(blind.id, (True, False))])
    return RunReader(path)


@pytest.mark.parametrize(
    ("found", "asked", "needed"),
    [
        (["Its treasury holds 2290 crowns."], "Provides the treasury, 2290 crowns.", 1.0),
        (["Nothing of use."], "Provides the treasury, 2290 crowns.", 0.0),
        (["It lies in Orlund."], "Identifies the region as Orlund.", 0.0),
        (["2290 crowns.", "Again 2290 crowns."], "Provides 2290 crowns.", 0.0),
        (["2290 crowns.", "Founded by Maris."], "Provides 2290 and names Maris.", 1.0),
        (["2290 crowns.", "Founded by Ada."], "Provides 2290 and names Maris.", 0.5),
    ],
)
def test_a_search_is_needed_when_only_it_found_what_the_rubric_asks(
    tmp_path: Path, found: list[str], asked: str, needed: float
) -> None:
    with write_one_task(tmp_path / "run", found, asked) as reader:
        assert needed_searches(reader, 1) == needed


def test_task_making_that_ended_below_its_target_is_a_warning(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo")
    write_atomic(folder.config, "name: demo\nseed: 7\ntasks: {target: 24}\n")
    finish(folder, Stage.TASKS, 1.0)
    ended, going_on = values_of(folder)
    assert ended["target_share"] == pytest.approx(12 / 24) and going_on["target_share"] is None
    assert any("tasks of tasks.target: 0.5 is under 1" in text for text in warnings_of(folder))


def test_a_checkup_counts_what_lies_in_the_records(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo")
    said = {Stage.TASKS: (120, 3, 6), Stage.SOLVER: (0, 0, 0), Stage.COMPARE: (80, 0, 4)}
    for iteration in (1, 2):
        folder.stage(iteration, Stage.SOLVER).path.mkdir()
        for stage, counts in said.items():
            account = dict(zip(("calls", "unreadable", "failed"), counts, strict=True))
            write_atomic(folder.stage(iteration, stage).path / "judge.json", json.dumps(account))
        rows = [{"step": step, "zero_variance": share} for step, share in ((1, 0.25), (2, 0.75))]
        write_records(folder.stage(iteration, Stage.SOLVER).metrics, rows)
    values, again = values_of(folder)
    assert list(values) == list(BOUNDS)
    assert values["acceptance"] == pytest.approx(12 / 30)
    assert values["gate_source"] == pytest.approx(18 / 24) and values["gate_entity"] is None
    assert values["judge_failures"] == pytest.approx(0.05)
    assert values["zero_variance"] == pytest.approx(0.5)
    costs = costs_in(folder)
    assert costs["judge calls for an accepted task"] == pytest.approx(10)
    assert costs["judge tokens for an accepted task"] == pytest.approx(24 * 5 / 12)
    assert values["answer_growth"] == pytest.approx(1)
    assert any("verdicts that failed: 0.05 is over 0.02" in text for text in warnings_of(folder))
    # The second iteration has the same tasks as the first.
    assert again["duplicates"] == 1.0


def test_a_run_that_has_made_no_tasks_has_no_checkup(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("name: demo\n")
    with RunReader(tmp_path) as reader:
        assert examine(reader) == []


def warnings_of(folder: RunFolder) -> list[str]:
    """Of the first iteration."""
    with RunReader(folder.path) as reader:
        return [found.warning for found in examine(reader)[0].warnings]


def values_of(folder: RunFolder) -> list[dict[str, float | None]]:
    with RunReader(folder.path) as reader:
        return [{signal.name: signal.value for signal in each.signals} for each in examine(reader)]


def costs_in(folder: RunFolder) -> dict[str, float]:
    with RunReader(folder.path) as reader:
        return costs_of(reader, 1)


def test_a_running_stage_of_training_warns_of_its_judge(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo")
    for stage in (Stage.TASKS, Stage.COMPARE):
        write_atomic(folder.stage(1, stage).path / "judge.json", '{"calls": 100, "failed": 0}')
    assert values_of(folder)[0]["judge_failures"] == 0
    solver = folder.stage(1, Stage.SOLVER)
    solver.path.mkdir()
    # 100 verdicts of a stage that has no account yet, half of them unread.
    write_records(solver.grades, [grade(f"r{number}", (True, None)) for number in range(50)])
    assert values_of(folder)[0]["judge_failures"] == pytest.approx(50 / 300)


def test_the_account_by_role_counts_what_records_do_not_hold(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo")
    stage = folder.stage(1, Stage.TASKS)
    with RunReader(folder.path) as reader:
        recorded = judge_use(reader, 1, Stage.TASKS)
    # 24 gates at 5 tokens, and two criteria for both attempts on each of the 18 tried tasks.
    assert recorded == {"calls": 24 + 72, "failed": 0, "tokens": 24 * 5}
    role = {"calls": 60, "tokens_in": 900, "tokens_out": 100, "unreadable": 1}
    write_atomic(stage.path / "judge.json", json.dumps({"roles": {"rubric": role, "grade": role}}))
    with RunReader(folder.path) as reader:
        assert judge_use(reader, 1, Stage.TASKS) == {"calls": 120, "failed": 2, "tokens": 2000}
    # The account of an attempt after a kill is smaller than what the records hold.
    write_atomic(stage.path / "judge.json", json.dumps({"roles": {"rubric": role}}))
    with RunReader(folder.path) as reader:
        assert judge_use(reader, 1, Stage.TASKS) == {"calls": 96, "failed": 0, "tokens": 1000}


def test_tokens_and_variance_of_both_trainings_are_counted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo")
    sizes = "{batch: 2, group_size: 4}"
    write_atomic(folder.config, f"name: demo\nchallenger: {sizes}\nsolver: {sizes}\n")
    for stage, share in ((Stage.CHALLENGER, 0.75), (Stage.SOLVER, 0.25)):
        made = folder.stage(1, stage)
        made.path.mkdir()
        rows = [{"step": step, "zero_variance": share, "completion_tokens": 30.0} for step in (1, 2)]
        write_records(made.metrics, rows)
    found = values_of(folder)[0]
    assert (found["zero_variance"], found["zero_variance_challenger"]) == (0.25, 0.75)
    assert costs_in(folder)["tokens sampled in training for an accepted task"] == pytest.approx(
        2 * 2 * 8 * 30 / 12
    )


def finish(folder: RunFolder, stage: Stage, seconds: float) -> None:
    path = folder.stage(1, stage).path
    path.mkdir(exist_ok=True)
    publish_manifest(path, StageManifest(stage=stage.value, iteration=1, spec_hash="0", seconds=seconds))


def test_gpu_hours_count_jobs_and_servers_where_the_config_names_them(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo")
    for stage, seconds in ((Stage.CHALLENGER, 7200), (Stage.TASKS, 3600), (Stage.SOLVER, 1800)):
        finish(folder, stage, seconds)
    assert GPU_HOURS not in costs_in(folder)
    settings = {
        "images": {"worker": "w", "trainer": "cuda"},
        "train_challenger": {"gpus": 2, "nodes": 1},
        "make_tasks": {"gpus": 0, "shards": 4},
        "train_solver": {"gpus": 4, "nodes": 2},
        "judge": {"gpus": 2, "serve": True},
        "solver": {"gpus": 2, "serve": True},
        "challenger": {"gpus": 2, "serve": False},
    }
    write_atomic(folder.config, json.dumps({"name": "demo", "cluster": settings}))
    # 2 h of 2 + 2 + 2; an hour of four workers, so a quarter of an hour of 2 + 2; half an hour of 8 + 2.
    assert costs_in(folder)[GPU_HOURS] == pytest.approx(12 + 1 + 5)
    write_atomic(folder.config, json.dumps({"name": "demo", "cluster": {**settings, "tiny": True}}))
    assert GPU_HOURS not in costs_in(folder)


def test_the_documentation_states_every_signal_with_its_bounds() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "corpus.md").read_text(encoding="utf-8")
    for name, bounds in BOUNDS.items():
        match bounds.low, bounds.high:
            case None, None:
                warning = "never"
            case low, None:
                warning = f"under {low:g}"
            case None, high:
                warning = f"over {high:g}"
            case low, high:
                warning = f"outside {low:g} to {high:g}"
        assert f"\n| {bounds.title} | {warning} | " in page, name
