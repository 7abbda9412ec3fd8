"""The pages of docs/ stay true: what can be chosen or met has a name there, and what they name exists."""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

from benchmarks.faults.counting import FAULTS
from benchmarks.markdown import split_at
from benchmarks.self_play.page import sections
from retrieval.profiles import PROFILES
from scope_selfplay.config.judge import NoiseConfig
from scope_selfplay.config.run import ModelConfig, PartnersConfig
from scope_selfplay.config.training import DESIGNS, PRESETS, TrainConfig
from scope_selfplay.designs.answers import behaviour_metrics
from scope_selfplay.judge.questions import ROLE_OF_PROMPT
from scope_selfplay.rewards.measures import RolloutClock, joined_values
from scope_selfplay.training.job import group_metrics, row_metrics, update_metrics
from scope_selfplay.training.loss import PassTotals
from scope_selfplay.training.passes import RewardedRollout, RolloutShare, RowSize, TrainingRow
from tests.generated_tables import tables
from tests.unit.reward_designs.scripted import ScriptedJudge, reward, rollouts

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def choices(model: Any, name: str) -> Iterable[str]:
    return get_args(model.model_fields[name].annotation)


def of_training() -> list[str]:
    """The numbers that a training writes."""
    rollout = RewardedRollout([TrainingRow([1], [2], [1], [0.0])], 1.0, truncated=True)
    rows = row_metrics([rollout], rewrites_history=False)
    assert joined_values([rows]) == {"rows": 1.0, "split": 0.0, "truncated": 1.0}
    groups = group_metrics([[RolloutShare(1.0, True, (RowSize(2, 1),))]], [[0.0]])
    written = (
        rows,
        groups,
        update_metrics(PassTotals(*[0.0] * 8), 0.0),
        RolloutClock().seconds(),
        behaviour_metrics([]),
    )
    return [name for numbers in written for name in numbers]


OF_A_STEP = reward({"reward": "rubric"}, ScriptedJudge(), rollouts("1 1 1", "9 9 9")).metrics

NAMED: dict[tuple[str, str], Iterable[str]] = {
    ("how/judge.md", "`{}"): [*NoiseConfig.model_fields, *ROLE_OF_PROMPT],
    ("operate/serving.md", "`{}`"): choices(ModelConfig, "engine"),
    ("operate/serving.md", "partners.{}"): PartnersConfig.model_fields,
    ("operate/serving.md", "| `{}` |"): PROFILES,
    ("operate/serving.md", "{}`"): ("/retrieve", "/info", "/healthz", "/health", "/readyz", "/metrics"),
    ("how/rewards.md", "\n| `{}` |"): PRESETS,
    ("how/training.md", "`{}`"): choices(TrainConfig, "loss"),
    ("look-up/metrics.md", "`{}`"): [*of_training(), *OF_A_STEP],
}
"""By page and form."""


@pytest.mark.parametrize(("page", "form"), NAMED)
def test_a_page_names_everything(page: str, form: str) -> None:
    text, names = (DOCS / page).read_text(encoding="utf-8"), list(NAMED[page, form])
    assert names and [name for name in names if form.format(name) not in text] == []


def test_tables_of_pages_are_those_of_the_code() -> None:
    for (page, mark), table in tables().items():
        assert split_at(DOCS / "how" / page, mark)[1] == f"\n{table}\n", "python -m tests.generated_tables"


@pytest.mark.parametrize("design", DESIGNS)
def test_every_setting_of_a_design_says_what_it_means(design: str) -> None:
    for name, field in DESIGNS[design].model_fields.items():
        assert (field.description or "").endswith("."), f"{design}.{name} has no docstring that is a sentence"


PAPERS_PAGE = (DOCS / "how" / "papers.md").read_text(encoding="utf-8")
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
    assert section is not None, f"docs/how/papers.md has no section {paper!r}"
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


ARCHITECTURE = (DOCS / "how" / "architecture.md").read_text()
ROOMS = re.findall(r"^\| `(\w+)` \|", ARCHITECTURE, re.MULTILINE)
STATIONS = re.findall(r"^\d+\. `([\w.]+)`", ARCHITECTURE, re.MULTILINE)
PATHS = sorted(set(re.findall(r"`((?:[\w-]+/)+(?:[\w-]+\.\w+)?)`", ARCHITECTURE)))


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
    node: ast.AST = ast.parse((ROOT / "scope_selfplay" / room / f"{module}.py").read_text())
    for name in names:
        node = next(each for each in ast.walk(node) if getattr(each, "name", None) == name)


@pytest.mark.parametrize("path", PATHS)
def test_every_path_exists(path: str) -> None:
    assert (ROOT / path).exists() or (ROOT / "scope_selfplay" / path).exists(), path


@pytest.mark.parametrize(("section", "text"), sections().items())
def test_the_page_has_the_tables_of_what_is_kept(section: str, text: str) -> None:
    _, shown, _ = split_at(DOCS / "how" / "evidence" / "real-model.md", section)
    assert shown.strip() == text, "python -m benchmarks.self_play.page"


def test_the_page_shows_every_fault_survived() -> None:
    page = (DOCS / "operate" / "reliability.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    faults = [row for row in rows if len(row) == 9 and row[0].isdecimal()]
    assert [(int(row[0]), row[1]) for row in faults] == [
        (number, each.what) for number, each in FAULTS.items()
    ]
    for _, what, tried, survived, *harm, paid, tests in faults:
        assert tried == survived and set(harm) <= {"0", ""} and int(tests) > 0, what
        again, in_flight = map(int, re.findall(r"\d+", paid) or [0, 0])
        assert again <= in_flight, what
