"""Pack the GPU proof for a machine that has Python, torch and numpy, and no network: `make prove-gpu-bundle`.

    python -m benchmarks.gpu.bundle [--out build/prove-gpu] [--python 3.12]

The folder gets `bundle.tar.xz`, with all packages that the proof imports and this checkout's sources, and `prove.py`,
which unpacks it beside itself and runs the proof. Versions are those of the images' lock, on which vLLM and TRL agree,
for the Python that runs this or for `--python`; what nothing here loads stays out (`UNUSED`).
"""

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable
from fnmatch import fnmatch
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.options import read_options
from benchmarks.scope_command import ROOT

LARGEST = 60 * 2**20
"""Bytes of the bundle."""
WANTED = ("trl", "transformers", "accelerate", "datasets", "peft", "bm25s")
THERE = ("torch", "numpy", "sympy", "mpmath", "networkx", "setuptools")
"""Comes with torch on the other machine, and is not touched there."""
NEEDLESS = ("datasketch", "scipy", "duckdb", "hf-xet")
"""What the proof never imports: near duplicates, intervals, the task corpus, downloads."""
# Clients of Arrow Flight and of S3 among them; a package asks for these before it uses them.
UNUSED = ("*/tests/*", "*/pyarrow/include/*", "*/pyarrow/*flight*", "*/pyarrow/*s3*", "*/bin/*")
SOURCES = ("benchmarks", "jobs", "prompts/embedded", "retrieval", "scope_selfplay")
LOCK = ROOT / "k8s" / "images" / "lock.txt"


def main() -> None:
    options = read_options(__doc__, out=Path("build/prove-gpu"), python="")
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    bundle = options.out / "bundle.tar.xz"
    with tempfile.TemporaryDirectory() as folder, tarfile.open(bundle, "w:xz", preset=6) as archive:
        install(Path(folder), options.python)
        archive.add(folder, "site-packages", filter=lambda file: None if unused(file.name) else file)
        command = ["git", "ls-files", "-z", "--", *SOURCES]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, listed.split("\0")):
            archive.add(ROOT / name, f"source/{name}")
    shutil.copy(Path(__file__).with_name("offline.py"), options.out / "prove.py")
    size = bundle.stat().st_size
    sizes = f"{size / 2**20:.1f} MiB, at most {LARGEST / 2**20:.0f}"
    print(f"{bundle}: {sizes}; run prove.py beside it", file=sys.stderr)
    sys.exit(1 if size > LARGEST else 0)


def unused(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in UNUSED)


def install(folder: Path, python: str) -> None:
    """What the proof imports and what that says that it needs, round by round: pip itself would fetch torch."""
    lines = re.findall(r"^([\w.-]+)==([\w.]+)$", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    locked = {canonicalize_name(name): f"{name}=={pinned}" for name, pinned in lines}
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    command += ["--only-binary=:all:", "--target", str(folder)]
    if python:
        command += ["--python-version", python, "--implementation", "cp"]
        for libc in ("_2_28", "_2_27", "_2_24", "_2_17", "2014", "1"):
            command += ["--platform", f"manylinux{libc}_x86_64"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known, found = {*THERE, *NEEDLESS}, {*WANTED, *needed(project["dependencies"], python)}
    while missing := found - known:
        subprocess.run([*command, *(locked.get(name, name) for name in sorted(missing))], check=True)
        known |= missing
        stated = [text for each in distributions(path=[str(folder)]) for text in each.requires or ()]
        found = needed(stated, python)


def needed(stated: Iterable[str], python: str) -> set[str]:
    """The packages of these requirements."""
    environment = {"extra": "", **({"python_version": python} if python else {})}
    requirements = [
        each for each in map(Requirement, stated) if not each.marker or each.marker.evaluate(environment)
    ]
    return {canonicalize_name(each.name) for each in requirements}


if __name__ == "__main__":
    main()
