"""Every page as a person meets it: clicked, typed and keyed through in Chromium, which reports what goes wrong."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from scope_selfplay.base.text import printable
from tests.browser.conftest import serve
from tests.unit.store.runs import write_run
from tests.unit.viewer.conftest import hostile_texts, poison

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1800)]
PATIENCE = 60_000


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A tab; whatever it complains of, and whatever it asks another host for, fails its test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE)
    tab = context.new_page()
    complaints: list[str] = []
    tab.on(
        "console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None
    )
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("dialog", lambda dialog: (complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
    tab.on("request", lambda sent: complaints.append(sent.url) if _is_foreign(sent.url) else None)
    yield tab
    context.close()
    assert complaints == []


def test_every_page_opens_from_the_menu_and_the_slash_key_searches(page: Any, address: str) -> None:
    page.goto(address)
    for name in ("Overview", "Tasks", "Compare", "Training"):
        page.click(f"header nav >> text={name}")
        assert page.locator("header nav [aria-current]").inner_text() == name
        assert page.locator("main h1").count() == 1
    page.keyboard.press("/")
    page.keyboard.type("zzz-nothing-like-this")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("text=zzz"))
    assert "No task matches" in page.locator("main").inner_text()


def test_keys_go_through_the_list_to_a_task_its_rollouts_and_its_neighbour(page: Any, address: str) -> None:
    page.goto(address + "tasks?status=accepted&iteration=1")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    chosen = page.locator(".row.chosen")
    assert chosen.count() == 1
    task = chosen.locator(".open").inner_text()
    page.keyboard.press("Enter")
    page.wait_for_selector("pre.task")
    assert page.locator("pre.task").inner_text() == task
    page.locator("table.matrix a.verdict").first.click()
    assert page.locator("li:target").count() == 1
    opened = page.locator("article.attempt details").first
    opened.locator("summary").first.click()
    assert opened.locator("ol.turns").is_visible()
    passage = opened.locator("details.passage")
    if passage.count():
        passage.first.locator("summary").click()
        assert passage.first.locator("pre").is_visible()
    first = page.url.partition("#")[0]
    page.keyboard.press("j")
    page.wait_for_function("was => !location.href.startsWith(was)", arg=first)
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("was => location.href.startsWith(was)", arg=first)
    page.keyboard.press("u")
    page.wait_for_selector("table.list")
    assert "status=accepted" in page.url


def test_hostile_texts_are_shown_as_text(page: Any, tmp_path: Path) -> None:
    folder, texts = write_run(tmp_path / "hostile"), hostile_texts()
    tried = [number for number in range(30) if number % 5 > 1]
    places = [(iteration, number) for iteration in range(3) for number in tried][: len(texts)]
    shown = [
        (place[0], poison(folder, place[0], text, place[1]), text)
        for place, text in zip(places, texts, strict=True)
    ]
    with serve(folder) as address:
        for iteration, task, text in shown:
            page.goto(f"{address}tasks/{iteration}/tasks/{task}")
            assert page.locator("script").count() == 1 and page.locator("main img").count() == 0
            assert page.locator("pre.task").evaluate("each => each.textContent") == printable(text)
        page.goto(f"{address}tasks")
        assert page.locator(".row").count() == 50


def _is_foreign(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme not in ("data", "about") and parts.hostname != "127.0.0.1"
