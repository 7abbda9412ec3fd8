"""Counts the faults that tests inject, and says at the end how many of each were survived.

`@pytest.mark.fault(16)` names the fault; a test that injects it more than once says how often with
`record_property("injected", count)`. A fault is survived when the test that injected it passed.
"""

from collections import Counter
from collections.abc import Sequence

import pytest

FAULTS = {
    12: "two controllers at once, an old leader that wakes up",
    13: "the controller killed around an API call",
    14: "API calls that fail, also after they took effect",
    15: "watches that expire, end, hang or lie",
    16: "pods that fail, are lost or never start",
    17: "Jobs that the cluster or somebody deletes",
    18: "clocks that are skewed or step back",
    19: "settings or prompts edited in mid-run",
    20: "one of several ranks lost",
    21: "a server pod that does not end",
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(number): injects this fault; see FAULTS in tests/conftest.py")


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        marker = item.get_closest_marker("fault")
        if marker is not None:
            # It travels with the report, also from a worker of xdist.
            item.user_properties.append(("fault", marker.args[0]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    injected, survived = Counter[int](), Counter[int]()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            said = dict(report.user_properties)
            if report.when == "call" and "fault" in said:
                injected[said["fault"]] += said.get("injected", 1)
                survived[said["fault"]] += said.get("injected", 1) if outcome == "passed" else 0
    if injected:
        terminalreporter.section("faults")
    for number in sorted(injected):
        line = f"{number} {FAULTS[number]}: {injected[number]} injected, {survived[number]} survived"
        terminalreporter.line(line)
