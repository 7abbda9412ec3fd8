"""`scope doctor`: what this machine can run, and how to get what is missing."""

import importlib.metadata
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import NamedTuple


class Finding(NamedTuple):
    what: str
    ok: bool
    found: str
    advice: str = ""


def examine() -> list[Finding]:
    """Every part with what was found; looks only, changes nothing, loads nothing heavy."""
    return [
        _python(),
        _package("torch", "trains on the CPU", "pip install 'scope-selfplay[train]'"),
        _package("trl", "trains on the CPU", "pip install 'scope-selfplay[train]'"),
        _package("bm25s", "searches without a server", "pip install 'scope-selfplay[retrieval]'"),
        _package("faiss-cpu", "searches dense indexes", "pip install 'scope-selfplay[retrieval]'"),
        _package(
            "vllm", "serves paper-scale policies", "on a GPU machine: pip install 'scope-selfplay[gpu]'"
        ),
        _policy(),
        _gpu(),
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
    return Finding("GPU", driver.exists(), found, "not needed for the embedded run; paper scale needs 6 GPUs")


def _kubectl() -> Finding:
    path = shutil.which("kubectl")
    return Finding("kubectl", path is not None, path or "not found", "needed to run on a cluster only")


def _memory() -> Finding:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    gib = pages * size / 2**30
    return Finding("memory", gib >= 4, f"{gib:.0f} GiB", "the embedded run needs 4 GiB")


def _disk() -> Finding:
    gib = shutil.disk_usage(Path.cwd()).free / 2**30
    return Finding("disk", gib >= 1, f"{gib:.0f} GiB free here", "the embedded run writes about 200 MiB")
