"""The parts of the GPU proof, each as a test: `make test-gpu`."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")

from benchmarks.gpu.findings import Status, append
from benchmarks.gpu.machine import Machine, this_machine
from benchmarks.gpu.part import PARTS, Part
from benchmarks.gpu.prove import environment_of, run_part, said, working_folder
from benchmarks.gpu.scales import PAPER

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU; torch sees none"),
]
RESULTS = "SCOPE_GPU_RESULTS"
"""Environment variable: the file to which the line of every part is appended."""
PATIENCE = 5
"""How many times as long as in a proof of ten minutes a part may take here."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with working_folder(None) as path:
        yield path


@pytest.fixture(scope="module")
def machine() -> Machine:
    return this_machine(environment_of(PAPER))


@pytest.mark.parametrize("part", PARTS, ids=[part.name for part in PARTS])
def test_a_part_of_the_proof_holds(
    part: Part, folder: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    line = run_part(part, PAPER, machine, folder, PATIENCE * part.seconds)
    if os.environ.get(RESULTS):
        append(line, Path(os.environ[RESULTS]))
    with capsys.disabled():
        print(f"\n{said(line)}")
    if line.status is Status.SKIPPED:
        pytest.skip(line.reason or "")
    assert line.status is Status.OK, line.reason
