"""Counts the faults that tests inject, and says at the end how many of each were survived.

`@pytest.mark.fault(16)` names the fault; a test that injects it more than once counts with the fixture `counts`, or
says how often with `record_property("injected", count)`. What a test does not count is survived when it passed.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.counting import FAULTS, ONLY, RESULTS, FaultCounts, read_results
from tests.clock import clock

__all__ = ["clock"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "fault(number): injects this fault; see FAULTS in benchmarks/faults/counting.py"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        marker = item.get_closest_marker("fault")
        if marker is not None:
            # It travels with the report, also from a worker of xdist.
            item.user_properties.append(("fault", marker.args[0]))
    if RESULTS in os.environ:
        asked = os.environ.get(ONLY) or ",".join(map(str, FAULTS))
        passed = {each["test"] for each in read_results(Path(os.environ[RESULTS])) if each["passed"]}
        left = [item for item in items if number_of(item) in asked.split(",") and item.nodeid not in passed]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(left)])
        items[:] = left


def number_of(item: pytest.Item) -> str:
    marker = item.get_closest_marker("fault")
    return str(marker.args[0]) if marker is not None else ""


@pytest.fixture
def counts(request: pytest.FixtureRequest) -> FaultCounts:
    """Of the fault that this test injects."""
    values: dict[str, int] = {}
    request.node.user_properties.append(("counts", values))
    return FaultCounts(values)


def result_of(report: pytest.TestReport) -> dict[str, Any] | None:
    """What became of the faults of a test that has run."""
    said: dict[str, Any] = dict(report.user_properties)
    if report.when != "call" or "fault" not in said or report.outcome == "skipped":
        return None
    tried = said.get("injected", 1)
    found = said.get("counts") or {"tried": tried, "survived": tried if report.passed else 0}
    found |= {"wrong": said["wrong"]} if "wrong" in said else {}
    return {"fault": said["fault"], "test": report.nodeid, "passed": report.passed, **found}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    file, result = os.environ.get(RESULTS), result_of(report)
    if file and result is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(file).open("a") as lines:
            print(json.dumps({**result, "seconds": round(report.duration, 1)}), file=lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    injected, survived = Counter[int](), Counter[int]()
    for outcome in ("passed", "failed"):
        for result in filter(None, map(result_of, terminalreporter.getreports(outcome))):
            injected[result["fault"]] += result.get("tried", 0)
            survived[result["fault"]] += result.get("survived", 0)
    if injected:
        terminalreporter.section("faults")
    for number in sorted(injected):
        line = f"{number} {FAULTS[number].what}: {injected[number]} injected, {survived[number]} survived"
        terminalreporter.line(line)
