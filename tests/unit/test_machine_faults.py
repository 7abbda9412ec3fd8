"""A fault of the machine ends with one line, whatever library met it and however deep; a bug of ours stays one."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scope_selfplay.base.errors import ExitCode, machine_fault
from tests.exported_run import write_finished_run

REPOSITORY = Path(__file__).resolve().parents[2]
# What the libraries say, word for word.
SAFETENSORS = "Error while serializing: I/O error: No space left on device (os error 28)"
TORCH = "[enforce fail at inline_container.cc:672] . unexpected pos 320 vs 214"
TORCH_WRITER = "PytorchStreamWriter failed writing file data/0: file write failed"
DUCKDB = 'IO Error: Could not write file "/t/x.tmp": No space left on device'


@pytest.mark.parametrize("text", [SAFETENSORS, TORCH, TORCH_WRITER, DUCKDB])
def test_a_full_disk_is_known_by_what_libraries_say(text: str) -> None:
    fault = machine_fault(RuntimeError(text))
    assert fault is not None and fault.exit_code == ExitCode.OUTSIDE
    assert str(fault) == "No space left on device; make room, then run again"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        *[(each, ExitCode.OUTSIDE) for each in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)],
        *[(each, ExitCode.OUTSIDE) for each in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE)],
        *[(each, ExitCode.USER) for each in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)],
    ],
)
def test_the_systems_own_errors_name_the_file_and_what_to_do(number: int, code: ExitCode) -> None:
    fault = machine_fault(OSError(number, os.strerror(number), "some/file"))
    assert fault is not None and fault.exit_code == code
    assert str(fault).startswith(f"some/file: {os.strerror(number)}; ")


def test_the_fault_is_found_under_what_was_raised_from_it_and_in_groups() -> None:
    cause = OSError(errno.ENOSPC, "No space left on device", "a")
    wrapped, handling = RuntimeError("the checkpoint failed"), KeyError("step")
    wrapped.__cause__, handling.__context__ = cause, wrapped
    group = ExceptionGroup("several", [ValueError("x"), handling])
    assert str(machine_fault(group)) == "a: No space left on device; make room, then run again"


def test_what_a_machine_did_not_do_stays_a_bug() -> None:
    loop = ValueError("ours")
    loop.__context__ = TypeError("also ours")
    loop.__context__.__context__ = loop
    for error in (loop, FileNotFoundError(errno.ENOENT, "No such file", "x"), RuntimeError("unexpected")):
        assert machine_fault(error) is None


@pytest.mark.integration
@pytest.mark.parametrize(
    "code",
    [
        "import torch, safetensors.torch as s; s.save_file({'a': torch.zeros(9999)}, 'a')",
        "import torch; torch.save({'a': torch.zeros(9999)}, 'a')",
        "import torch; torch.save({'a': torch.zeros(9999)}, 'a', _use_new_zipfile_serialization=False)",
        "import pyarrow as p, pyarrow.parquet as q; q.write_table(p.table({'a': range(99999)}), 'a')",
        "import duckdb; duckdb.connect('a').execute('create table t as select range from range(999999)')",
        "import numpy; numpy.save('a', numpy.zeros(9999))",
    ],
    ids=["safetensors", "torch", "torch-old", "parquet", "duckdb", "numpy"],
)
def test_every_library_that_writes_is_understood(code: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the train extra")
    no_file_may_grow = """
import resource, signal, sys
sys.excepthook = lambda kind, error, trace: print(error)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))
"""
    done = subprocess.run(
        [sys.executable, "-c", no_file_may_grow + code], capture_output=True, text=True, cwd=tmp_path
    )
    assert machine_fault(RuntimeError(done.stdout)) is not None, done.stdout + done.stderr


COMMANDS = [
    "run --name closed",
    "run --root closed/runs",
    "config --config closed.yaml",
    "documents closed",
    "documents closed.jsonl",
    "prompts check ./closed",
    "tasks ls closed",
    "report demo -o closed/report.html",
    "export demo --format trl -o closed/out",
    "index build corpus.jsonl closed/index",
    "index check closed",
    "serve-retriever closed",
    "serve-model closed",
    "serve-judge --corpus closed.jsonl",
    "k8s render closed.yaml",
    "lint-tokens closed",
]

# Without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH root may do no more than everybody else.
AS_ANYONE = """
import ctypes, os, sys
for capability in (1, 2):
    ctypes.CDLL(None).prctl(24, capability)
os.execv(sys.executable, [sys.executable, "-m", "scope_selfplay.cli", *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files and folders that its user may not read."""
    top = tmp_path_factory.mktemp("rights")
    write_finished_run(top / "demo")
    (top / "corpus.jsonl").write_text('{"id": "a", "title": "A", "text": "Some text."}\n')
    (top / "closed.jsonl").write_text('{"id": "a", "title": "A", "text": "Some text."}\n')
    (top / "closed.yaml").write_text("seed: 1\n")
    for name in ("closed", "runs/closed"):
        (top / name).mkdir(parents=True)
    for path in (top / "closed", top / "runs" / "closed", top / "closed.jsonl", top / "closed.yaml"):
        path.chmod(0)
    return top


@pytest.mark.integration
@pytest.mark.parametrize("command", COMMANDS)
def test_missing_rights_are_one_line_whatever_was_to_be_read_or_written(place: Path, command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AS_ANYONE, *command.split()],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (ExitCode.USER, ExitCode.OUTSIDE), done.stderr
    last = done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr and last.startswith("scope: ") and "closed" in last
