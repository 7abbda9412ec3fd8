"""A real run whose Solver learnt to add one sentence to every answer: health says so, and names the tasks."""

import re
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from scope_selfplay.config.load import load_config
from scope_selfplay.prompts.folder import load_pack, shipped_prompts
from scope_selfplay.report.app import Site, build_app
from scope_selfplay.report.health import examine
from scope_selfplay.report.overview import ending_sections, run_sections, summarise
from scope_selfplay.report.pages import ShownRun
from scope_selfplay.report.rendering import render_report
from scope_selfplay.report.sections import text_of
from scope_selfplay.report.signals import Checkup
from scope_selfplay.run.run import Run
from scope_selfplay.store.folder import RunFolder, Stage, StageManifest, publish_manifest
from scope_selfplay.store.reader import RunReader

pytestmark = pytest.mark.integration

LEARNT = {"kind_gain", "repeated_sentences"}


@pytest.fixture(scope="module")
def checkups(old_world: Path) -> list[Checkup]:
    with RunReader(old_world) as reader:
        return examine(reader)


def test_a_learnt_habit_raises_its_warnings_and_no_others(checkups: list[Checkup]) -> None:
    assert [{found.name for found in checkup.warnings} for checkup in checkups] == [LEARNT] * 2
    # The Solver gains all the same.
    gained = {signal.name: signal.value for signal in checkups[0].signals}["solver_gain"]
    assert gained == pytest.approx(0.254, abs=0.001)


def test_every_warning_names_tasks_of_the_run_in_which_it_is_seen(
    old_world: Path, checkups: list[Checkup]
) -> None:
    with RunReader(old_world) as reader:
        for checkup in checkups:
            for found in checkup.warnings:
                assert len(found.behind) == 5, found.text
                for task in found.behind:
                    record = reader.task(task.task_id, iteration=task.iteration)
                    assert record.candidate.task is not None and record.candidate.task.text == task.task


def test_the_answers_behind_a_warning_do_what_it_says(checkups: list[Checkup]) -> None:
    (checkup, _) = checkups
    behind = {found.name: found.behind for found in checkup.warnings}
    assert all(" lies in " in task.shown for task in behind["kind_gain"])
    for task in behind["repeated_sentences"]:
        *_, before, last = [part for part in task.shown.split(".") if part.strip()]
        assert before.strip() == last.strip()


def test_the_terminal_and_the_report_show_the_warnings_with_their_tasks(
    old_world: Path, checkups: list[Checkup]
) -> None:
    with RunReader(old_world) as reader:
        text, page = "\n".join(text_of(run_sections(reader, examine(reader)))), render_report(reader)
    for number, found in ((checkup.iteration, found) for checkup in checkups for found in checkup.warnings):
        assert f"Iteration {number}: {found.warning}" in text
        assert found.behind[0].task_id in text and found.behind[4].task_id in page


def test_the_summary_keeps_the_warnings_and_prints_them(
    old_world: Path, checkups: list[Checkup], tmp_path: Path
) -> None:
    folder = RunFolder(shutil.copytree(old_world, tmp_path / "old-world"))
    for iteration in (1, 2):
        manifest = StageManifest(stage="compare", iteration=iteration, spec_hash="0")
        publish_manifest(folder.stage(iteration, Stage.COMPARE).path, manifest)
    run = Run(load_config(None, ["name=old-world"]), folder, load_pack(shipped_prompts() / "embedded"))
    summary = summarise(run)
    expected = [found for checkup in checkups for found in checkup.warnings]
    assert [(each["signal"], each["text"]) for each in summary["warnings"]] == [
        (found.name, found.warning) for found in expected
    ]
    assert all(set(each) == {"iteration", "signal", "text", "behind"} for each in summary["warnings"])
    with RunReader(folder.path) as reader:
        shown = "\n".join(text_of(ending_sections(run, reader)))
    assert all(found.warning in shown and found.behind[0].task_id in shown for found in expected)


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
