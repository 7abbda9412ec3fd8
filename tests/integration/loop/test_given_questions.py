"""The Solver learns from questions that a user brings; no Challenger takes part."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.base.terminal import LineProgress, Progress
from scope_selfplay.base.values import Candidate, Criterion, Grade, Rollout, Rubric
from scope_selfplay.config.load import load_config
from scope_selfplay.driver.local import run_all
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.run import Run
from scope_selfplay.stages.tasks import make_tasks
from scope_selfplay.store.files import read_records, write_records
from scope_selfplay.store.folder import RunFolder, Stage
from tests.integration.loop.test_run import config_of


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


def test_a_task_that_nobody_searched_for_counts_no_search_and_lacks_no_evidence(tmp_path: Path) -> None:
    settings = ["model.processes=1", "compare.tasks=5", "name=embedded"]
    run = open_run(load_config(DEFAULT_CONFIG, settings), tmp_path, Progress())
    make_tasks(run, 0)
    kept = read_records(run.folder.stage(0, Stage.TASKS).candidates, Candidate)
    assert {(each.task.search_turns, each.task.assigned_turns) for each in kept if each.task} == {(0, None)}
    rubrics = [each.rubric for each in kept if each.rubric]
    assert len(rubrics) == 5 and {rubric.unmet for rubric in rubrics} == {()}
    assert {criterion.evidence for rubric in rubrics for criterion in rubric.criteria} == {None}


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
    run_all(given(lines, speaking_policy, tmp_path, LineProgress(said.append)))
    folder = RunFolder(tmp_path / "given")
    assert (
        not folder.stage(1, Stage.CHALLENGER).path.exists() and not folder.stage(1, Stage.TASKS).path.exists()
    )
    first, second = trained_on(folder, 1), trained_on(folder, 2)
    assert first | second == {line["id"] for line in lines} and not first & second
    assert any("tasks 1 to 4 of 8 given ones, pass 1" in line for line in said), said
    assert any("tasks 5 to 8 of 8 given ones, pass 1" in line for line in said), said
    graded = [folder.stage(number, Stage.SOLVER).grades.read_text() for number in (1, 2)]
    assert all('"verdicts":[{' in text.replace(" ", "") for text in graded)
    # What the judge wrote is kept; what was given is in the user's file.
    written = [
        each.task_id
        for number in (1, 2)
        for each in read_records(folder.stage(number, Stage.SOLVER).rubrics, Rubric)
    ]
    assert sorted(written) == ["alone-0", "alone-1"]


def test_a_training_that_goes_on_grades_by_the_rubrics_that_it_wrote_before(
    finished: RunFolder, speaking_policy: Path, tmp_path: Path
) -> None:
    texts = world_questions(finished)[:4]
    rows = [{"question": text, "id": f"alone-{n}"} for n, text in enumerate(texts)]
    run = given(rows, speaking_policy, tmp_path, Progress(), "iterations=1")
    folder = run.folder.stage(1, Stage.SOLVER)
    folder.path.mkdir(parents=True)
    before = [Rubric(task_id=row["id"], criteria=(Criterion(text="Names a river."),)) for row in rows]
    write_records(folder.rubrics, before)

    run_all(run)
    grades = read_records(folder.grades, Grade)
    assert grades and {len(each.verdicts) for each in grades} == {1}
    assert read_records(folder.rubrics, Rubric) == before
