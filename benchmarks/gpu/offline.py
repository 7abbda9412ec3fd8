"""Unpack the bundle beside this file, once and without a network, and run the GPU proof.

    python3 prove.py [--tiny] [--results FILE] [--parts NAME,...] [--minutes N] [--folder FOLDER]

Nothing of this Python's own packages is changed, torch least of all: what the bundle brings lies beside this file and
comes before them on the path. Removing this folder removes all of it.
"""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# dill, which datasets uses, takes modules for installed ones by the name site-packages.
SOURCE, PACKAGES = HERE / "source", HERE / "site-packages"

if __name__ == "__main__":
    for package in ("torch", "numpy"):
        if subprocess.run([sys.executable, "-c", f"import {package}"], stderr=subprocess.DEVNULL).returncode:
            sys.exit(f"failed: {sys.executable} has no {package}, which the bundle leaves to the machine")
    if not SOURCE.is_dir():
        with tarfile.open(HERE / "bundle.tar.xz") as archive:
            # Pythons before 3.11.4 know no filters.
            archive.extractall(HERE, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    paths = os.pathsep.join([str(SOURCE), str(PACKAGES)])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    # -P: a checkout in which this is called does not go before the bundle's own sources.
    command = [sys.executable, "-P", "-m", "benchmarks.gpu.prove", *sys.argv[1:]]
    sys.exit(subprocess.run(command, env=environment, check=False).returncode)
