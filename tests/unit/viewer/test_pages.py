"""Every page of a run: what it shows, that it shows it as text, and what it answers to a question it cannot answer."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.intervals import shown
from scope_selfplay.base.text import printable
from scope_selfplay.base.values import Comparison, Grade, Rollout
from scope_selfplay.cli import cli
from scope_selfplay.config.load import load_config
from scope_selfplay.evaluation.ratings import GradedAnswers, rate
from scope_selfplay.report import pages
from scope_selfplay.report.app import HEADERS, Site, build_app
from scope_selfplay.report.pages import ShownRun, ShownRuns
from scope_selfplay.store.files import read_records, write_atomic
from scope_selfplay.store.folder import RunFolder, Stage
from tests.unit.store.runs import finish, write_run
from tests.unit.viewer.conftest import MARK, hostile_texts, viewed

pytestmark = pytest.mark.integration

HOSTILE_TASK = "/tasks/1/tasks/candidate-1-tasks-002"
PAGES = (
    "/",
    "/tasks",
    "/tasks?stage=all&status=accepted&sort=mean&desc=1&size=5&page=2",
    HOSTILE_TASK,
    "/tasks/1/tasks/candidate-1-tasks-000",
    "/compare",
    "/compare/task-0-002?a=S_0&b=S_1",
    "/training",
    "/documents",
    "/documents/doc-002",
)


class Elements(HTMLParser):
    """The elements and attributes of a page, and whether its tags nest."""

    VOID = frozenset("meta link input br img hr".split())

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_sound_and_runs_no_script_but_its_own(client: TestClient, path: str) -> None:
    got = client.get(path)
    assert got.status_code == 200
    page = Elements(got.text)
    assert page.names.count("script") == 1 and "img" not in page.names
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "style"]
    assert all(got.headers[name] == value for name, value in HEADERS.items())
    addresses = [value for name, value in page.attributes if name in ("href", "src", "action")]
    assert page.names.count("th") == sum(name == "scope" for name, _ in page.attributes)
    assert re.findall(r"<tr[^>]*>\s*<td[^>]*>", got.text) == []
    assert addresses and all(not urlsplit(each).netloc and not urlsplit(each).scheme for each in addresses)


def test_the_policy_allows_nothing_but_our_own_style_script_and_forms() -> None:
    parts = dict(part.split(" ", 1) for part in HEADERS["content-security-policy"].split("; "))
    assert parts.pop("default-src") == "'none'"
    assert parts.pop("script-src") == parts.pop("style-src") == "'self'"
    assert set(parts.values()) == {"'self'", "'none'"}


def test_what_models_wrote_is_shown_as_text_in_every_place(client: TestClient) -> None:
    task = Elements(client.get(HOSTILE_TASK).text)
    # The task, the document's title and text, a gate, two criteria with their dimension, and per rollout: answer,
    # thinking, query, passage; and the judge's word on each criterion.
    assert task.text.count(MARK) > 30 and "{{ 7 * 7 }}" in task.text
    assert "characters 3 to 1,234 of its document" in task.text and "With passages open" in task.text
    assert "\x1b" not in task.text and "\u202e" not in task.text and "\\x1b[2J" in task.text
    assert all(printable(each) in task.text for each in hostile_texts())
    for path in ("/tasks?iteration=1", "/documents/doc-002"):
        listed = Elements(client.get(path).text).text
        assert f"source: {printable(hostile_texts()[0])}" in listed and "\x1b" not in listed, path
    for path in ("/compare/task-0-002?a=S_0&b=S_1", "/documents"):
        assert MARK in Elements(client.get(path).text).text
    searched = {"text": '"><script>alert(3)</script>\x00\ud800'.encode("utf-8", "replace")}
    assert "<script>alert(3)" not in client.get("/tasks", params=searched).text


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/tasks?reason=bogus", 400, "reason='bogus'"),
        ("/tasks?low=nan", 400, "low='nan'"),
        ("/tasks?page=0", 400, "page='0'"),
        ("/tasks?sort=mean;drop", 400, "sort='mean;drop'"),
        ("/tasks?raeson=rubric", 400, "did you mean"),
        ("/tasks?text=" + "a" * 501, 400, "text="),
        ("/compare?a=S_9", 400, "S_9: has no held-out answers; checkpoints that have: S_0, S_1, S_2"),
        ("/nowhere", 404, "Not Found"),
        ("/tasks/1/tasks/none", 404, "has no candidate none"),
        ("/tasks/1/nostage/x", 404, "nostage is not a stage"),
        ("/compare/none", 404, "has no candidate none"),
        ("/documents/none", 404, "not in the run's corpus.jsonl"),
        ("/static/../cli.py", 404, "Not Found"),
    ],
)
def test_a_bad_question_and_what_is_not_there_are_pages_that_say_so(
    client: TestClient, path: str, status: int, said: str
) -> None:
    got = client.get(path)
    assert got.status_code == status and got.headers["content-security-policy"]
    assert said in Elements(got.text).text


def test_a_list_of_documents_says_what_became_of_each_and_leads_to_it(client: TestClient) -> None:
    page = client.get("/").text
    assert 'href="/documents"' in page
    rows = re.findall(
        r'href="/documents/(doc-\d+)">.*?number">(\d+)</td>.*?number">(\d+)<', client.get("/documents").text
    )
    assert rows and [row[0] for row in rows if row[1] != "0"], rows
    for name, accepted, rejected in rows:
        made = int(accepted) + int(rejected)
        assert f"{accepted} of {made} candidates accepted" in client.get(f"/documents/{name}").text


def test_a_lost_file_of_a_finished_stage_is_named_and_other_pages_go_on(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo")
    for number in (0, 1):
        finish(run, number, Stage.TASKS)
    with viewed(run.path) as opened:
        (lost := run.stage(1, Stage.TASKS).path / "rollouts.parquet").unlink()
        got = opened.get("/tasks/1/tasks/candidate-1-tasks-000")
        assert got.status_code == 404 and f"{lost} was removed" in got.text and "restore it" in got.text
        assert opened.get("/tasks").status_code == opened.get("/training").status_code == 200


def test_a_damaged_record_is_a_page_that_names_it(folder: RunFolder, tmp_path: Path) -> None:
    copy = RunFolder(shutil.copytree(folder.path, tmp_path / "demo"))
    file = copy.stage(1, Stage.TASKS).candidates
    file.write_text(file.read_text().replace('"gate_source"', '"bogus"', 1))
    with viewed(copy.path) as opened:
        for path in ("/", "/tasks?iteration=1", "/tasks/1/tasks/candidate-1-tasks-001"):
            got = opened.get(path)
            assert got.status_code == 500 and "bogus" in Elements(got.text).text, path
            assert "iteration 1, tasks" in got.text
        assert opened.get("/tasks?iteration=2").status_code == 200


def test_our_own_fault_is_a_page_without_a_trace(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run: ShownRun, given: Any) -> pages.Page:
        raise ZeroDivisionError("secret of the house")

    monkeypatch.setitem(pages.OF_RUN, "/training", broken)
    with viewed(folder.path, raise_server_exceptions=False) as opened:
        got = opened.get("/training")
        assert got.status_code == 500 and "could not be made" in Elements(got.text).text
        assert "secret" not in got.text and "Traceback" not in got.text
        assert all(got.headers[name] == value for name, value in HEADERS.items())
        assert opened.get("/tasks").status_code == 200


def test_a_bin_of_the_scores_leads_to_the_tasks_that_it_counts(client: TestClient) -> None:
    bins = re.findall(
        r'href="(/tasks\?[^"]*low=[^"]*)">[^<]*</a></th><td class="number">([\d,]+)<', client.get("/").text
    )
    assert len(bins) >= 20
    for address, count in bins:
        listed = client.get(address.replace("&amp;", "&") + "&size=1").text
        assert re.search(r"<h1>Tasks <span class=\"dim\">([\d,]+)</span>", listed)[1] == count  # type: ignore[index]


def test_everything_works_under_a_base_path_stripped_or_not(folder: RunFolder) -> None:
    site = Site(base="/runs/demo", hosts=("viewer.example.org",))
    with TestClient(build_app(ShownRun(folder.path), site), base_url="http://viewer.example.org") as opened:
        for path in ("/runs/demo/tasks", "/tasks"):
            page = Elements(opened.get(path).text)
            addresses = [value for name, value in page.attributes if name in ("href", "src", "action")]
            assert all(each.startswith(("/runs/demo/", "#")) for each in addresses)
            assert all(opened.get(each).status_code == 200 for each in addresses if "/static/" in each)
        assert opened.get("/runs/demo").status_code == 200 and opened.get("/runs/demonic").status_code == 404


def test_a_base_path_that_is_none_is_refused(folder: RunFolder) -> None:
    for base in ("/a?b", "/a b", "//x//y", '/"'):
        done = CliRunner().invoke(cli, ["view", str(folder.path), "--base-path", base])
        assert isinstance(done.exception, ConfigError), base


def test_only_known_host_names_are_answered_and_nothing_can_be_posted(client: TestClient) -> None:
    for host, status in {"evil.example.org": 421, "127.0.0.1:8080": 200, "[::1]:8080": 200}.items():
        assert client.get("/healthz", headers={"host": host}).status_code == status
    assert client.post("/tasks").status_code == 405


def test_a_folder_of_runs_says_what_each_came_to_and_opens_it(folder: RunFolder, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(folder.path, tmp_path / name)
    (tmp_path / "two" / "run.yaml").write_text("name: demo\nseed: 8\n")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.yaml").write_text("- no run\n")
    app = build_app(ShownRuns(tmp_path), Site(base="/all"))
    with TestClient(app, base_url="http://localhost") as opened:
        listed = opened.get("/all/").text
        assert "24 of 60" in listed and "40 %" in listed and "not a run config" in listed
        assert 'href="/all/runs/one/"' in listed and "iteration 0, tasks" in listed
        for path in ("/all/runs/one/", "/runs/one/tasks", "/all/runs/two/documents/doc-002"):
            got = opened.get(path)
            assert got.status_code == 200 and 'href="/all/"' in got.text, path
        both = Elements(opened.get("/compare?a=one&b=two").text)
        assert re.search(r"seed\s*7\s*8", both.text) and "Ended as" in both.text
        leads = [value for name, value in both.attributes if name == "href" and value[0] != "#"]
        assert [each for each in leads if opened.get(each).status_code != 200] == []
        assert opened.get("/runs/none/").status_code == opened.get("/compare?a=none").status_code == 404
        shutil.rmtree(tmp_path / "one")
        assert opened.get("/runs/one/").status_code == 404 and ">one<" not in opened.get("/").text


@pytest.mark.parametrize("evidence", ["ratings", "scores"])
def test_the_overview_shows_the_interval_that_rules(tmp_path: Path, evidence: str) -> None:
    run, answers = write_run(tmp_path / "demo"), dict[str, GradedAnswers]()
    write_atomic(run.config, f"name: demo\nseed: 7\ncompare: {{evidence: {evidence}}}\n")
    for number in (0, 1):
        stage = run.stage(number, Stage.COMPARE)
        tried = {each.subject_id: each for each in read_records(stage.rollouts, Rollout)}
        graded = dict(zip(tried, read_records(stage.grades, Grade), strict=True))
        answers[f"S_{number}"] = GradedAnswers(tried, graded)
    met, settings = read_records(stage.comparisons, Comparison), load_config(run.config).compare
    found = rate([], answers, met, starts=["S_0"], settings=settings, seed=7)
    write_atomic(stage.ratings, found.model_dump_json())
    ruled = found.gain if evidence == "scores" else found.rating_gain
    assert ruled and shown(ruled, sign=True) in found.reason
    text = viewed(run.path).get("/").text
    assert f"{ruled.value:+.3f}<" in text and "{:+.3f} to {:+.3f}".format(*ruled.ends) in text


def test_files_that_go_one_by_one_while_a_run_is_viewed_are_no_fault_of_ours(
    folder: RunFolder, tmp_path: Path
) -> None:
    copy = RunFolder(shutil.copytree(folder.path, tmp_path / "demo"))
    for iteration, stage in ((0, Stage.TASKS), (1, Stage.TASKS), (1, Stage.COMPARE)):
        finish(copy, iteration, stage)
    files = sorted(
        (path for path in copy.path.rglob("*") if path.is_file()), key=lambda path: path.name[::-1]
    )
    with viewed(copy.path) as opened:
        assert opened.get("/tasks").status_code == 200
        for row, file in enumerate(files):
            file.unlink()
            got = opened.get(PAGES[row % len(PAGES)])
            # A stage that lost a file, while the run is there, is damage that the page names.
            assert got.status_code < 500 or "was removed since" in got.text, (
                f"{file}: {Elements(got.text).text[100:600]}"
            )
