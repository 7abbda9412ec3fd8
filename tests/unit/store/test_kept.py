"""Which Solver a run kept, and the link to it."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from scope_selfplay.base.intervals import Estimate
from scope_selfplay.cli import cli
from scope_selfplay.report.rendering import render_report
from scope_selfplay.store.card import run_card
from scope_selfplay.store.files import point_at, write_atomic
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.ratings import Decision, Ratings, kept_solver
from scope_selfplay.store.reader import RunReader
from tests.unit.store.runs import write_run


def rule(folder: RunFolder, iteration: int, decision: Decision, reason: str) -> None:
    promoted = decision is Decision.PROMOTE
    estimate = Estimate(value=0.5, low=0.4, high=0.6, items=10)
    held_out = {f"S_{number}": {"all": estimate} for number in range(iteration + 1)}
    ratings = Ratings(decision=decision, promoted=promoted, reason=reason, held_out=held_out)
    stage = folder.stage(iteration, Stage.COMPARE)
    stage.path.mkdir(parents=True, exist_ok=True)
    write_atomic(stage.ratings, ratings.model_dump_json())


@pytest.mark.parametrize(
    ("decisions", "kept"),
    [
        ([Decision.PROMOTE], "S_0"),
        ([Decision.PROMOTE, Decision.PROMOTE, Decision.PROMOTE], "S_2"),
        ([Decision.PROMOTE, Decision.PROMOTE, Decision.KEEP], "S_1"),
        ([Decision.PROMOTE, Decision.KEEP, Decision.STOP], "S_0"),
    ],
)
def test_the_newest_promoted_solver_is_kept_and_the_newest_ruling_said(
    tmp_path: Path, decisions: list[Decision], kept: str
) -> None:
    folder = RunFolder(tmp_path)
    assert kept_solver(folder) is None
    for iteration, decision in enumerate(decisions):
        rule(folder, iteration, decision, f"because of {iteration}")
    found = kept_solver(folder)
    assert found is not None and found.solver == kept and found.decision is decisions[-1]
    assert found.checkpoint == ("" if kept == "S_0" else f"iteration-0{kept[-1]}/solver/checkpoint")
    last = len(decisions) - 1
    assert found.words == f"{kept}, by iteration {last}: {decisions[-1]}: because of {last}"


@pytest.mark.integration
def test_a_demoted_solver_is_named_as_such_wherever_a_run_is_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "demo")
    for iteration, decision in enumerate([Decision.PROMOTE, Decision.PROMOTE, Decision.KEEP]):
        rule(folder, iteration, decision, "S_2 is worse than S_1")
    words = "S_1, by iteration 2: keep: S_2 is worse than S_1"
    stats = CliRunner().invoke(cli, ["report", str(folder.path)])
    assert words in stats.stdout and "iteration-01/solver/checkpoint, best/" in stats.stdout
    with RunReader(folder.path) as reader:
        assert words in render_report(reader)
    assert words in run_card(folder, "demo")
    out = tmp_path / "exported"
    assert (
        CliRunner().invoke(cli, ["export", str(folder.path), "--format", "trl", "-o", str(out)]).exit_code
        == 0
    )
    assert words in (out / "README.md").read_text()


def test_a_link_is_relative_moves_with_its_folder_and_is_replaced(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "base"
    (run / "iteration-01").mkdir(parents=True)
    elsewhere.mkdir()
    assert point_at(run / "best", elsewhere) and (run / "best").resolve() == elsewhere
    assert point_at(run / "best", run / "iteration-01")
    moved = run.rename(tmp_path / "moved")
    assert (moved / "best").resolve() == moved / "iteration-01"
    assert [path.name for path in moved.iterdir() if path.name.startswith(".")] == []


def test_a_folder_of_that_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "own").touch()
    assert not point_at(tmp_path / "best", tmp_path) and (tmp_path / "best" / "own").exists()
