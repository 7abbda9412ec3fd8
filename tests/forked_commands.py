"""`scope` and `python -m jobs` in forks of one process that has their libraries (benchmarks.forked)."""

import sys
from collections.abc import Sequence

from scope_selfplay.base.terminal import end_on_sigterm, run_command


def preload() -> None:
    import tests.integration.loop.libraries  # noqa: F401


def run(arguments: Sequence[str]) -> None:
    """The first word is the program, `scope` or `jobs`."""
    from jobs.__main__ import jobs
    from scope_selfplay.cli import cli

    program = sys.argv[0] = arguments[0]
    sys.argv[1:] = arguments[1:]
    if program == "jobs":
        end_on_sigterm()
    run_command(*((jobs, "python -m jobs") if program == "jobs" else (cli, "scope")))
