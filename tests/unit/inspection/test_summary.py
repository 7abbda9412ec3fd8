"""What a run says about itself: the keys that others rely on, and the page that a person reads."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from scope_selfplay.config import load_config
from scope_selfplay.errors import CorpusError
from scope_selfplay.gates import Gate
from scope_selfplay.inspection.html_report import render_report
from scope_selfplay.inspection.overview import overview
from scope_selfplay.inspection.summary import show_example, show_summary, sparkline, summarise
from scope_selfplay.inspection.text import describe_overview
from scope_selfplay.progress import LineProgress, Progress
from scope_selfplay.prompts import load_pack
from scope_selfplay.run import Run
from scope_selfplay.schemas import Candidate, CandidateStatus, Provenance, Reason
from scope_selfplay.stages.task_making import check_enough_accepted
from scope_selfplay.store import (
    RunFolder,
    Stage,
    StageManifest,
    publish_manifest,
    write_atomic,
    write_records,
)
from scope_selfplay.store.ratings import Ratings, ScoreEstimate
from scope_selfplay.store.reader import RunReader
from tests.exported_run import write_finished_run

PACK = Path(__file__).parents[3] / "prompts" / "embedded"


def candidate(number: int, reason: Reason, mean: float | None = None) -> Candidate:
    accepted = reason is Reason.ACCEPTED
    return Candidate(
        id=f"c{number}",
        status=CandidateStatus.ACCEPTED if accepted else CandidateStatus.REJECTED,
        reason=reason,
        mean=mean,
        provenance=Provenance(run="r", iteration=1, stage="tasks", document_id=f"d{number}"),
    )


def estimate(mean: float) -> ScoreEstimate:
    return ScoreEstimate(mean_score=mean, low=mean - 0.1, high=mean + 0.1, tasks=100)


def finish(run: Run, iteration: int, stage: Stage) -> None:
    folder = run.folder.stage(iteration, stage).path
    publish_manifest(
        folder, StageManifest(stage=stage.value, iteration=iteration, spec_hash="0", seconds=1.5)
    )


def write_ratings(run: Run, iteration: int) -> None:
    names = [f"S_{number}" for number in range(iteration + 1)]
    held_out = {
        name: {"all": estimate(0.3 + 0.1 * row), "1 link": estimate(0.4)} for row, name in enumerate(names)
    }
    ratings = Ratings(
        promoted=True,
        reason="S_1 is better than S_0",
        gain=None,
        ratings=dict.fromkeys(names, 0.5),
        held_out=held_out,
    )
    folder = run.folder.stage(iteration, Stage.COMPARE).path
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "ratings.json", ratings.model_dump_json())
    finish(run, iteration, Stage.COMPARE)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with one finished iteration and one that has only begun."""
    found = Run(
        load_config(None, ["name=tiny", "iterations=2"]), RunFolder(tmp_path / "tiny"), load_pack(PACK)
    )
    found.folder.path.mkdir()
    write_atomic(found.folder.config, "name: tiny\n")
    write_ratings(found, 0)
    for stage in (Stage.CHALLENGER, Stage.TASKS, Stage.SOLVER):
        found.folder.stage(1, stage).path.mkdir(parents=True)
    tasks = found.folder.stage(1, Stage.TASKS)
    write_records(
        tasks.candidates,
        [candidate(0, Reason.ACCEPTED, 0.4), candidate(1, Reason.ACCEPTED, 0.6)]
        + [candidate(number, Reason.TOO_HARD, 0.0) for number in range(2, 5)]
        + [candidate(5, Reason.refused_by(Gate.ENTITY))],
    )
    write_atomic(tasks.path / "judge.json", json.dumps({"calls": 10, "unreadable": 1, "failed": 2}))
    challenger, solver = found.folder.stage(1, Stage.CHALLENGER), found.folder.stage(1, Stage.SOLVER)
    rows = [{"step": step, "reward": step / 10, "difficulty": step / 20} for step in range(1, 9)]
    write_records(challenger.metrics, rows)
    write_atomic(challenger.path / "judge.json", json.dumps({"calls": 5, "unreadable": 0, "failed": 0}))
    write_records(solver.metrics, [{"step": 1, "reward": 1.0}])
    for stage in (Stage.CHALLENGER, Stage.TASKS, Stage.SOLVER):
        finish(found, 1, stage)
    write_ratings(found, 1)
    found.folder.stage(2, Stage.TASKS).path.mkdir(parents=True)
    write_records(found.folder.stage(2, Stage.TASKS).candidates, [candidate(0, Reason.NO_TASK)])
    return found


def summary_of(run: Run) -> Any:
    return json.loads(json.dumps(summarise(run)))


def test_the_summary_has_exactly_the_agreed_keys(run: Run) -> None:
    summary = summary_of(run)
    assert list(summary) == [
        "run",
        "config_hash",
        "prompt_hash",
        "iterations",
        "held_out",
        "kept",
        "warnings",
    ]
    (iteration,) = summary["iterations"]
    assert list(iteration) == [
        "iteration",
        "candidates",
        "rejected",
        "accepted",
        "mean_score",
        "challenger",
        "solver",
        "compare",
        "decision",
        "judge",
        "seconds",
        "target",
        "solver_steps",
    ]
    for role in ("challenger", "solver"):
        assert {"reward_first", "reward_last"} <= set(iteration[role])
    assert set(iteration["judge"]) == {"calls", "unreadable", "failed"}
    for found in summary["held_out"].values():
        assert {"mean_score", "low", "high", "tasks"} <= set(found)


def test_the_numbers_are_those_of_the_folders(run: Run) -> None:
    summary = summary_of(run)
    (iteration,) = summary["iterations"]
    assert (summary["run"], summary["config_hash"], summary["prompt_hash"]) == (
        "tiny",
        run.config.hash,
        run.pack.hash,
    )
    assert (iteration["candidates"], iteration["accepted"], iteration["mean_score"]) == (6, 2, 0.5)
    assert iteration["rejected"] == {"too_hard": 3, "gate_entity": 1}
    assert iteration["judge"] == {"calls": 15, "unreadable": 1, "failed": 2}
    assert iteration["seconds"] == dict.fromkeys(("challenger", "tasks", "solver", "compare"), 1.5)
    assert iteration["compare"] == {"S_0": 0.5, "S_1": 0.5}
    assert iteration["decision"] == {"decision": "promote", "reason": "S_1 is better than S_0"}
    assert list(summary["held_out"]) == ["S_0", "S_1"]
    assert summary["held_out"]["S_1"]["mean_score"] == pytest.approx(0.4)


def test_every_iterations_ruling_stands_in_the_statistics_and_the_report(run: Run) -> None:
    with RunReader(run.folder.path) as reader:
        page = overview(reader, health=False)
        report = render_report(reader)
    rulings = {made.iteration: made.ruling for made in page.iterations if made.ruling}
    assert rulings == {1: "promote: S_1 is better than S_0"}
    assert "  ruling: promote: S_1 is better than S_0" in list(describe_overview(page))
    assert "Ruling: promote: S_1 is better than S_0" in report


def test_first_and_last_are_quarters_of_the_steps(run: Run) -> None:
    challenger = summary_of(run)["iterations"][0]["challenger"]
    assert challenger["steps"] == 8
    assert (challenger["reward_first"], challenger["reward_last"]) == (
        pytest.approx(0.15),
        pytest.approx(0.75),
    )
    assert challenger["difficulty_first"] == pytest.approx(0.075)
    assert len(challenger["reward_curve"]) == 8


def test_what_was_never_measured_is_null_and_never_zero(run: Run) -> None:
    solver = summary_of(run)["iterations"][0]["solver"]
    assert (solver["reward_first"], solver["rubric_first"], solver["rubric_curve"]) == (1.0, None, [])


def test_a_run_that_has_only_begun_has_a_summary(tmp_path: Path) -> None:
    bare = Run(load_config(None, ["name=bare"]), RunFolder(tmp_path / "bare"), load_pack(PACK), Progress())
    bare.folder.path.mkdir()
    write_atomic(bare.folder.config, "name: bare\n")
    summary = summary_of(bare)
    assert (summary["iterations"], summary["held_out"]) == ([], {})


def test_a_judge_that_errs_on_purpose_is_in_the_summary_and_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(None, ["name=bare", "judge.noise.longer=0.3"])
    bare = Run(config, RunFolder(tmp_path / "bare"), load_pack(PACK), Progress())
    bare.folder.path.mkdir()
    write_atomic(bare.folder.config, "name: bare\n")
    summary = summary_of(bare)
    assert summary["judge_noise"] == "longer 30% (half at 40 words)"
    show_summary(summary, bare)
    assert "errs on purpose  longer 30%" in capsys.readouterr().out


def test_the_page_shows_funnel_curves_held_out_and_what_next(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    show_summary(summary_of(run), run)
    page = capsys.readouterr().out
    for part in (
        "Iteration 1",
        "6 candidates -> 2 accepted (too_hard 3, gate_entity 1)",
        " -> 0.38  ▁",
        "below target 2 of 5120 tasks, so the Solver trained 1 of 20 steps",
        "judge       15 verdicts, 2 failed\n",
        "time        6 s (challenger 2, tasks 2, solver 2, compare 2)\n",
        "compare     promote: S_1 is better than S_0",
        "0.30 [0.20, 0.40]",
        "S_1",
        "the Solver that was kept, S_1: iteration-01/solver/checkpoint/",
        "candidates, rollouts and grades, one JSON object a line",
        "--set iterations=2",
    ):
        assert part in page, part
    # No step of the Solver had a rubric score: its reward is what there is to show.
    assert "solver      rubric" not in page and "solver      reward     1.00 -> 1.00\n" in page
    assert "stop" not in page


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"rubric": 0.25, "non_zero_advantage": 0.5, "reward": 3.0}, "solver      rubric     0.25 -> 0.25"),
        ({"rubric": None, "non_zero_advantage": 0.5, "reward": 3.0}, "non zero advantage 0.50 -> 0.50  ▅▅"),
        ({"reward": None}, None),
    ],
)
def test_the_solvers_curve_is_what_tells_most_of_what_was_logged(
    run: Run, capsys: pytest.CaptureFixture[str], row: dict[str, float | None], shown: str | None
) -> None:
    write_records(run.folder.stage(1, Stage.SOLVER).metrics, [{"step": step, **row} for step in (1, 2)])
    show_summary(summary_of(run), run)
    page = capsys.readouterr().out
    assert shown in page if shown else "solver      " not in page


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        (["stop_after=1"], " --set iterations=2 --set stop_after=null   one more"),
        (["compare.stop=worse"], " --set iterations=2 --set compare.stop=never --set compare.patience=null "),
    ],
)
def test_the_command_that_goes_on_undoes_what_ended_the_run(
    run: Run, capsys: pytest.CaptureFixture[str], changes: list[str], needed: str
) -> None:
    if changes == ["compare.stop=worse"]:
        file = run.folder.stage(1, Stage.COMPARE).path / "ratings.json"
        write_atomic(file, json.dumps({**json.loads(file.read_text()), "decision": "stop"}))
    stopped = Run(load_config(None, ["name=tiny", "iterations=2", *changes]), run.folder, run.pack)
    show_summary(summary_of(stopped), stopped)
    assert needed in capsys.readouterr().out


def test_a_page_without_iterations_names_no_folder_that_is_not_there(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    show_summary(summary_of(run) | {"iterations": [], "held_out": {}}, run)
    page = capsys.readouterr().out
    assert "iteration-00" not in page and "summary.json" in page


@pytest.mark.parametrize(
    ("values", "bars"), [([], ""), ([0.0, 0.5, 1.0], "▁▅█"), ([-3.0, 9.0], "▁█"), ([0.124, 0.125], "▁▂")]
)
def test_a_sparkline_has_one_bar_a_value(values: list[float], bars: str) -> None:
    assert sparkline(values) == bars


def test_a_sparkline_without_a_range_is_empty() -> None:
    assert sparkline([1.0], 1.0, 1.0) == ""


def test_piped_progress_is_plain_lines() -> None:
    lines: list[str] = []
    progress = LineProgress(lines.append, every=0.0)
    progress.begin("make tasks", 4)
    progress.advance(1, "of 3 candidates")
    progress.end("2 accepted")
    progress.say("going on")
    assert lines[0] == "make tasks ..."
    assert lines[1] == "make tasks: 1/4 of 3 candidates"
    assert lines[2].startswith("make tasks: 2 accepted (") and lines[3] == "going on"


def test_piped_progress_does_not_flood() -> None:
    lines: list[str] = []
    progress = LineProgress(lines.append, every=60.0)
    progress.begin("train", None)
    for step in range(1000):
        progress.advance(step)
    assert lines == ["train ..."]


@pytest.mark.parametrize(
    ("iteration", "advice"), [(0, "add held-out documents or look"), (1, "widen tasks.low")]
)
def test_too_few_tasks_come_with_advice_that_can_help(run: Run, iteration: int, advice: str) -> None:
    with pytest.raises(CorpusError, match=advice):
        check_enough_accepted(run, iteration, [candidate(0, Reason.refused_by(Gate.ENTITY))])


def test_the_end_shows_one_task_and_what_the_first_and_the_last_solver_said(tmp_path: Path) -> None:
    made = write_finished_run(tmp_path / "demo")
    console = Console(file=io.StringIO(), width=200)
    show_example(console, ["S_0", "S_1", "S_2"], made.path)
    lines = console.file.getvalue().strip().splitlines()  # type: ignore[attr-defined]
    assert lines[0].startswith("One held-out task") and len(lines) == 4
    assert lines[2].strip().startswith("S_0 (") and lines[3].strip().startswith("S_2 (")
    show_example(console, ["S_0", "S_9"], made.path)
    assert len(console.file.getvalue().strip().splitlines()) == 4  # type: ignore[attr-defined]
