"""The health signals on records whose answer is known and on a real run with one bad habit, and who shows them."""

import gzip
import json
import random
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from scope_selfplay.base.values import Candidate, Criterion, Document, Passage, Rollout, Rubric, Turn
from scope_selfplay.cli import cli
from scope_selfplay.config.load import load_config
from scope_selfplay.prompts.folder import load_pack, shipped_prompts
from scope_selfplay.report.app import Site, build_app
from scope_selfplay.report.health import costs_of, examine
from scope_selfplay.report.overview import ending_sections, run_sections, summarise
from scope_selfplay.report.pages import ShownRun
from scope_selfplay.report.rendering import render_report
from scope_selfplay.report.sections import text_of
from scope_selfplay.report.signals import (
    BOUNDS,
    Checkup,
    MadeTask,
    Signal,
    common_pattern,
    duplicate_share,
    needed_searches,
    repeated_sentence,
    signal_of,
    word_count,
)
from scope_selfplay.run.run import Run
from scope_selfplay.store.files import write_atomic, write_records
from scope_selfplay.store.folder import RunFolder, Stage, StageManifest, publish_manifest
from scope_selfplay.store.query import Flaw
from scope_selfplay.store.reader import RunReader
from tests.unit.store.runs import rewrite, write_run, write_tasks

pytestmark = pytest.mark.integration

GPU_HOURS = "GPU-hours of the finished stages"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return write_run(tmp_path / "demo")


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


def finish(folder: RunFolder, stage: Stage, seconds: float) -> None:
    path = folder.stage(1, stage).path
    path.mkdir(exist_ok=True)
    publish_manifest(path, StageManifest(stage=stage.value, iteration=1, spec_hash="0", seconds=seconds))


def test_a_verdict_says_on_which_side_of_its_bounds_a_value_is() -> None:
    for measured, verdict in (
        (0.05, "low"),
        (0.5, "fine"),
        (0.9, "high"),
        (Signal(0.9, (0.6, 1.0)), "by chance"),
        (Signal(0.9, (0.8, 1.0)), "high"),
        (None, ""),
    ):
        signal = signal_of("mean_score", measured)
        assert signal.verdict == verdict and bool(signal.warning) == (verdict in ("low", "high"))


def test_repeated_tasks_are_duplicates_and_invented_ones_are_not() -> None:
    rng = random.Random(1)
    fresh = [" ".join(f"word{rng.randrange(500)}" for _ in range(20)) for _ in range(40)]
    assert duplicate_share(fresh) == 0
    assert duplicate_share([*fresh, *fresh[:10]]) == pytest.approx(0.2)
    assert duplicate_share(fresh, before=fresh) == 1
    one_word_off = [f"{text} more" for text in fresh]
    assert duplicate_share([*fresh, *one_word_off]) == pytest.approx(0.5, abs=0.05)
    assert duplicate_share([]) is None


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
    """One accepted task: `found` is what its Challenger's searches found, `asked` what its rubric asks for."""
    folder = RunFolder(tmp_path)
    stage = folder.stage(1, Stage.TASKS)
    write_atomic(folder.config, "name: demo\n")
    write_records(folder.corpus, [Document(id="doc-002", title="The lantern", text="It stands in Orlund.")])
    # Of the first three candidates the last is accepted.
    write_tasks(folder, 1, 3)
    rubric = Rubric(task_id="task-1-002", criteria=(Criterion(text=asked),))
    rewrite(stage.candidates, Candidate, lambda each: each.model_copy(update={"rubric": rubric}))
    passages = (Passage(id=f"p{row}", title="", text=text) for row, text in enumerate(found))
    turns = tuple(Turn(query="q", passages=(each,)) for each in passages)
    rewrite(stage.rollouts, Rollout, lambda each: each.model_copy(update={"turns": turns}))
    with RunReader(tmp_path) as reader:
        assert needed_searches(reader, 1) == needed


def test_task_making_that_ended_below_its_target_is_a_warning(folder: RunFolder) -> None:
    write_atomic(folder.config, "name: demo\nseed: 7\ntasks: {target: 24}\n")
    finish(folder, Stage.TASKS, 1.0)
    ended, going_on = values_of(folder)
    assert ended["target_share"] == pytest.approx(12 / 24) and going_on["target_share"] is None
    assert any("tasks of tasks.target: 0.5 is under 1" in text for text in warnings_of(folder))


def test_a_checkup_counts_what_lies_in_the_records(folder: RunFolder) -> None:
    sizes = "{batch: 2, group_size: 4}"
    write_atomic(folder.config, f"name: demo\nchallenger: {sizes}\nsolver: {sizes}\n")
    said = {Stage.TASKS: (120, 3, 6), Stage.SOLVER: (0, 0, 0), Stage.COMPARE: (80, 0, 4)}
    for iteration in (1, 2):
        for stage, share in ((Stage.CHALLENGER, 0.75), (Stage.SOLVER, 0.25)):
            made = folder.stage(iteration, stage)
            made.path.mkdir()
            steps = {"step": 1, "zero_variance": share - 0.25}, {"step": 2, "zero_variance": share + 0.25}
            write_records(made.metrics, [{**step, "completion_tokens": 30.0} for step in steps])
        for stage, counts in said.items():
            account = dict(zip(("calls", "unreadable", "failed"), counts, strict=True))
            write_atomic(folder.stage(iteration, stage).path / "judge.json", json.dumps(account))
    values, again = values_of(folder)
    assert list(values) == list(BOUNDS)
    assert values["acceptance"] == pytest.approx(12 / 30)
    assert values["gate_source"] == pytest.approx(18 / 24) and values["gate_entity"] is None
    assert values["judge_failures"] == pytest.approx(0.05)
    assert (values["zero_variance"], values["zero_variance_challenger"]) == (0.25, 0.75)
    costs = costs_in(folder)
    assert costs["judge calls for an accepted task"] == pytest.approx(10)
    assert costs["judge tokens for an accepted task"] == pytest.approx(24 * 5 / 12)
    assert values["answer_growth"] == pytest.approx(1)
    assert any("verdicts that failed: 0.05 is over 0.02" in text for text in warnings_of(folder))
    # The second iteration has the same tasks as the first.
    assert again["duplicates"] == 1.0


def test_gpu_hours_count_jobs_and_servers_where_the_config_names_them(folder: RunFolder) -> None:
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


def test_lists_and_tasks_show_demands_without_a_criterion_and_criteria_without_evidence(
    folder: RunFolder,
) -> None:
    """A judge said this of three tasks of iteration 1; it says nothing of others."""
    said = {"002": ((), ()), "003": (("the year of the bridge",), ("doc-003",)), "007": ((), ("doc-007",))}

    def told(made: Candidate) -> Candidate:
        if made.task is None or made.rubric is None:
            return made
        unmet, evidence = said.get(made.task.id[-3:], (None, None))
        first, *others = made.rubric.criteria
        found = first.model_copy(update={"evidence": evidence})
        rubric = made.rubric.model_copy(update={"unmet": unmet, "criteria": (found, *others)})
        return made.model_copy(update={"rubric": rubric})

    rewrite(folder.stage(1, Stage.TASKS).candidates, Candidate, told)
    for flaw, task, lack in (
        (Flaw.DEMAND, "task-1-003", "no criterion for: the year of the bridge"),
        (Flaw.EVIDENCE, "task-1-002", "(no evidence)"),
    ):
        listed = CliRunner().invoke(cli, ["tasks", "ls", str(folder.path), "--flaw", flaw.value]).stdout
        assert listed.count("\n") == 2 and task[-3:] in listed
        shown = CliRunner().invoke(cli, ["tasks", "show", str(folder.path), task]).stdout
        assert lack in shown and (flaw is not Flaw.DEMAND or "1 search)" in shown)


def test_tasks_that_ask_one_thing_of_different_names_have_one_pattern() -> None:
    def asked(facts: str, number: int) -> list[MadeTask]:
        names = (facts.split() * number)[:number]
        return [MadeTask(1, f"task-{row}", f"Report the {each} of P{row}.") for row, each in enumerate(names)]

    found = common_pattern([*asked("river", 50), *asked("emblem", 10)])
    assert found is not None and found.value == pytest.approx(50 / 60)
    assert found.about == "report the river of …" and len(found.behind) == 50
    spread = common_pattern(asked("river emblem year founder product", 60))
    assert spread is not None and spread.value == pytest.approx(0.2)


def test_a_sentence_is_said_twice_whatever_its_case_and_marks() -> None:
    for text, repeated in (
        ("It lies in Wend.  IT LIES, in Wend!", "it lies in wend"),
        ("It lies in Wend. It lies in Farrow.", ""),
        ("Yes. Yes. It is. It is.", ""),
        ("| --- | --- |\n| --- | --- |\n1.\n1.", ""),
        ("它位于北方。它位于北方。", "它 位 于 北 方"),
        ("At 3.5 km it ends. At 3.6 km it ends.", ""),
    ):
        assert repeated_sentence(text) == repeated
    # Words are counted without marks, too.
    assert word_count("The dog's 3 hind-legs, really!") == 5


OLD_WORLD = Path(__file__).resolve().parents[2] / "fixtures" / "old_world"


@pytest.fixture(scope="module")
def old_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `tests/fixtures/old_world`, unpacked."""
    folder = tmp_path_factory.mktemp("old-world") / "run"
    shutil.copytree(OLD_WORLD, folder)
    for packed in folder.rglob("*.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    return folder


@pytest.fixture(scope="module")
def checkups(old_world: Path) -> list[Checkup]:
    with RunReader(old_world) as reader:
        return examine(reader)


def test_a_learnt_habit_raises_its_warnings_and_no_others_and_they_name_tasks_that_show_it(
    old_world: Path, checkups: list[Checkup]
) -> None:
    assert [[found.name for found in checkup.warnings] for checkup in checkups] == [
        ["repeated_sentences"]
    ] * 2
    # The Solver gains all the same.
    gained = {signal.name: signal.value for signal in checkups[0].signals}["solver_gain"]
    assert gained == pytest.approx(0.254, abs=0.001)
    with RunReader(old_world) as reader:
        for found in (found for checkup in checkups for found in checkup.warnings):
            assert len(found.behind) == 5, found.warning
            for task in found.behind:
                record = reader.task(task.task_id, iteration=task.iteration)
                assert record.candidate.task is not None and record.candidate.task.text == task.task
    behind = {found.name: found.behind for found in checkups[0].warnings}
    for task in behind["repeated_sentences"]:
        *_, before, last = [part for part in task.shown.split(".") if part.strip()]
        assert before.strip() == last.strip()


def test_the_terminal_the_report_and_the_summary_show_the_warnings_with_their_tasks(
    old_world: Path, checkups: list[Checkup], tmp_path: Path
) -> None:
    folder = RunFolder(shutil.copytree(old_world, tmp_path / "old-world"))
    for iteration in (1, 2):
        manifest = StageManifest(stage="compare", iteration=iteration, spec_hash="0")
        publish_manifest(folder.stage(iteration, Stage.COMPARE).path, manifest)
    run = Run(load_config(None, ["name=old-world"]), folder, load_pack(shipped_prompts() / "embedded"))
    summary = summarise(run)
    expected = [(checkup.iteration, found) for checkup in checkups for found in checkup.warnings]
    assert [(each["signal"], each["text"]) for each in summary["warnings"]] == [
        (found.name, found.warning) for _, found in expected
    ]
    assert all(set(each) == {"iteration", "signal", "text", "behind"} for each in summary["warnings"])
    with RunReader(folder.path) as reader:
        text, page = "\n".join(text_of(run_sections(reader, examine(reader)))), render_report(reader)
        shown = "\n".join(text_of(ending_sections(run, reader)))
    for number, found in expected:
        first, *_, last = found.behind
        assert f"Iteration {number}: {found.warning}" in text and found.warning in shown
        assert first.task_id in text and first.task_id in shown and last.task_id in page


def test_the_page_links_every_warning_to_its_tasks(old_world: Path, checkups: list[Checkup]) -> None:
    run = ShownRun(old_world)
    assert run.checkups(wait=60)
    with TestClient(build_app(run, Site()), base_url="http://localhost") as opened:
        page = opened.get("/").text
        health = page[page.index('<section id="health">') :]
        links = re.findall(r'<a class="open" href="([^"]+)">', health)
        assert len(links) == sum(len(found.behind) for each in checkups for found in each.warnings)
        assert {link.split("/")[1] for link in links} == {"compare"}
        assert all(opened.get(link).status_code == 200 for link in {*links[:2], *links[-2:]})
