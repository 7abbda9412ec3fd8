"""What every page has to be to everybody: as wide as its window, legible, named for a screen reader; and its pictures.

docs/images/ holds pictures that these tests take: SCOPE_SCREENSHOTS=docs/images makes them anew. What a picture shows
stands beside it, and a page that shows something else now fails: a picture cannot grow old unseen.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.store.folder import RunFolder
from tests.browser.conftest import serve
from tests.unit.benchmarking.test_folder import write_evaluation
from tests.unit.store.runs import write_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1800)]
WIDTHS = (390, 768, 1280)
IMAGES = Path(os.environ.get("SCOPE_SCREENSHOTS") or Path(__file__).parents[2] / "docs" / "images")
SHOWN = IMAGES / "shown.json"
"""Of every picture its checksum, and the headings of what it shows."""
PATIENCE = 120_000
MOST_BYTES = 150_000


@pytest.fixture(scope="module")
def runs(mini_run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a folder with two runs."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(mini_run.path, folder / "one")
    for file in (folder / "one").rglob("metrics.jsonl"):
        # A curve has two points.
        (row,) = map(json.loads, file.read_text().splitlines())
        file.write_text("".join(json.dumps({**row, "step": step}) + "\n" for step in (1, 2)))
    write_run(folder / "other")
    with serve(RunFolder(folder)) as served:
        yield served


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("evaluation") / "tiny"
    write_evaluation(folder)
    with serve(RunFolder(folder)) as served:
        yield served


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE)
    # A page that loads again would do so in the middle of an examination.
    context.route(lambda url: True, _without_refresh)
    yield context.new_page()
    context.close()


def _without_refresh(route: Any) -> None:
    if route.request.resource_type != "document":
        return route.continue_()
    got = route.fetch(timeout=PATIENCE)
    return route.fulfill(response=got, body=got.text().replace('http-equiv="refresh"', ""))


@pytest.mark.parametrize("site", ["address", "runs", "evaluation"])
def test_no_page_is_wider_than_its_window_and_axe_finds_nothing_serious(
    page: Any, site: str, request: pytest.FixtureRequest
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    wrong, seen = [], list(_pages(page, request.getfixturevalue(site)))
    for url in seen:
        page.goto(url)
        # What is folded away counts, too.
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            wide = page.evaluate("document.documentElement.scrollWidth")
            wrong += [f"{url}: {wide} pixels in a window of {width}"] if wide > width else []
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for found in axe.run(page).response["violations"]:
                if found["impact"] in ("serious", "critical"):
                    node = found["nodes"][0]
                    wrong.append(
                        f"{url} ({scheme}): {found['id']}: {node['html'][:200]}: {node['failureSummary']}"
                    )
    assert not wrong, "\n".join(wrong)
    assert len(seen) >= {"address": 8, "runs": 3, "evaluation": 3}[site], seen


def test_the_overview_answers_what_one_asks_first_without_scrolling(page: Any, address: str) -> None:
    page.goto(address)
    while not page.locator("#health table").count():
        page.reload()
    tiles = page.locator(".first .tile")
    asked = ["Does it learn?", "What is made?", "What is wrong?", "What next?"]
    assert tiles.locator("h2").all_inner_texts() == asked
    assert all(box["y"] + box["height"] <= 800 for box in (tile.bounding_box() for tile in tiles.all()))
    assert all(tile.locator("b").inner_text().strip() for tile in tiles.all())
    assert not page.locator("#health table").first.is_visible()
    page.locator("#health summary", has_text="Every signal").click()
    assert page.locator("#health table").first.is_visible()
    page.locator("#health summary", has_text="Every signal").click()
    _picture(page, "overview")


def test_a_document_leads_to_its_tasks_and_says_where_they_are_from(page: Any, address: str) -> None:
    page.goto(f"{address}tasks?status=accepted&iteration=1")
    page.locator(".row a[href*=documents]").first.click()
    page.wait_for_selector("pre.document")
    assert page.locator("mark").count() and page.locator("article .why").count()
    page.locator("mark + sup a").first.click()
    assert page.locator("article:target .chip").count() == 1
    page.locator("article .open").first.click()
    assert page.locator("pre.task").is_visible()
    _picture(page, "task")


def test_curves_have_names_with_units(page: Any, runs: str) -> None:
    page.goto(f"{runs}runs/one/training")
    names = page.locator("figcaption").all_text_contents()
    assert len(names) > 20 and [name for name in names if not re.fullmatch(r".+ \(.+\)", name)] == []


def test_the_runs_of_a_folder_stand_beside_each_other_and_lead_to_their_pages(page: Any, runs: str) -> None:
    page.goto(runs)
    assert page.locator(".row .open").all_inner_texts() == ["one", "other"]
    page.click("text=Compare")
    heads = page.locator("#iteration-1 thead").first.inner_text().split()
    assert heads == ["one", "other"]
    page.click("header nav >> text=Runs")
    page.click(".row .open >> text=one")
    page.click("header nav >> text=Tasks")
    assert "/runs/one/tasks" in page.url and page.locator(".row").count()
    page.click("text=All runs")
    assert page.locator("h1").inner_text() == "Runs"


def _pages(page: Any, served: str) -> Iterator[str]:
    """Every page of the menu, and the first page that the rows of each lead to."""
    page.goto(served)
    menu = "nav[aria-label=Pages] a"
    for url in page.locator(menu).evaluate_all("all => all.map(each => each.href)"):
        yield url
        page.goto(url)
        for below in (page.locator(".row .open"), page.locator(".row a[href*=documents]")):
            if below.count():
                yield below.first.evaluate("each => each.href")


def _picture(page: Any, name: str) -> None:
    """Takes the picture where SCOPE_SCREENSHOTS names a folder, and holds the one of the documentation to the page."""
    heads = "header nav a, main h2, main th[scope=col], main caption"
    texts = page.locator(heads).all_inner_texts()
    # Numbers, and what follows a colon, are this run's own.
    shown = [*dict.fromkeys(re.sub(r"\d+", "", text.partition(":")[0]).strip() for text in texts)]
    known = json.loads(SHOWN.read_text()) if SHOWN.exists() else {}
    if "SCOPE_SCREENSHOTS" in os.environ:
        page.evaluate("scrollTo(0, 0)")
        picture = page.screenshot(path=IMAGES / f"{name}.png")
        known[name] = {"sha256": hashlib.sha256(picture).hexdigest(), "shows": shown}
        SHOWN.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    picture = (IMAGES / f"{name}.png").read_bytes()
    assert len(picture) < MOST_BYTES
    assert known[name]["sha256"] == hashlib.sha256(picture).hexdigest()
    assert known[name]["shows"] == shown, (
        "make its picture anew: SCOPE_SCREENSHOTS=docs/images make test-browser"
    )
