"""`scope doctor`: what this machine has, what that is enough for, and how to get what is missing.

`scope k8s doctor` shows findings of the same kind about a cluster.
"""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from scope_selfplay.base.errors import Finding, State, passed
from scope_selfplay.base.machine import memory_limit
from scope_selfplay.base.terminal import show_findings

_RUN = ("Python", "torch", "trl", "memory", "disk")
_BM25 = ("Python", "bm25s", "uvicorn")
CAPABILITIES = {
    "the embedded run": ("scope run", (*_RUN, "bm25s", "embedded policy")),
    "a run on exact answers": ("scope run --config FILE", (*_RUN, "math-verify")),
    "training on a GPU": ("scope run --config FILE", (*_RUN, "CUDA in torch", "GPU")),
    "a run on a cluster": ("scope k8s render", ("Python", "kubectl", "kubernetes")),
    "serving a BM25 index": ("scope serve-retriever", _BM25),
    "serving a dense index": ("scope serve-retriever", (*_BM25, "faiss-cpu", "onnxruntime")),
}
"""Uses of scope: the command, and the findings that must be ok for it."""
_PACKAGES = (
    ("torch", "trains on the CPU", "train"),
    ("trl", "trains on the CPU", "train"),
    ("math-verify", "rewards mathematical answers", "math"),
    ("bm25s", "searches without a server", "retrieval"),
    ("faiss-cpu", "searches dense indexes", "retrieval"),
    ("onnxruntime", "encodes for dense indexes", "retrieval"),
    ("uvicorn", "serves indexes and `scope view`", "retrieval,view"),
    ("kubernetes", "runs and checks on a cluster", "k8s"),
    ("vllm", "serves paper-scale policies", "gpu"),
)
"""Package, what it is for, and the extras of scope-selfplay that bring it."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(as_json: bool) -> None:
    """Say what this machine can run, and how to get what is missing."""
    parts = examine()
    capabilities = verdicts(parts)
    if as_json:
        show_findings([*parts, *capabilities], as_json=True)
        return
    show_findings(parts)
    click.echo("\nWhat this machine can do")
    show_findings(capabilities)


def verdicts(parts: Sequence[Finding]) -> list[Finding]:
    """Every capability with whether this machine has it, by the findings of `examine`."""
    by_name = {part.where: part for part in parts}
    found = []
    for capability, (command, needs) in CAPABILITIES.items():
        lacking = [by_name[name] for name in needs if by_name[name].state is not State.OK]
        verdict = f"lacks {', '.join(part.where for part in lacking)}"
        if not lacking:
            verdict = f"can be done here: {command}"
        advice = "; ".join(dict.fromkeys(part.advice for part in lacking))
        found.append(Finding(capability, verdict, passed(not lacking), advice))
    return found


def examine() -> list[Finding]:
    """Every part with what was found; looks only, changes nothing, loads nothing heavy."""
    python, kubectl = platform.python_version(), shutil.which("kubectl")
    weights = Path(__file__).parents[1] / "embedded" / "policy" / "model.safetensors"
    size = f"{weights.stat().st_size / 2**20:.1f} MiB" if weights.exists() else "missing"
    driver = Path("/proc/driver/nvidia/version")
    gpu = driver.read_text().splitlines()[0] if driver.exists() else "no NVIDIA driver"
    memory = (memory_limit() or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) / 2**30
    disk = shutil.disk_usage(Path.cwd()).free / 2**30
    found = [
        ("Python", python, sys.version_info >= (3, 11), "install Python 3.11 or newer"),
        *(_package(name, use, extras) for name, use, extras in _PACKAGES),
        ("embedded policy", size, weights.exists(), "install the package again, or `make warm-start`"),
        ("GPU", gpu, driver.exists(), "use a machine with an NVIDIA driver; the embedded run needs none"),
        _cuda(),
        ("kubectl", kubectl or "not found", bool(kubectl), "install kubectl; only a cluster needs it"),
        ("memory", f"{memory:.0f} GiB", memory >= 4, "the embedded run needs 4 GiB"),
        ("disk", f"{disk:.0f} GiB free here", disk >= 1, "the embedded run writes about 200 MiB"),
    ]
    return [Finding(name, what, passed(is_there), advice) for name, what, is_there, advice in found]


_Part = tuple[str, str, bool, str]
"""A name, what was found, whether it is enough, and what to do where it is not."""


def _package(name: str, use: str, extras: str) -> _Part:
    where = "on a GPU machine: " if extras == "gpu" else ""
    version = _version(name)
    found = f"{version}, {use}" if version else f"not installed ({use})"
    return name, found, version is not None, f"{where}pip install 'scope-selfplay[{extras}]'"


def _cuda() -> _Part:
    """By the version's suffix: asking torch itself takes seconds."""
    version = _version("torch")
    has_cuda = version is not None and not version.endswith("+cpu")
    advice = "on a GPU machine: install a torch that is built for CUDA"
    return "CUDA in torch", version or "torch is not installed", has_cuda, advice


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
