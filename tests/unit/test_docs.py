"""The pages of docs/ stay true: what can be chosen or met has a name there, and what they name exists."""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import click
import pytest

from benchmarks.faults.counting import FAULTS, FaultCounts
from benchmarks.real_model.page import marks_around, sections
from retrieval.commands import build, serve_retriever
from retrieval.profiles import PROFILES
from retrieval.service import RetrieverMetrics
from scope_selfplay.config.judge import CallConfig, CanariesConfig, EndpointConfig, JudgeConfig, NoiseConfig
from scope_selfplay.config.rewards import DESIGNS, PRESETS
from scope_selfplay.config.run import ModelConfig, PartnersConfig
from scope_selfplay.config.training import TrainConfig
from scope_selfplay.designs.answers import behaviour_metrics
from scope_selfplay.inference import server
from scope_selfplay.inference.commands import serve_model
from scope_selfplay.judge.commands import judge, serve_judge
from scope_selfplay.judge.questions import ROLE_OF_PROMPT
from scope_selfplay.rewards.measures import RolloutClock, joined_values
from scope_selfplay.training.loss import PassTotals
from scope_selfplay.training.metrics import group_metrics, row_metrics, update_metrics
from scope_selfplay.training.passes import RolloutShare, RowSize
from scope_selfplay.training.rows import RewardedRollout, TrainingRow
from tests.unit.reward_designs.scripted import ScriptedJudge, reward, rollouts

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def options_of(*commands: click.Command) -> list[str]:
    opts = [option for command in commands for parameter in command.params for option in parameter.opts]
    return [option for option in opts if option.startswith("--")]


def metrics_of(exposed: bytes) -> list[str]:
    types = (line.split()[2] for line in exposed.decode().splitlines() if line.startswith("# TYPE"))
    return [name.removesuffix("_created") for name in types]


def choices(model: Any, name: str) -> Iterable[str]:
    return get_args(model.model_fields[name].annotation)


def of_training() -> list[str]:
    """Losses, and the numbers that a training writes."""
    rows = row_metrics([RewardedRollout([TrainingRow([1], [2], [1], [0.0])], 1.0, truncated=True)])
    assert joined_values([rows]) == {"rows": 1.0, "split": 0.0, "truncated": 1.0}
    groups = group_metrics([[RolloutShare(1.0, True, (RowSize(2, 1),))]], [[0.0]])
    written = (
        rows,
        groups,
        update_metrics(PassTotals(), 0.0),
        RolloutClock().seconds(),
        behaviour_metrics([]),
    )
    return [*choices(TrainConfig, "loss"), *(name for numbers in written for name in numbers)]


JUDGE_PARTS = (EndpointConfig, CallConfig, NoiseConfig, CanariesConfig)
OF_A_STEP = reward({"reward": "rubric"}, ScriptedJudge(), rollouts("1 1 1", "9 9 9")).metrics

NAMED: dict[tuple[str, str], Iterable[str]] = {
    ("judge.md", "`{}"): [
        *(f"judge.{name}" for name in JudgeConfig.model_fields),
        *(name for part in JUDGE_PARTS for name in part.model_fields),
        *ROLE_OF_PROMPT,
    ],
    ("judge.md", "{}"): options_of(serve_judge, *judge.commands.values()),
    ("serving.md", "`{}`"): [*options_of(serve_model), *choices(ModelConfig, "engine")],
    ("serving.md", "partners.{}"): PartnersConfig.model_fields,
    ("retrieval.md", "`{}"): [*options_of(build, serve_retriever), *(f"{name}`" for name in PROFILES)],
    ("retrieval.md", "{}"): metrics_of(RetrieverMetrics().render()),
    ("retrieval.md", "{}`"): ("/retrieve", "/info", "/healthz", "/health", "/readyz", "/metrics"),
    ("rewards.md", "\n| `{}` |"): [*PRESETS, *OF_A_STEP],
    ("training.md", "`{}`"): of_training(),
}
"""By page and form."""


@pytest.mark.parametrize(("page", "form"), NAMED)
def test_a_page_names_everything(page: str, form: str) -> None:
    text, names = (DOCS / page).read_text(encoding="utf-8"), list(NAMED[page, form])
    assert names and [name for name in names if form.format(name) not in text] == []


def test_every_path_and_metric_of_a_policys_server_is_in_the_docs() -> None:
    page, source = (DOCS / "serving.md").read_text(encoding="utf-8"), Path(server.__file__).read_text()
    paths = [line.split('"')[1] for line in source.splitlines() if "Route(" in line]
    assert len(paths) == 5 and [path for path in paths if f"{path}`" not in page] == []
    names = metrics_of(server.ModelMetrics().render())
    assert len(names) >= 5 and [name for name in names if name not in page] == []


@pytest.mark.parametrize("design", DESIGNS)
def test_every_setting_of_a_design_says_what_it_means(design: str) -> None:
    for name, field in DESIGNS[design].model_fields.items():
        assert (field.description or "").endswith("."), f"{design}.{name} has no docstring that is a sentence"


PAPERS_PAGE = (DOCS / "papers.md").read_text(encoding="utf-8")
PAPERS = ("SCOPE", "Tournament-GRPO", "ArenaRL", "Reasoning Arena")
HEADER = ["mechanism", "paper", "code", "test", "deviation"]


class Row(NamedTuple):
    """One mechanism; `code` and `test` are what stands between backticks in these cells."""

    paper: str
    mechanism: str
    code: list[str]
    test: list[str]
    deviation: str


def rows_of(paper: str, page: str = PAPERS_PAGE) -> Iterator[Row]:
    section = re.search(rf"^## {re.escape(paper)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert section is not None, f"docs/papers.md has no section {paper!r}"
    header, _, *lines = [line for line in section[1].splitlines() if line.startswith("|")]
    assert _cells(header) == HEADER, paper
    for line in lines:
        cells = _cells(line)
        assert len(cells) == len(HEADER), f"{paper}: {line}"
        mechanism, _, code, test, deviation = cells
        yield Row(paper, mechanism, re.findall(r"`([^`]+)`", code), re.findall(r"`([^`]+)`", test), deviation)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


@cache
def names_of_tests(file: str) -> frozenset[str]:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def faults_of(row: Row) -> list[str]:
    """What is wrong with a row, in words; empty where nothing is."""
    explained = row.deviation not in ("", "none")
    faults = [f"there is no {file}" for file in row.code if not (ROOT / file).exists()]
    for place in row.test:
        file, _, name = place.partition("::")
        if not (ROOT / file).is_file():
            faults.append(f"there is no {file}")
        elif name and name not in names_of_tests(file):
            faults.append(f"{file} has no test {name}")
    if not (row.code and row.test) and not explained:
        faults.append("no code or no test, and no reason")
    if not row.deviation:
        faults.append("the deviation is empty; write none")
    return faults


ROWS = [row for paper in PAPERS for row in rows_of(paper)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.paper}: {row.mechanism}")
def test_a_mechanism_is_where_the_page_says(row: Row) -> None:
    assert faults_of(row) == []


@pytest.mark.parametrize("paper", PAPERS)
def test_every_paper_has_mechanisms_and_none_twice(paper: str) -> None:
    mechanisms = [row.mechanism for row in rows_of(paper)]
    assert mechanisms and len(set(mechanisms)) == len(mechanisms)


ARCHITECTURE = (DOCS / "architecture.md").read_text()
LIBRARY = ROOT / "scope_selfplay"
ROOMS = re.findall(r"^\| `(\w+)` \|", ARCHITECTURE, re.MULTILINE)
STATIONS = re.findall(r"^\d+\. `([\w.]+)`", ARCHITECTURE, re.MULTILINE)
PATHS = sorted(set(re.findall(r"`((?:[\w-]+/)+(?:[\w-]+\.\w+)?)`", ARCHITECTURE)))
TWO_PAGES = 1_200


def test_every_room_is_described_and_stands_below_what_may_import_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each.get("containers") == ["scope_selfplay"])
    height = {name: row for row, names in enumerate(reversed(layers)) for name in names.split(" | ")}
    order = [height.pop(room) for room in ROOMS]
    assert order == sorted(order)
    assert set(height) == {"testing", "cli", "__main__"}


@pytest.mark.parametrize("station", STATIONS)
def test_every_station_of_the_main_path_is_there(station: str) -> None:
    room, module, *names = station.split(".")
    node: ast.AST = ast.parse((LIBRARY / room / f"{module}.py").read_text())
    for name in names:
        node = next(each for each in ast.walk(node) if getattr(each, "name", None) == name)


@pytest.mark.parametrize("path", PATHS)
def test_every_path_exists(path: str) -> None:
    assert (ROOT / path).exists() or (LIBRARY / path).exists(), path


def test_the_page_fits_on_two() -> None:
    assert len(STATIONS) == 7 and len(ARCHITECTURE.split()) <= TWO_PAGES


@pytest.mark.parametrize(("section", "text"), sections().items())
def test_the_page_has_the_tables_of_what_is_kept(section: str, text: str) -> None:
    opening, closing = marks_around(section)
    shown = (DOCS / "real-model.md").read_text(encoding="utf-8").partition(opening)[2].partition(closing)[0]
    assert shown.strip() == text, "python -m benchmarks.real_model --parts --keep writes the page"


def test_records_that_are_lost_doubled_and_changed_are_told_apart() -> None:
    counts = FaultCounts({})
    expected = {"a.jsonl": b"1\n2\n3\n4\n", "weights": b"x"}
    counts.compare(expected, expected, tried=3)
    counts.compare(expected, {"a.jsonl": b"1\n1\n2\n9\n", "weights": b"y"})
    assert counts.values == {"tried": 4, "survived": 3, "lost": 1, "duplicated": 1, "wrong": 2}
    with pytest.raises(AssertionError):
        counts.check()


def test_the_page_shows_every_fault_survived() -> None:
    page = (DOCS / "reliability.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    faults = [row for row in rows if len(row) == 9 and row[0].isdecimal()]
    assert [(int(row[0]), row[1]) for row in faults] == [
        (number, each.what) for number, each in FAULTS.items()
    ]
    for _, what, tried, survived, *harm, paid, tests in faults:
        assert tried == survived and set(harm) <= {"0", ""} and int(tests) > 0, what
        again, in_flight = map(int, re.findall(r"\d+", paid) or [0, 0])
        assert again <= in_flight, what
