"""What a run says about itself: the keys that others rely on, and the page that a person reads."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.intervals import Estimate
from scope_selfplay.base.terminal import LineProgress
from scope_selfplay.base.values import Candidate, CandidateStatus, Gate, Provenance, Reason, Role, Rollout
from scope_selfplay.cli import cli
from scope_selfplay.config.load import load_config
from scope_selfplay.prompts.folder import load_pack, shipped_prompts
from scope_selfplay.report.overview import ending_sections, summarise
from scope_selfplay.report.sections import text_of
from scope_selfplay.run.run import Run
from scope_selfplay.stages.tasks import check_enough_accepted
from scope_selfplay.store.files import write_atomic, write_records
from scope_selfplay.store.folder import RunFolder, Stage, StageManifest, publish_manifest
from scope_selfplay.store.ratings import Ratings
from scope_selfplay.store.reader import RunReader

PACK = load_pack(shipped_prompts() / "embedded")


def candidate(number: int, reason: Reason, mean: float | None = None) -> Candidate:
    status = CandidateStatus.ACCEPTED if reason is Reason.ACCEPTED else CandidateStatus.REJECTED
    provenance = Provenance(run="r", iteration=1, stage="tasks", document_id=f"d{number}")
    return Candidate(id=f"c{number}", status=status, reason=reason, mean=mean, provenance=provenance)


def estimate(mean: float) -> Estimate:
    return Estimate(value=mean, low=mean - 0.1, high=mean + 0.1, items=100)


def finish(run: Run, iteration: int, stage: Stage) -> None:
    manifest = StageManifest(stage=stage.value, iteration=iteration, spec_hash="0", seconds=1.5)
    publish_manifest(run.folder.stage(iteration, stage).path, manifest)


def write_ratings(run: Run, iteration: int) -> None:
    names = [f"S_{number}" for number in range(iteration + 1)]
    held_out = {
        name: {"all": estimate(0.3 + 0.1 * row), "1 link": estimate(0.4)} for row, name in enumerate(names)
    }
    said: dict[str, Any] = {"reason": "S_1 is better than S_0", "ratings": dict.fromkeys(names, 0.5)}
    folder = run.folder.stage(iteration, Stage.COMPARE).path
    folder.mkdir(parents=True, exist_ok=True)
    ratings = Ratings(promoted=True, held_out=held_out, **said)
    write_atomic(folder / "ratings.json", ratings.model_dump_json())
    finish(run, iteration, Stage.COMPARE)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with one finished iteration and one that has only begun."""
    found = Run(load_config(None, ["name=tiny", "iterations=2"]), RunFolder(tmp_path / "tiny"), PACK)
    found.folder.path.mkdir()
    write_atomic(found.folder.config, "name: tiny\n")
    write_ratings(found, 0)
    challenger, tasks, solver = (
        found.folder.stage(1, stage) for stage in (Stage.CHALLENGER, Stage.TASKS, Stage.SOLVER)
    )
    for stage in (challenger, tasks, solver, found.folder.stage(2, Stage.TASKS)):
        stage.path.mkdir(parents=True)
    write_records(
        tasks.candidates,
        [candidate(0, Reason.ACCEPTED, 0.4), candidate(1, Reason.ACCEPTED, 0.6)]
        + [candidate(number, Reason.TOO_HARD, 0.0) for number in range(2, 5)]
        + [candidate(5, Reason.refused_by(Gate.ENTITY))],
    )
    write_records(found.folder.stage(2, Stage.TASKS).candidates, [candidate(0, Reason.NO_TASK)])
    write_atomic(tasks.path / "judge.json", json.dumps({"calls": 10, "unreadable": 1, "failed": 2}))
    write_atomic(challenger.path / "judge.json", json.dumps({"calls": 5, "unreadable": 0, "failed": 0}))
    rows = [{"step": step, "reward": step / 10, "difficulty": step / 20} for step in range(1, 9)]
    write_records(challenger.metrics, rows)
    write_records(solver.metrics, [{"step": 1, "reward": 1.0}])
    for name in (Stage.CHALLENGER, Stage.TASKS, Stage.SOLVER):
        finish(found, 1, name)
    write_ratings(found, 1)
    return found


def summary_of(run: Run) -> Any:
    return json.loads(json.dumps(summarise(run)))


def ending_of(run: Run) -> str:
    """What is printed at its end."""
    with RunReader(run.folder.path) as reader:
        return "\n".join(text_of(ending_sections(run, reader)))


def test_the_summary_has_exactly_the_agreed_keys_and_the_numbers_of_the_folders(run: Run) -> None:
    summary = summary_of(run)
    (iteration,), held_out = summary["iterations"], summary["held_out"]
    assert list(summary) == "run config_hash prompt_hash iterations held_out kept warnings".split()
    hashes = (run.config.hash, run.pack.hash)
    assert (summary["run"], summary["config_hash"], summary["prompt_hash"]) == ("tiny", *hashes)
    assert list(held_out) == ["S_0", "S_1"] and held_out["S_1"]["mean_score"] == pytest.approx(0.4)
    assert all({"mean_score", "low", "high", "tasks"} <= set(found) for found in held_out.values())
    challenger, solver = iteration.pop("challenger"), iteration.pop("solver")
    del iteration["target"], iteration["solver_steps"]
    assert iteration == {
        "iteration": 1,
        "candidates": 6,
        "rejected": {"too_hard": 3, "gate_entity": 1},
        "accepted": 2,
        "mean_score": 0.5,
        "compare": {"S_0": 0.5, "S_1": 0.5},
        "decision": {"decision": "promote", "reason": "S_1 is better than S_0"},
        "judge": {"calls": 15, "unreadable": 1, "failed": 2},
        "seconds": dict.fromkeys(("challenger", "tasks", "solver", "compare"), 1.5),
    }
    # First and last are quarters of the steps.
    assert (challenger["steps"], len(challenger["reward_curve"])) == (8, 8)
    firsts = [challenger[name] for name in ("reward_first", "reward_last", "difficulty_first")]
    assert firsts == pytest.approx([0.15, 0.75, 0.075])
    # What was never measured is null and never zero.
    assert (solver["reward_first"], solver["rubric_first"], solver["rubric_curve"]) == (1.0, None, [])


def test_the_report_shows_funnel_curves_held_out_and_the_end_what_next(run: Run) -> None:
    whole = CliRunner().invoke(cli, ["report", str(run.folder.path)]).stdout
    page, ending = (re.sub(" +", " ", text) for text in (whole, ending_of(run)))
    for part in (
        "== Iteration 1",
        " too_hard 3\n",
        " reward iteration 1 0.10 -> 0.80 ▁",
        " verdicts of the judge 15, 2 failed\n",
        " seconds of compare 2\n",
        "Ruling: promote: S_1 is better than S_0",
        " S_0 0.300 [0.200, 0.400] 0.400 [0.300, 0.500] 100 #########",
        " S_1 (kept) 0.400",
        " (iteration-01/solver/checkpoint, best/)\n",
    ):
        assert part in page, part
    for part in (
        " S_1 (kept) 0.400 [0.300, 0.500] 2 of 6 ############\n",
        " on 100 held-out tasks",
        "tiny the iterations left\n",
        "tiny --status accepted the tasks that were kept\n",
    ):
        assert part in ending, part
    assert "stop" not in ending and len(ending.splitlines()) < 24


def test_the_command_that_goes_on_undoes_what_ended_the_run(run: Run) -> None:
    def ending_with(setting: str) -> str:
        return ending_of(Run(load_config(None, ["name=tiny", "iterations=1", setting]), run.folder, run.pack))

    # What `stop_after` ended `scope continue` goes on with.
    assert "tiny --iterations 2  " in ending_with("stop_after=1")
    file = run.folder.stage(1, Stage.COMPARE).path / "ratings.json"
    write_atomic(file, json.dumps({**json.loads(file.read_text()), "decision": "stop"}))
    assert " --iterations 2 --set compare.stop=never " in ending_with("compare.stop=worse")


def test_too_few_tasks_come_with_advice_that_can_help(run: Run) -> None:
    for iteration, advice in ((0, "1 are needed .* add held-out documents or"), (1, "widen tasks.low")):
        with pytest.raises(CorpusError, match=f"only 0 of 1 candidates were accepted, .*{advice}"):
            check_enough_accepted(run, iteration, [candidate(0, Reason.refused_by(Gate.ENTITY))])
    said: list[str] = []
    config = load_config(None, ["name=tiny", "solver.batch=2", "tasks.target=3"])
    kept = [candidate(0, Reason.ACCEPTED), candidate(1, Reason.ACCEPTED), candidate(2, Reason.TOO_HARD)]
    check_enough_accepted(Run(config, run.folder, PACK, LineProgress(said.append)), 1, kept)
    assert "with 2 of 3 tasks (accepted 2, too_hard 1); it goes on" in said[-1]
    assert json.loads(run.folder.stage(1, Stage.TASKS).target.read_text()) == {"accepted": 2, "target": 3}
    with pytest.raises(CorpusError, match="only 1 of 2 candidates were accepted, 2 are needed"):
        check_enough_accepted(Run(config, run.folder, PACK), 1, kept[1:])
    failed = Rollout(
        id="r", role=Role.CHALLENGER, checkpoint="C_0", subject_id="d", turns=(), error="no token_ids"
    )
    write_records(run.folder.stage(1, Stage.TASKS).rollouts, [failed])
    with pytest.raises(CorpusError, match="accepted 1, too_hard 1, 1 times: no token_ids"):
        check_enough_accepted(Run(config, run.folder, PACK), 1, kept[1:])
