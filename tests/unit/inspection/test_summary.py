"""What a run says about itself: the keys that others rely on, and the page that a person reads."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.gates import Gate
from scope_selfplay.base.intervals import Estimate
from scope_selfplay.base.terminal import LineProgress, Progress, bars
from scope_selfplay.base.values import Candidate, CandidateStatus, Provenance, Reason
from scope_selfplay.config.load import load_config
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.report.overview import ending_sections, run_sections, summarise
from scope_selfplay.report.rendering import render_report
from scope_selfplay.report.sections import text_of
from scope_selfplay.run.run import Run
from scope_selfplay.stages.tasks import check_enough_accepted
from scope_selfplay.store.files import write_atomic, write_records
from scope_selfplay.store.folder import RunFolder, Stage, StageManifest, publish_manifest
from scope_selfplay.store.ratings import Ratings
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


def estimate(mean: float) -> Estimate:
    return Estimate(value=mean, low=mean - 0.1, high=mean + 0.1, items=100)


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


def ending_of(run: Run) -> str:
    """What is printed at its end."""
    with RunReader(run.folder.path) as reader:
        return "\n".join(text_of(ending_sections(run, reader)))


def test_the_summary_has_exactly_the_agreed_keys(run: Run) -> None:
    summary = summary_of(run)
    assert list(summary) == "run config_hash prompt_hash iterations held_out kept warnings".split()
    (iteration,) = summary["iterations"]
    counts = (
        "iteration candidates rejected accepted mean_score challenger solver compare decision judge seconds"
    )
    assert list(iteration) == [*counts.split(), "target", "solver_steps"]
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
        text, report = [*text_of(run_sections(reader, None))], render_report(reader)
    assert [line for line in text if "Ruling" in line] == ["  Ruling: promote: S_1 is better than S_0"]
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
    # What was never measured is null and never zero.
    solver = summary_of(run)["iterations"][0]["solver"]
    assert (solver["reward_first"], solver["rubric_first"], solver["rubric_curve"]) == (1.0, None, [])


@pytest.mark.parametrize("settings", [[], ["judge.noise.longer=0.3"]])
def test_a_run_that_has_only_begun_has_a_summary(tmp_path: Path, settings: list[str]) -> None:
    """And says there that its judge errs on purpose, as on its page."""
    config = load_config(None, ["name=bare", *settings])
    bare = Run(config, RunFolder(tmp_path / "bare"), load_pack(PACK), Progress())
    bare.folder.path.mkdir()
    write_atomic(bare.folder.config, json.dumps(config.model_dump(mode="json")))
    summary = summary_of(bare)
    assert (summary["iterations"], summary["held_out"]) == ([], {})
    assert summary.get("judge_noise") == ("longer 30% (half at 40 words)" if settings else None)
    assert ("errs on purpose: longer 30%" in ending_of(bare)) is bool(settings)


def test_the_page_shows_funnel_curves_held_out_and_what_next(run: Run) -> None:
    page = re.sub(" +", " ", ending_of(run))
    for part in (
        "== Iteration 1",
        " too_hard 3\n",
        " reward iteration 1 0.10 -> 0.80 ▁",
        " verdicts of the judge 15, 2 failed\n",
        " seconds of compare 2\n",
        "Ruling: promote: S_1 is better than S_0",
        " S_0 0.300 [0.200, 0.400] 0.400 [0.300, 0.500] 100 #########",
        " S_1 (kept) 0.400",
        "iteration-01/solver/checkpoint, best/",
        " candidates, rollouts and grades, one JSON object a line",
        "--set iterations=2 one more",
    ):
        assert part in page, part
    assert "stop" not in page


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        (["stop_after=1"], " --set iterations=2 --set stop_after=null   one more"),
        (["compare.stop=worse"], " --set iterations=2 --set compare.stop=never "),
    ],
)
def test_the_command_that_goes_on_undoes_what_ended_the_run(
    run: Run, changes: list[str], needed: str
) -> None:
    if changes == ["compare.stop=worse"]:
        file = run.folder.stage(1, Stage.COMPARE).path / "ratings.json"
        write_atomic(file, json.dumps({**json.loads(file.read_text()), "decision": "stop"}))
    stopped = Run(load_config(None, ["name=tiny", "iterations=2", *changes]), run.folder, run.pack)
    assert needed in ending_of(stopped)


@pytest.mark.parametrize(
    ("values", "drawn"), [([], ""), ([0.0, 0.5, 1.0], "▁▅█"), ([-3.0, 9.0], "▁█"), ([0.124, 0.125], "▁▂")]
)
def test_a_curve_has_one_bar_a_value(values: list[float], drawn: str) -> None:
    assert bars(values) == drawn


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


@pytest.mark.parametrize(
    ("iteration", "advice"), [(0, "add held-out documents or look"), (1, "widen tasks.low")]
)
def test_too_few_tasks_come_with_advice_that_can_help(run: Run, iteration: int, advice: str) -> None:
    with pytest.raises(CorpusError, match=advice):
        check_enough_accepted(run, iteration, [candidate(0, Reason.refused_by(Gate.ENTITY))])


def test_the_end_shows_one_task_and_what_the_first_and_the_last_solver_said(tmp_path: Path) -> None:
    made = write_finished_run(tmp_path / "demo")
    held_out = {name: {"all": estimate(0.3)} for name in ("S_0", "S_2")}
    ratings = Ratings(promoted=True, held_out=held_out)
    write_atomic(made.stage(2, Stage.COMPARE).path / "ratings.json", ratings.model_dump_json())
    page = ending_of(Run(load_config(None, ["name=demo"]), made, load_pack(PACK)))
    told = page[page.index("== One held-out task") : page.index("== Where things are")]
    assert re.search(r"\n  S_0 \(\d\.\d\d\): .*\n  S_2 \(\d\.\d\d\): ", told)
