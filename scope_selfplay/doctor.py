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
from typing import NamedTuple

import click


class Finding(NamedTuple):
    """One part of a machine or a cluster; `advice` says how to get it where it is not ok."""

    what: str
    ok: bool
    found: str
    advice: str = ""


class Capability(NamedTuple):
    """A use of scope, and the names of the findings that must be ok for it."""

    what: str
    command: str
    needs: tuple[str, ...]


_RUN = ("Python", "torch", "trl", "memory", "disk")
CAPABILITIES = (
    Capability("the embedded run", "scope run", (*_RUN, "bm25s", "embedded policy")),
    Capability("a run on maths problems", "scope math new FOLDER", (*_RUN, "math-verify")),
    Capability("training on a GPU", "scope run --config FILE", (*_RUN, "CUDA in torch", "GPU")),
    Capability("a run on a cluster", "scope k8s render", ("Python", "kubectl", "kubernetes")),
    Capability("serving a BM25 index", "scope serve-retriever", ("Python", "bm25s", "uvicorn")),
    Capability(
        "serving a dense index",
        "scope serve-retriever",
        ("Python", "bm25s", "uvicorn", "faiss-cpu", "onnxruntime"),
    ),
)


def print_finding(finding: Finding) -> None:
    """One line, and the advice below it where something is missing."""
    mark = click.style("ok  ", fg="green") if finding.ok else click.style("no  ", fg="yellow")
    advice = "" if finding.ok else f"\n      {finding.advice}"
    click.echo(f"{mark}{finding.what}: {finding.found}{advice}")


def verdicts(parts: Sequence[Finding]) -> list[Finding]:
    """Every capability with whether this machine has it, by the findings of `examine`."""
    by_name = {part.what: part for part in parts}
    found = []
    for capability in CAPABILITIES:
        lacking = [by_name[name] for name in capability.needs if not by_name[name].ok]
        verdict = f"lacks {', '.join(part.what for part in lacking)}"
        if not lacking:
            verdict = f"can be done here: {capability.command}"
        advice = "; ".join(dict.fromkeys(part.advice for part in lacking))
        found.append(Finding(capability.what, not lacking, verdict, advice))
    return found


def examine() -> list[Finding]:
    """Every part with what was found; looks only, changes nothing, loads nothing heavy."""
    return [
        _python(),
        _package("torch", "trains on the CPU", "pip install 'scope-selfplay[train]'"),
        _package("trl", "trains on the CPU", "pip install 'scope-selfplay[train]'"),
        _package("math-verify", "rewards mathematical answers", "pip install 'scope-selfplay[math]'"),
        _package("bm25s", "searches without a server", "pip install 'scope-selfplay[retrieval]'"),
        _package("faiss-cpu", "searches dense indexes", "pip install 'scope-selfplay[retrieval]'"),
        _package("onnxruntime", "encodes for dense indexes", "pip install 'scope-selfplay[retrieval]'"),
        _package(
            "uvicorn", "serves indexes and `scope view`", "pip install 'scope-selfplay[retrieval,view]'"
        ),
        _package("kubernetes", "runs and checks on a cluster", "pip install 'scope-selfplay[k8s]'"),
        _package(
            "vllm", "serves paper-scale policies", "on a GPU machine: pip install 'scope-selfplay[gpu]'"
        ),
        _policy(),
        _gpu(),
        _cuda(),
        _kubectl(),
        _memory(),
        _disk(),
    ]


def _python() -> Finding:
    found = platform.python_version()
    return Finding("Python", sys.version_info >= (3, 11), found, "install Python 3.11 or newer")


def _package(name: str, use: str, advice: str) -> Finding:
    try:
        return Finding(name, True, f"{importlib.metadata.version(name)}, {use}")
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, False, f"not installed ({use})", advice)


def _policy() -> Finding:
    weights = Path(__file__).parent / "embedded" / "policy" / "model.safetensors"
    found = f"{weights.stat().st_size / 2**20:.1f} MiB" if weights.exists() else "missing"
    return Finding(
        "embedded policy", weights.exists(), found, "install the package again, or `make warm-start`"
    )


def _gpu() -> Finding:
    driver = Path("/proc/driver/nvidia/version")
    found = driver.read_text().splitlines()[0] if driver.exists() else "no NVIDIA driver"
    return Finding(
        "GPU", driver.exists(), found, "use a machine with an NVIDIA driver; the embedded run needs none"
    )


def _cuda() -> Finding:
    """By the version's suffix: asking torch itself takes seconds."""
    what, advice = (
        "CUDA in torch",
        "on a GPU machine: install torch without constraints.txt, which pins the CPU's",
    )
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding(what, False, "torch is not installed", advice)
    return Finding(what, not version.endswith("+cpu"), version, advice)


def _kubectl() -> Finding:
    path = shutil.which("kubectl")
    return Finding(
        "kubectl", path is not None, path or "not found", "install kubectl; needed to run on a cluster only"
    )


def _memory() -> Finding:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    gib = pages * size / 2**30
    return Finding("memory", gib >= 4, f"{gib:.0f} GiB", "the embedded run needs 4 GiB")


def _disk() -> Finding:
    gib = shutil.disk_usage(Path.cwd()).free / 2**30
    return Finding("disk", gib >= 1, f"{gib:.0f} GiB free here", "the embedded run writes about 200 MiB")
