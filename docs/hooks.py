"""What the site takes from outside docs/: README.md, the page about prompt packs, commands, metrics of servers."""

import posixpath
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from prometheus_client import Metric

from retrieval.service import RetrieverMetrics
from scope_selfplay.cli import cli
from scope_selfplay.config.run import RunConfig
from scope_selfplay.driver.metrics import RunCollector
from scope_selfplay.inference.server import ModelMetrics
from scope_selfplay.judge.served import METRICS as JUDGE
from scope_selfplay.net.serve import ServerMetrics
from scope_selfplay.store.folder import RunFolder

ROOT = Path(__file__).parents[1]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
PAGES = {"README.md": "index.md", "prompts/README.md": "look-up/prompts.md"}
"""Path in the repository -> path on the site."""
WIDE = {"index.md": "navigation", "how/papers.md": "toc"}
"""Pages with wide tables, and what makes way for them."""
SERVERS = "<!-- servers -->"
LINK = re.compile(r"(?<=\]\()(?!https?:|#)[^)#\s]+")


def on_startup(**_: object) -> None:
    """mkdocs-click sees the commands that a group holds; some of ours are imported when they are asked for."""
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        cli.add_command(command, name)


def on_files(files: Files, config: MkDocsConfig) -> None:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links of the repository lead to the same page of the site, or into the repository."""
    place = page.file.src_uri
    page.meta["hide"] = [WIDE[place]] if place in WIDE else []
    source = {target: source for source, target in PAGES.items()}.get(place, f"docs/{place}")

    def moved(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[0]))
        if path not in PAGES and not path.startswith("docs/"):
            return f"{REPOSITORY}/blob/main/{path}"
        target = PAGES.get(path, path.removeprefix("docs/"))
        return posixpath.relpath(target, posixpath.dirname(place) or ".")

    return LINK.sub(moved, markdown).replace(SERVERS, "\n".join(table()))


def table() -> Iterator[str]:
    yield "| metric | kind | meaning |"
    yield "|---|---|---|"
    for metric in metrics():
        total = "_total" if metric.type == "counter" else ""
        yield f"| `{metric.name}{total}` | {metric.type} | {metric.documentation} |"


def metrics() -> Sequence[Metric]:
    servers = (ModelMetrics(), RetrieverMetrics(), ServerMetrics(JUDGE))
    served = [metric for each in servers for metric in each.registry.collect()]
    return [*RunCollector(RunFolder(Path("run")), RunConfig()).collect(), *served]
