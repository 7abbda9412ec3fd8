"""Install the bundle beside this file, once and without a network, and run the GPU proof.

    python3 prove.py [--tiny] [--results FILE] [--parts NAME,...] [--minutes N] [--folder FOLDER]

Nothing of this Python's own packages is changed, torch least of all: what is installed lies in `site-packages/` beside
this file and comes before them on the path. Removing this folder removes all of it.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# dill, which datasets uses, takes modules for installed ones by this name.
INSTALLED, SOURCE = HERE / "site-packages", HERE / "source"


def main() -> None:
    for package in ("torch", "numpy"):
        looked = subprocess.run([sys.executable, "-c", f"import {package}"], capture_output=True, check=False)
        if looked.returncode:
            sys.exit(f"failed: {sys.executable} has no {package}, which the bundle leaves to the machine")
    if not INSTALLED.is_dir():
        install()
    paths = [str(SOURCE), str(INSTALLED)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    # -P: a checkout in which this is called does not go before the bundle's own sources.
    command = [sys.executable, "-P", "-m", "benchmarks.gpu.prove", *sys.argv[1:]]
    sys.exit(subprocess.run(command, env=environment, check=False).returncode)


def install() -> None:
    with tarfile.open(HERE / "bundle.tar.xz") as archive:
        # Pythons before 3.11.4 know no filters.
        archive.extractall(HERE, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    part = HERE / "site-packages.part"
    shutil.rmtree(part, ignore_errors=True)
    wheels = [str(wheel) for wheel in sorted((HERE / "wheels").glob("*.whl"))]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*command, "--target", str(part), *wheels], check=True)
    shutil.rmtree(HERE / "wheels")
    part.rename(INSTALLED)


if __name__ == "__main__":
    main()
