"""The command line: what each ending looks like from outside."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import yaml

from scope_selfplay.base.errors import ExitCode, JudgeError, RecordError, StorageError
from scope_selfplay.cli import cli, main
from scope_selfplay.plan.doctor import CAPABILITIES


class Ending(NamedTuple):
    code: int
    out: str
    err: str


class Shell:
    """Runs `scope` in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> Ending:
        self._monkeypatch.setattr(sys, "argv", ["scope", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Ending(code, *self._capsys.readouterr())


@pytest.fixture
def scope(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


def test_help_names_every_command(scope: Shell) -> None:
    ending = scope("--help")
    assert ending.code == 0
    assert [name for name in cli.commands if name not in ending.out] == []
    assert scope("--version").out.startswith("scope, version")


TRAINING = ["torch", "transformers", "trl"]
HEAVY = [*TRAINING, *"datasets numpy pydantic yaml jinja2 rich bm25s aiohttp asyncio".split()]


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        ("--help", HEAVY),
        *[
            pytest.param(command, TRAINING, marks=pytest.mark.integration)
            for command in ("config", "prompts check", "doctor --json")
        ],
    ],
)
def test_a_command_loads_nothing_heavy_that_it_does_not_need(
    command: str, heavy: list[str], tmp_path: Path
) -> None:
    code = (
        f"import sys; sys.argv = ['scope', *{command.split()!r}]\n"
        "from scope_selfplay.cli import main\n"
        "main()\n"
        f"print(sorted(set({heavy!r}) & set(sys.modules)), file=sys.stderr)\n"
    )
    command_line, env = [sys.executable, "-c", code], _environment()
    done = subprocess.run(command_line, capture_output=True, text=True, check=True, cwd=tmp_path, env=env)
    assert done.stderr.strip().splitlines()[-1] == "[]"


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


def test_a_config_prints_as_yaml_that_reads_back(scope: Shell) -> None:
    ending = scope("config", "--seed", "7", "--name", "2024", "--set", "solver.steps=3")
    assert ending.code == 0 and ending.err == ""
    settings = yaml.safe_load(ending.out)
    # A name that looks like a number is a name.
    assert (settings["seed"], settings["name"], settings["solver"]["steps"]) == (7, "2024", 3)


STOPPED = "scope: stopped; run the same command to go on\n"
FAULTS: list[tuple[BaseException, int, str]] = [
    (StorageError("disk full; make room"), 75, "scope: disk full; make room\n"),
    (JudgeError("too many"), 75, "scope: too many\n"),
    (RecordError("f:3: damaged"), 64, "scope: f:3: damaged\n"),
    (KeyboardInterrupt(), 130, STOPPED),
    (click.Abort(), 130, STOPPED),
    # What DuckDB makes of a Ctrl-C.
    (RuntimeError("Query interrupted"), 130, STOPPED),
    (
        OSError(28, "No space left on device"),
        75,
        "scope: No space left on device; make room, then run again\n",
    ),
    (ZeroDivisionError("ours"), 1, "ZeroDivisionError: ours"),
]


@pytest.mark.parametrize(("fault", "code", "text"), FAULTS, ids=[type(each[0]).__name__ for each in FAULTS])
def test_every_ending_has_its_exit_code(
    scope: Shell, monkeypatch: pytest.MonkeyPatch, fault: BaseException, code: int, text: str
) -> None:
    @click.command()
    def broken() -> None:
        raise fault

    monkeypatch.setitem(cli.commands, "broken", broken)
    ending = scope("broken")
    assert ending.code == code and text in ending.err
    assert ("Traceback" in ending.err) == (code == ExitCode.BUG)


def test_doctor_says_what_was_found_and_how_to_get_the_rest(
    scope: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A container on a large machine has no more than its limit.
    monkeypatch.setattr("scope_selfplay.plan.doctor.memory_limit", lambda: 3 << 30)
    findings = json.loads(scope("doctor", "--json").out)
    assert [each["what"] for each in findings if each["where"] == "memory"] == ["3 GiB"]
    assert {"torch", "GPU", *CAPABILITIES} <= {each["where"] for each in findings}
    assert all(each["what"] and (each["state"] == "ok" or each["advice"]) for each in findings)
    page = scope("doctor").out
    assert all(each["where"] in page for each in findings)


@pytest.mark.integration
def test_a_reader_that_goes_away_is_no_error_of_ours() -> None:
    code = "import sys; sys.argv = ['scope', 'prompts', 'show', 'wikipedia']; import scope_selfplay.cli as c; c.main()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.close()
        assert b"Traceback" not in running.stderr.read()


DROPPED = """
import os, signal, sys, time, click
from pydantic import BaseModel, field_serializer
from scope_selfplay.base.terminal import end_on_sigterm, run_command

def stop(*of):
    os.kill(os.getpid(), signal.{number})
    time.sleep(0.01)

class Ending:
    __del__ = stop

class Written(BaseModel):
    field: int = 0

    @field_serializer("field")
    def written(self, value):
        stop()

@click.command()
def work():
    end_on_sigterm()
    {ending}
    time.sleep(60)
    print("not stopped")

signal.signal(signal.SIGINT, signal.default_int_handler)
run_command(work, "scope")
"""


@pytest.mark.parametrize("ending", ["Ending()", "Written().model_dump_json()"])
@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_stop_in_the_middle_of_what_drops_it_stops_all_the_same(
    number: str, code: int, ending: str
) -> None:
    program = DROPPED.format(number=number, ending=ending)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == code and "Traceback" not in done.stderr and len(done.stderr.split("\n")) <= 3


def test_a_sigterm_stops_what_nobody_reads_any_more() -> None:
    program = DROPPED.format(number="SIGTERM", ending="print(flush=True)").replace(
        "time.sleep(60)", "\n    try: time.sleep(60)\n    except OSError: time.sleep(60)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout and running.stderr and running.stdout.readline()
        running.stderr.close()
        running.terminate()
        assert running.wait(50) == 143


LOADING = """
import sys
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
from scope_selfplay.__main__ import main
main()
"""


def test_a_ctrl_c_while_the_code_is_loaded_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "scope: stopped; run the same command to go on\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
def test_an_error_that_cannot_be_told_still_ends_with_its_code() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "scope_selfplay", "report", "no-such-run"]
        assert subprocess.run(command, stderr=full).returncode == 64


def test_a_run_of_one_process_is_not_looked_for_on_a_cluster(scope: Shell, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "run.yaml").write_text("name: demo\n")
    ending = scope("status", "demo", "--root", str(tmp_path))
    assert ending.code == 64 and f"`scope report {tmp_path / 'demo'}` shows it" in ending.err
