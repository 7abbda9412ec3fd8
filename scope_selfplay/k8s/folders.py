"""Run folders on disk: where the shared parts lie, and writing a folder without losing what a person changed."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml

from scope_selfplay.config import RunConfig
from scope_selfplay.errors import ConfigError
from scope_selfplay.prompts import load_pack, pack_chain
from scope_selfplay.prompts.folder import pack_path, shipped_prompts
from scope_selfplay.run import with_judge_prompts


def shipped_kustomize() -> Path:
    """`k8s/` of a checkout, or of an installed wheel."""
    package = Path(__file__).parent.parent
    checkout = package.parent / "k8s"
    return checkout if (checkout / "base").is_dir() else package / "kustomize"


def packs_needed(config: RunConfig) -> list[str]:
    """The run's pack and all that it extends; a model judge's too, where the run's own pack lacks its prompts."""
    own = pack_path(config.domain)
    names = pack_chain(own)
    pack = load_pack(own)
    if with_judge_prompts(pack, config.judge) != pack:
        names += pack_chain(pack_path(config.judge.prompts))
    return sorted(set(names))


def lay_out(top: Path, packs: list[str]) -> None:
    """Put the shared parts and the packs below `top`, where they are not there already."""
    for part in ("base", "components", "prepare"):
        if not (top / "k8s" / part).is_dir():
            shutil.copytree(shipped_kustomize() / part, top / "k8s" / part)
    for pack in packs:
        if not (top / "prompts" / pack).is_dir():
            shutil.copytree(
                shipped_prompts() / pack, top / "prompts" / pack, ignore=shutil.ignore_patterns("__*")
            )


def components_of(folder: Path) -> list[str]:
    """The components of a run's folder, as `--component` names them; none where there is no folder yet.

    Raises ConfigError for a setup that is no YAML.
    """
    file = folder / "setup" / "kustomization.yaml"
    try:
        setup = yaml.safe_load(_read(file) or "") or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from None
    shipped = re.compile(r"(\.\./)+k8s/components/([^/]+)/?")
    listed = setup.get("components") if isinstance(setup, dict) else None
    found = [(str(each), shipped.fullmatch(str(each))) for each in listed or []]
    return [match[2] if match else path for path, match in found]


def link_config(folder: Path) -> None:
    """`run.yaml` in the run's folder is its config, where nothing else has that name."""
    link = folder / "run.yaml"
    if not link.exists() and not link.is_symlink():
        link.symlink_to(Path("setup") / "run.yaml")


def write_folder(folder: Path, files: Mapping[str, str], *, force: bool) -> list[Path]:
    """Write `files` below `folder`; returns those that are new or changed. Raises ConfigError before overwriting."""
    changed = {name: text for name, text in files.items() if _read(folder / name) != text}
    lost = [name for name in changed if (folder / name).exists()]
    if lost and not force:
        raise ConfigError(
            f"{folder}: {', '.join(lost)} differ from what this config gives; keep them, or say --force to replace them"
        )
    for name, text in changed.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in changed]


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
