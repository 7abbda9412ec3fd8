"""Pack the GPU proof for a machine that has Python, torch and numpy, and no network: `make prove-gpu-bundle`.

    python -m benchmarks.gpu.bundle [--out build/prove-gpu] [--python 3.12]

The folder gets `bundle.tar.xz`, with the wheels of all that the proof imports and this checkout's sources, and
`prove.py`, which installs them beside itself and runs the proof. Versions are those of the images' lock, on which vLLM
and TRL agree; wheels are for the Python that runs this, or for `--python`. They are packed as one, which is smaller,
and without what nothing here loads (`UNUSED`).
"""

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from email import message_from_bytes
from fnmatch import fnmatch
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.gpu.prove import REPOSITORY
from benchmarks.options import read_options

LARGEST = 60 * 2**20
"""Bytes of the bundle."""
WANTED = ("trl", "transformers", "accelerate", "datasets", "peft", "bm25s")
THERE = frozenset({"torch", "numpy", "sympy", "mpmath", "networkx", "setuptools"})
"""Comes with torch on the other machine, and is not touched there."""
NEEDLESS = {
    "datasketch": "finds near duplicates of tasks; with it scipy, 35 MB",
    "scipy": "what imports it here asks first whether it is there",
    "duckdb": "reads the task corpus",
    "hf-xet": "downloads from the hub",
}
"""What the proof never imports, and what it is for."""
UNUSED = (
    "*/tests/*",
    "pyarrow/include/*",
    # Clients of Arrow Flight and of S3.
    "pyarrow/libarrow_flight*",
    "pyarrow/_flight*",
    "pyarrow/libarrow_s3*",
    "pyarrow/_s3fs*",
)
"""Files of wheels that stay out; a package asks for these before it uses them."""
SOURCES = ("benchmarks", "jobs", "prompts/embedded", "retrieval", "scope_selfplay")
LOCK = REPOSITORY / "k8s" / "images" / "lock.txt"


def main() -> None:
    options = read_options(__doc__, out=Path("build/prove-gpu"), python="")
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder) / "wheels"
        download(wheels, options.python)
        shutil.rmtree(options.out, ignore_errors=True)
        options.out.mkdir(parents=True)
        bundle = options.out / "bundle.tar.xz"
        write_bundle(wheels, REPOSITORY, tracked_files(), bundle)
    shutil.copy(Path(__file__).with_name("offline.py"), options.out / "prove.py")
    size = bundle.stat().st_size
    print(
        f"{bundle}: {size / 2**20:.1f} MiB, at most {LARGEST / 2**20:.0f}; run prove.py beside it",
        file=sys.stderr,
    )
    sys.exit(1 if size > LARGEST else 0)


def _locked() -> Iterable[tuple[str, str]]:
    for name, pinned in re.findall(r"^([\w.-]+)==([\w.]+)$", LOCK.read_text(encoding="utf-8"), re.MULTILINE):
        yield canonicalize_name(name), pinned


def download(folder: Path, python: str) -> None:
    """The wheels of all that the proof imports, without what is there already or needless.

    Package by package, by what each wheel says that it needs: pip itself would fetch torch for gigabytes.
    """
    locked, known = dict(_locked()), set[str]()
    missing = set(WANTED) | needed_names(project_requirements(), python)
    while missing:
        known |= missing
        exact = [f"{name}=={locked[name]}" if name in locked else name for name in sorted(missing)]
        _fetch(exact, folder, python)
        stated = [text for wheel in folder.glob("*.whl") for text in requirements_of(wheel)]
        missing = needed_names(stated, python) - known


def project_requirements() -> list[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project["dependencies"])


def requirements_of(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])


def needed_names(stated: Iterable[str], python: str) -> set[str]:
    """The packages of these requirements that go into the bundle."""
    environment = {"extra": "", **({"python_version": python} if python else {})}
    requirements = [Requirement(text) for text in stated]
    names = {
        canonicalize_name(each.name)
        for each in requirements
        if each.marker is None or each.marker.evaluate(environment)
    }
    return names - THERE - set(NEEDLESS)


def _fetch(wanted: Sequence[str], folder: Path, python: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    if python:
        command += ["--python-version", python, "--implementation", "cp"]
        for libc in ("_2_28", "_2_27", "_2_24", "_2_17", "2014", "1"):
            command += ["--platform", f"manylinux{libc}_x86_64"]
    subprocess.run([*command, "--dest", str(folder), *wanted], check=True)


def tracked_files() -> list[Path]:
    """The files of this checkout that the proof runs from, tests left out."""
    command = ["git", "ls-files", "-z", "--", *SOURCES]
    listed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    return [Path(name) for name in listed.split("\0") if name]


def write_bundle(wheels: Path, root: Path, sources: Sequence[Path], bundle: Path) -> None:
    """`wheels/` as archives that are not compressed, and `source/`, of these files below `root`."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(bundle, "w:xz", preset=6) as archive:
        for wheel in sorted(wheels.glob("*.whl")):
            plain = Path(folder) / wheel.name
            _store(wheel, plain)
            archive.add(plain, f"wheels/{wheel.name}")
            plain.unlink()
        for source in sources:
            archive.add(root / source, f"source/{source}")


def _store(wheel: Path, plain: Path) -> None:
    with zipfile.ZipFile(wheel) as packed, zipfile.ZipFile(plain, "w", zipfile.ZIP_STORED) as stored:
        for member in packed.infolist():
            if any(fnmatch(member.filename, pattern) for pattern in UNUSED):
                continue
            content = packed.read(member)
            member.compress_type = zipfile.ZIP_STORED
            stored.writestr(member, content)


if __name__ == "__main__":
    main()
