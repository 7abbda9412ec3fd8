"""The whole loop in miniature ends with what was promised, also forked and on a user's own questions."""

import json
import multiprocessing
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.terminal import LineProgress, Progress
from scope_selfplay.base.values import Candidate, Comparison, Grade, Rollout, Rubric
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.driver.local import run_here
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.fork import fork_run
from scope_selfplay.run.run import Run
from scope_selfplay.store.files import read_records, read_rows
from scope_selfplay.store.folder import RunFolder, Stage, read_manifest
from scope_selfplay.store.ratings import kept_solver
from tests import schemas
from tests.commands import ran
from tests.doc_commands import environment
from tests.integration.loop.policies import ARTICLES
from tests.kills import die_before_write

# Metrics that time does not change.
REWARDS = ("step", "reward", "reward_std", "loss", "rubric")
# Every readable task is let through, and articles may be twice. No Solver is better after two steps: one iteration.
SETTINGS = """
    name=tiny domain=embedded iterations=2 seed=4 judge.gates=[] model.max_length=256 model.slots=16
    search.topk=1 search.max_tokens=48 tasks.low=0 tasks.high=1 tasks.target=4 tasks.max_candidates=48
    tasks.in_flight=12 tasks.rollouts=2 compare.tasks=4
    compare.stop=1 corpus.duplicates=keep
    challenger.steps=2 challenger.batch=2 challenger.group_size=2 challenger.rollouts=2
    challenger.learning_rate=1e-3 challenger.save_every=1 challenger.max_prompt=120 challenger.max_response=100
    solver.steps=2 solver.batch=2 solver.group_size=2 solver.learning_rate=1e-3
    solver.save_every=1 solver.max_prompt=64 solver.max_response=120 solver.length_soft=16 solver.length_hard=32
"""


def settings_of(policy: Path, *overrides: str) -> list[str]:
    return [*SETTINGS.split(), f"model.path={policy}", f"corpus.path={policy / ARTICLES}", *overrides]


def config_of(policy: Path, *overrides: str) -> RunConfig:
    return load_config(None, settings_of(policy, *overrides))


def forked(target: Callable[..., None], *given: Any) -> ForkServerProcess:
    """A process that has begun; a fork server has the libraries loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.integration.loop.libraries"])
    child = context.Process(target=target, args=given)
    child.start()
    return child


def in_child(target: Callable[..., None], *given: Any, begun: Callable[[int], None] | None = None) -> int:
    """The exit code of a process of its own, whose number `begun` is told."""
    child = forked(target, *given)
    if begun is not None:
        assert child.pid is not None
        begun(child.pid)
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def whole_run(policy: Path, root: Path, kill_before: int | None = None, *overrides: str) -> None:
    """Beside the run stays how many writes it made, any of which may kill it."""
    writes = die_before_write(kill_before)
    run_here(open_run(config_of(policy, *overrides), root, Progress()))
    (root / "writes").write_text(str(writes()))


def records(root: Path) -> dict[str, bytes]:
    """Everything that a run made, but for what tells the time: records, weights, rewards of every step, ratings."""
    run = RunFolder(root / "tiny")
    found = {}
    for stage in sorted(run.path.glob("iteration-*/[!.]*")):
        assert (stage / "manifest.json").exists(), stage
        for path in sorted(stage.rglob("*")):
            name = str(path.relative_to(run.path))
            if path.name == "metrics.jsonl":
                lines = [{key: row.get(key) for key in REWARDS} for row in read_rows(path)]
                found[name] = "\n".join(map(json.dumps, lines)).encode()
            elif path.suffix in (".jsonl", ".safetensors") or path.name in ("documents.json", "ratings.json"):
                # A verdict that was paid for before a kill comes out of the cache after it.
                found[name] = path.read_bytes().replace(b'"cached":true', b'"cached":false')
    assert len(found) >= 15, sorted(found)
    return found


@pytest.mark.smoke
def test_a_run_ends_with_every_stage_and_a_summary(finished: RunFolder) -> None:
    summary = json.loads(finished.summary.read_text())
    kept = kept_solver(finished)
    assert kept is not None and summary["kept"] == kept.model_dump(mode="json")
    assert finished.best.resolve() == (finished.path / kept.checkpoint).resolve()
    assert (finished.best / "config.json").exists()
    (iteration,) = summary["iterations"]
    assert iteration["accepted"] >= 2 and iteration["candidates"] > iteration["accepted"]
    assert set(iteration["seconds"]) == {stage.value for stage in Stage}
    assert list(summary["held_out"]) == ["S_0", "S_1"]
    for stage in Stage:
        folder = finished.stage(1, stage)
        assert read_manifest(folder.path) is not None and not folder.work.exists()
    schemas.validate(finished.path)


def test_a_run_that_no_iteration_helps_ends_early_and_says_why(
    finished: RunFolder, speaking_policy: Path
) -> None:
    class Telling(Progress):
        said: str = ""

        def say(self, text: str) -> None:
            self.said = text

    progress = Telling()
    run_here(open_run(config_of(speaking_policy), finished.path.parent, progress))
    assert progress.said.startswith("stopped after iteration 1: S_1 is worse than S_0: ")
    assert "compare.stop=never" in progress.said
    assert not finished.stage(2, Stage.CHALLENGER).path.exists()
    ratings = json.loads((finished.stage(1, Stage.COMPARE).path / "ratings.json").read_text())
    assert (ratings["decision"], ratings["promoted"]) == ("stop", True)
    (edge,) = ratings["edges"]
    assert edge["wins"] + edge["ties"] + edge["losses"] == len(
        read_records(finished.stage(1, Stage.COMPARE).comparisons, Comparison)
    )


def test_every_rollout_that_counted_is_kept_with_its_grade(finished: RunFolder) -> None:
    tasks = finished.stage(1, Stage.TASKS)
    rollouts = {each.id for each in read_records(tasks.rollouts, Rollout)}
    grades = {each.rollout_id for each in read_records(tasks.grades, Grade)}
    candidates = read_records(tasks.candidates, Candidate)
    for candidate in candidates:
        assert candidate.challenger_rollout_id in rollouts
        assert set(candidate.rollout_ids) <= rollouts & grades
    documents = [each.provenance.document_id for each in candidates]
    assert len(set(documents)) == len(documents)
    trained = json.loads((finished.stage(1, Stage.CHALLENGER).path / "documents.json").read_text())
    assert not set(trained) & set(documents)


def test_a_finished_run_returns_at_once_and_changes_nothing(
    finished: RunFolder, speaking_policy: Path
) -> None:
    def files() -> dict[Path, bytes]:
        return {each: each.read_bytes() for each in finished.path.rglob("*") if each.is_file()}

    before = files()
    run = open_run(config_of(speaking_policy), finished.path.parent, Progress())
    run_here(run)
    assert files() == before


def test_a_run_that_was_killed_moved_and_renamed_is_the_one_that_stayed(
    finished: RunFolder, speaking_policy: Path, tmp_path: Path, forked: list[str]
) -> None:
    undisturbed = records(finished.path.parent)
    writes = int((finished.path.parent / "writes").read_text())
    assert in_child(whole_run, speaking_policy, tmp_path / "runs", writes // 2) == -signal.SIGKILL
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "runs" / "tiny").rename(tmp_path / "elsewhere" / "b")
    scope = [*forked, "scope"]
    done = ran([*scope, "continue", "elsewhere/b"], cwd=tmp_path, env=environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    for given, said in (
        (["elsewhere"], "not a run folder"),
        (["elsewhere/b", "--iterations=1"], "the run has 2"),
    ):
        refused = ran([*scope, "continue", *given], cwd=tmp_path, env=environment(), timeout=100)
        assert refused.returncode == 64 and said in refused.stderr
    above = done.stdout.partition("== What next")[0].splitlines()
    assert sum(max(1, -(-len(line) // 80)) for line in above) < 19, "with five rows below, less than a screen"
    # Every next step works as it is printed.
    steps = [line.strip().split("  ")[0] for line in done.stdout.partition("What next\n")[2].splitlines()]
    again, view, *others = (shlex.split(step) for step in steps)
    assert again[-4:] == ["continue", "elsewhere/b", "--set", "compare.stop=never"]
    for step in others:
        shown = ran(step, cwd=tmp_path, env=environment(), timeout=120)
        assert shown.returncode == 0 and shown.stdout, step
    viewing = [*view, "--port", "0"]
    with subprocess.Popen(
        viewing, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    ) as viewer:
        assert viewer.stderr and "showing elsewhere/b at http" in viewer.stderr.readline()
        viewer.terminate()
    # The command of before begins no second one beside it.
    settings = [word for each in settings_of(speaking_policy) for word in ("--set", each)]
    again = [*scope, "run", "--root", "elsewhere", "--config", str(moved / "run.yaml"), *settings]
    asked = ran(again, cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, timeout=300)
    assert asked.returncode == 64 and "`scope continue elsewhere/b` goes on with it" in asked.stderr
    assert [each.name for each in moved.parent.iterdir()] == ["b"]
    moved.rename(tmp_path / "runs" / "tiny")
    assert records(tmp_path / "runs") == undisturbed


FROZEN = ("challenger.freeze_after=1", "compare.stop=never")


def made_in(folder: RunFolder, iteration: int) -> list[tuple[str, str, float | None]]:
    kept = read_records(folder.stage(iteration, Stage.TASKS).candidates, Candidate)
    return [(each.id, each.task.text if each.task else "", each.mean) for each in kept]


def manifests(folder: RunFolder) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.path.glob("iteration-*/*/manifest.json"))}


def test_a_challenger_frozen_in_a_fork_is_the_ablation_from_the_start(
    finished: RunFolder, speaking_policy: Path, tmp_path: Path
) -> None:
    """Figure 3: both conditions share iteration 1."""
    before = manifests(finished)
    made = fork_run(finished.path, tmp_path / "forked", load_config(finished.config, FROZEN), after=1)
    run_here(open_run(load_config(made.folder / "run.yaml"), tmp_path / "forked", Progress()))
    forked = RunFolder(made.folder)
    summary = json.loads(forked.summary.read_text())
    assert summary["shared"] == {"run": "tiny", "after": 1}
    assert manifests(finished) == before
    assert not forked.stage(2, Stage.CHALLENGER).path.exists()
    (writer,) = {
        each.provenance.challenger
        for each in read_records(forked.stage(2, Stage.TASKS).candidates, Candidate)
    }
    assert writer.startswith("C_1-")

    run_here(open_run(config_of(speaking_policy, *FROZEN), tmp_path / "from-the-start", Progress()))
    alone = RunFolder(tmp_path / "from-the-start" / "tiny")
    assert [made_in(forked, number) for number in (0, 1, 2)] == [
        made_in(alone, number) for number in (0, 1, 2)
    ]
    trained = [read_manifest(each.stage(2, Stage.SOLVER).path) for each in (forked, alone)]
    weights = [each.outputs["checkpoint/model.safetensors"] for each in trained if each]
    assert len(weights) == 2 and weights[0] == weights[1]


def world_questions(folder: RunFolder) -> list[str]:
    """Questions that the judge of the embedded world can write a rubric for."""
    kept = read_records(folder.stage(0, Stage.TASKS).candidates, Candidate)
    return [each.task.text for each in kept if each.task]


def given(
    lines: Sequence[Mapping[str, object]], policy: Path, root: Path, progress: Progress, *more: str
) -> Run:
    file = root / "questions.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = [f"solver.tasks={file}", "name=given", "compare.stop=never", *more]
    return open_run(config_of(policy, *settings), root, progress)


def trained_on(folder: RunFolder, iteration: int) -> set[str]:
    return {each.subject_id for each in read_records(folder.stage(iteration, Stage.SOLVER).rollouts, Rollout)}


def test_questions_with_and_without_rubric_are_trained_on_in_turn(
    finished: RunFolder, speaking_policy: Path, tmp_path: Path
) -> None:
    alone = world_questions(finished)[:2]
    lines: list[dict[str, object]] = [{"question": text, "id": f"alone-{n}"} for n, text in enumerate(alone)]
    lines += [
        {"question": f"What is {n}?", "rubric": ["Names a river.", "Says when."], "id": f"own-{n}"}
        for n in range(6)
    ]
    said: list[str] = []
    run_here(given(lines, speaking_policy, tmp_path, LineProgress(said.append)))
    folder = RunFolder(tmp_path / "given")
    assert (
        not folder.stage(1, Stage.CHALLENGER).path.exists() and not folder.stage(1, Stage.TASKS).path.exists()
    )
    first, second = trained_on(folder, 1), trained_on(folder, 2)
    assert first | second == {line["id"] for line in lines} and not first & second
    assert any("tasks 1 to 4 of 8 given ones, pass 1" in line for line in said), said
    assert any("tasks 5 to 8 of 8 given ones, pass 1" in line for line in said), said
    stages = [folder.stage(number, Stage.SOLVER) for number in (1, 2)]
    assert all(each.verdicts for stage in stages for each in read_records(stage.grades, Grade))
    # What the judge wrote is kept; what was given is in the user's file.
    written = [each.task_id for stage in stages for each in read_records(stage.rubrics, Rubric)]
    assert sorted(written) == ["alone-0", "alone-1"]
