"""The ablations as data: every arm is a run that can be, names of its own, and a page that says what was measured."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml

from benchmarks.ablations.arms import Arm, Laboratory, check_same, waves
from benchmarks.ablations.measures import (
    ASKED,
    NON_ZERO,
    FinishedRun,
    accepted_means,
    asked_scores,
    on_source,
)
from benchmarks.ablations.page import write_section
from benchmarks.ablations.studies import ABLATIONS, KINDS, NOISE, Ablation
from benchmarks.learning.conditions import CO_EVOLVING
from benchmarks.line_chart import Point, draw_lines
from scope_selfplay.cli import DEFAULT_CONFIG
from scope_selfplay.config import RunConfig, changed_settings, load_config
from scope_selfplay.forking import check_settings
from scope_selfplay.gates import Gate
from scope_selfplay.judge import LexicalJudge
from scope_selfplay.keys import Key
from scope_selfplay.progress import Progress
from scope_selfplay.run_directory import enter_run_directory
from scope_selfplay.schemas import Criterion, Document, Rubric, Task, Verdict
from scope_selfplay.store import RunFolder, Stage, StageManifest, publish_manifest, write_records
from tests.unit.store.runs import candidate, solver_rollout

ARMS = dict.fromkeys(arm for ablation in ABLATIONS.values() for arm in ablation.arms)


def written(arm: Arm, laboratory: Laboratory) -> RunConfig:
    """The arm's config, in its folder, behind those of the runs that it comes from."""
    for need in arm.needs:
        written(need, laboratory)
    config, folder = laboratory.config(arm, 1), laboratory.folder(arm, 1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return config


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_every_arm_is_a_run_that_can_be_and_differs_from_where_it_begins(arm: Arm, tmp_path: Path) -> None:
    laboratory = Laboratory(tmp_path)
    config = written(arm, laboratory)
    shipped = load_config(DEFAULT_CONFIG, ["seed=1"])
    assert changed_settings(shipped, config) or arm == CO_EVOLVING
    assert config.seed == 1 and config.name == arm.name
    if arm.of is not None:
        check_settings(load_config(laboratory.folder(arm.of, 1) / "run.yaml"), config, arm.after)


def test_arms_of_one_name_are_one_run_and_each_is_compared_with_one_of_its_ablation() -> None:
    assert len({arm.name for arm in ARMS}) == len(ARMS)
    for ablation in ABLATIONS.values():
        assert all(ablation.reference(arm) in ablation.arms for arm in ablation.arms)


def test_noise_is_that_of_the_issue_and_every_design_has_the_same_tasks_and_start() -> None:
    assert set(NOISE.across) == set(KINDS) == {"unreadable", "first", "longer"}
    assert len(NOISE.arms) == 5 * (1 + 2 * 3)
    assert len({(arm.of, arm.after, arm.tasks_of) for arm in NOISE.arms}) == 1
    names = {arm.name: NOISE.reference(arm).name for arm in NOISE.arms}
    assert names["balanced"] == "rubric" and names["arenarl-first-30"] == "rubric-first-30"


def test_what_an_arm_needs_is_made_before_it_and_only_once() -> None:
    planned = list(waves([*NOISE.arms, *ABLATIONS["frozen"].arms]))
    made = [arm.name for wave in planned for arm in wave]
    assert len(made) == len(set(made)) and made.index("start") < made.index("balanced")
    assert made.index("co-evolving") < made.index("frozen-c1")


def test_a_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    laboratory = Laboratory(tmp_path)
    config = written(CO_EVOLVING, laboratory)
    check_same(laboratory.folder(CO_EVOLVING, 1), config)
    other = Laboratory(tmp_path, ("solver.steps=3",)).config(CO_EVOLVING, 1)
    with pytest.raises(SystemExit, match=r"other settings \(solver\.steps\)"):
        check_same(laboratory.folder(CO_EVOLVING, 1), other)


class Likes(LexicalJudge):
    """Likes answers that hold a criterion's text, and tasks that hold their document's title."""

    def __init__(self) -> None:
        super().__init__(())

    async def gate(self, gate: Gate, task: Task, document: Document | None) -> Verdict:
        return Verdict(value=document is not None and document.title in task.text)

    async def grade(self, task: Task, criterion: Criterion, answer: str, *, key: Key) -> Verdict:
        return Verdict(value=criterion.text in answer)


@pytest.fixture
def finished(tmp_path: Path) -> FinishedRun:
    """Two held-out tasks that ask for one thing and hide another, and what S_1 answered."""
    config = load_config(
        DEFAULT_CONFIG, ["name=demo", "judge.noise.wrong=0.5", "corpus.embedded_articles=60"]
    )
    folder, _ = enter_run_directory(config, tmp_path, Progress(), packs=None, record=True)
    criteria = (Criterion(text="asked"), Criterion(text="secret", dimension="hidden"))
    held_out, rollouts = [], []
    for number, answer in ((2, "asked"), (3, "secret")):
        made = candidate(0, number)
        assert made.task is not None
        held_out.append(made.model_copy(update={"rubric": Rubric(task_id=made.task.id, criteria=criteria)}))
        rollouts.append(solver_rollout(f"r{number}", "S_1", made.task.id, answer))
    write_stage(folder, 0, Stage.TASKS)
    write_records(folder.stage(0, Stage.TASKS).candidates, held_out)
    write_stage(folder, 1, Stage.COMPARE)
    write_records(folder.stage(1, Stage.COMPARE).rollouts, rollouts)
    run = FinishedRun(folder.path)
    assert isinstance(run.judge, LexicalJudge), "the noise is left out"
    run.judge = Likes()
    return run


def write_stage(folder: RunFolder, iteration: int, stage: Stage) -> None:
    path = folder.stage(iteration, stage).path
    path.mkdir(parents=True)
    publish_manifest(path, StageManifest(stage=stage, iteration=iteration, spec_hash="0"))


def test_what_is_asked_is_scored_without_what_is_hidden(finished: FinishedRun) -> None:
    assert finished.iterations_with(Stage.COMPARE) == [1]
    assert sorted(asked_scores(finished, 1).values()) == [0.0, 1.0]


def test_tasks_are_about_their_document_where_the_clean_gate_says_so(finished: FinishedRun) -> None:
    source = next(iter(finished.documents.values()))
    kept = [candidate(1, number) for number in (2, 4)]
    tasks = [
        each.task.model_copy(update={"text": text, "document_id": source.id})
        for each, text in zip(kept, (f"Report on {source.title}.", "What is love?"), strict=True)
        if each.task
    ]
    written = [each.model_copy(update={"task": task}) for each, task in zip(kept, tasks, strict=True)]
    write_stage(finished.folder, 1, Stage.TASKS)
    write_records(finished.folder.stage(1, Stage.TASKS).candidates, written)
    assert on_source(finished, 1) == {written[0].id: 1.0, written[1].id: 0.0}
    accepted = {each.id: each.mean for each in written if each.status == "accepted"}
    assert accepted and accepted_means(finished, 1) == accepted


ONE, TWO = Arm("one"), Arm("two", of=Arm("one"))
PAIR = Ablation("pair", "Does it?", "Somebody says so.", (ONE, TWO), (ASKED, NON_ZERO))


def test_a_section_has_paired_differences_quarters_of_the_steps_and_charts(tmp_path: Path) -> None:
    found = {
        arm: {
            "asked": {
                (seed, t, f"task-{n}"): 0.1 * t + gain for seed in (1, 2) for t in (0, 1) for n in range(9)
            },
            "non-zero": {(1, 1, str(step)): gain + (0.5 if step > 6 else 0.25) for step in range(1, 9)},
        }
        for arm, gain in ((ONE, 0.2), (TWO, 0.5))
    }
    text = write_section(PAIR, found, [1, 2], tmp_path)
    assert "| `one` | 0.200 [0.200, 0.200] | 0.300 [0.300, 0.300] |  |" in text
    assert "+0.300 [+0.300, +0.300] against `one`" in text
    assert "| `two` | 0.750 [0.750, 0.750] | 1.000 [1.000, 1.000] |" in text
    assert "Somebody says so." in text and "seeds 1, 2" in text
    for name in ("asked", "non-zero"):
        ElementTree.parse(tmp_path / "images" / f"ablation-pair-{name}.svg")


def test_values_about_different_things_are_not_subtracted(tmp_path: Path) -> None:
    found = {arm: {name: {(1, 1, f"{arm.name}"): 0.5} for name in ("asked",)} for arm in (ONE, TWO)}
    only = Ablation("pair", "Does it?", "Yes.", (ONE, TWO), (ASKED,))
    assert "not paired" in write_section(only, found, [1], tmp_path)


def test_a_line_of_a_chart_rises_where_its_values_do() -> None:
    line = [Point(x, x, x - 0.1, x + 0.1) for x in (0.0, 1.0, 2.0)]
    root = ElementTree.fromstring(draw_lines("a <title>", {"": {"b": line}}, "x"))
    (drawn,) = root.iter("{http://www.w3.org/2000/svg}polyline")
    heights = [float(corner.split(",")[1]) for corner in drawn.attrib["points"].split()]
    assert heights == sorted(heights, reverse=True)
