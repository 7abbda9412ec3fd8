"""Reads a RunConfig from YAML and `--set`, or raises a ConfigError of one line."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from scope_selfplay.base.errors import ConfigError, nearest
from scope_selfplay.base.yaml import RepeatedKeyError, YamlError, parse_yaml
from scope_selfplay.config.base import WHOLE_SETTINGS
from scope_selfplay.config.cluster import image_name
from scope_selfplay.config.run import RunConfig

CONFIGS = (".yaml", ".yml")
_SHOWN_MISTAKES = 8
_LONGEST_SHOWN = 200
_LONGEST = 1_000_000
"""Characters of a file of settings."""


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting by its dotted name."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


@dataclass(frozen=True)
class _Change:
    """What one option of the command line sets: `option` is how the user wrote it, `key` the setting's path."""

    option: str
    key: tuple[str, ...]
    value: Any


def load_config(
    path: Path | None,
    overrides: Sequence[str] = (),
    *,
    options: Mapping[str, Any] | None = None,
    cluster: Path | None = None,
    is_shown: bool = False,
) -> RunConfig:
    """Read a run config: defaults, then the file at `path`, then `dotted.key=value` overrides.

    A file run.yaml stands on `cluster`, a cluster's file of its own, which lies beside it where none is named.
    `options` are settings with an option of their own (`seed` is `--seed`; None is not given); they come last. A config
    that `is_shown` alone may lack what a run needs. Raises ConfigError, which names the file or the option with the
    mistake, the key, what was found, and what was expected.
    """
    data = _read_settings(path) if path is not None else {}
    if path is not None and path.name == "run.yaml":
        cluster = cluster or path.resolve().with_name(CLUSTER_FILE)
    if cluster is not None and cluster.is_file():
        data = with_cluster(data, _read_settings(cluster))
    changes = [_parse_override(override) for override in overrides]
    given = {name: value for name, value in (options or {}).items() if value is not None}
    changes += [_Change(f"--{name} {value}", (name,), value) for name, value in given.items()]
    return _run_config(data, changes, where=str(path) if path else "config", is_shown=is_shown)


_IMAGES = ("cluster.images.worker", "cluster.images.trainer")
CLUSTER_FILE = "cluster.yaml"
"""What is the cluster's alone, for all runs on it: `cluster: {...}`, beside a run.yaml, which comes after it."""


def with_cluster(data: dict[str, Any], cluster: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run on those of its cluster; a list replaces another. Of an image that both name, the cluster's
    registry, tag and digest count. Raises ConfigError."""
    if others := sorted(set(cluster) - {"cluster"}):
        raise ConfigError(
            f"{CLUSTER_FILE}: found {others[0]}; it holds `cluster` alone, a run's settings go into run.yaml"
        )
    merged = _merged(cluster, data)
    found = dict(flat(merged))
    for name, image in flat(cluster):
        if name in _IMAGES and image_name(str(image)) == image_name(str(found.get(name))):
            merged["cluster"]["images"][name.rpartition(".")[2]] = image
    return merged


def parse_config(data: dict[str, Any], overrides: Sequence[str] = (), *, where: str = "config") -> RunConfig:
    """Validate settings that were read elsewhere, with overrides as in `load_config`."""
    return _run_config(data, [_parse_override(override) for override in overrides], where=where)


def _run_config(
    data: dict[str, Any], changes: Sequence[_Change], *, where: str, is_shown: bool = False
) -> RunConfig:
    """The checked config of `data` after `changes`."""
    for change in changes:
        value = change.value
        for part in reversed(change.key):
            value = {part: value}
        data = _merged(data, value)
    try:
        return RunConfig.model_validate(data, context=is_shown)
    except ValidationError as error:
        raise ConfigError(_all_mistakes(error.errors(include_url=False), changes, where)) from None


def _all_mistakes(errors: Sequence[ErrorDetails], changes: Sequence[_Change], where: str) -> str:
    """One line. Of the alternatives that a setting has, each with an error of its own, the first speaks for all."""
    found: dict[tuple[str, ...], str] = {}
    keys = [tuple(map(str, error["loc"])) for error in errors]
    for key, error in zip(keys, errors, strict=True):
        if key[:1] == ("challenger",) and ("solver", *key[1:]) in keys:
            continue  # The Challenger took over the Solver's mistake.
        setting = key if error["type"] in ("extra_forbidden", "value_error") else key[:2]
        found.setdefault(setting, f"{_blamed(key, changes) or where}: {_problem(error)}")
    first, *others = list(found.values())[:_SHOWN_MISTAKES]
    if not others:
        return first
    more = len(found) - _SHOWN_MISTAKES
    listed = " ".join(f"({number}) {text};" for number, text in enumerate((first, *others), start=1))
    return f"{len(found)} mistakes: {listed.rstrip(';')}" + (f"; and {more} more" if more > 0 else "")


def _blamed(faulty: tuple[str, ...], changes: Sequence[_Change]) -> str | None:
    """The option whose path is a prefix of the faulty path or vice versa; an error of the whole run has an empty path
    and belongs to no option.
    """
    options = [
        change.option
        for change in changes
        if faulty and all(own == other for own, other in zip(change.key, faulty, strict=False))
    ]
    return options[-1] if options else None


def field_names(model: type[BaseModel] = RunConfig, prefix: str = "") -> list[str]:
    """Every setting as its dotted key."""
    names: list[str] = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names += field_names(field.annotation, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


def parse_settings(text: str, where: str) -> dict[str, Any]:
    """The settings of a YAML text, not yet checked. Raises ConfigError with `where` and, if known, the line."""
    try:
        data = parse_yaml(text).values
    except RepeatedKeyError as error:
        raise ConfigError(
            f"{where}:{error.line}: the key {error.key!r} appears a second time; keep one of the two"
        ) from None
    except YamlError as error:
        raise ConfigError(f"{where}: not valid YAML: {error.details}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        found = "text" if isinstance(data, str) else f"a {type(data).__name__}"
        raise ConfigError(f"{where}: found {found}, expected a mapping of settings")
    return data


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_LONGEST + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give a YAML file with run settings") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; give a YAML file") from None
    except UnicodeDecodeError as error:
        place = f"{path}: cannot be read as UTF-8 text, from byte {error.start + 1} on"
        raise ConfigError(f"{place}; convert the file to UTF-8") from None
    if len(text) > _LONGEST:
        raise ConfigError(f"{path}: has more than {_LONGEST:,} characters, which no file of settings needs")
    return parse_settings(text, str(path))


def _parse_override(text: str) -> _Change:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {text}: expected key=value, for example solver.steps=8")
    try:
        parsed: Any = parse_yaml(value).values
    except YamlError:
        shown = text[:_LONGEST_SHOWN]
        raise ConfigError(
            f"--set {shown}: {value[:_LONGEST_SHOWN]!r} is not a YAML value; quote it if it is text"
        ) from None
    # YAML 1.1 reads 1e-3 as text because it has no dot; a value in quotes is meant as text.
    if parsed == value.strip():
        with suppress(ValueError):
            parsed = float(parsed)
    return _Change(f"--set {text}", tuple(key.split(".")), parsed)


def _merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in change.items():
        old = merged.get(key)
        if key == "reward" and isinstance(value, dict) and "design" not in value and old is not None:
            # Designs have different settings: a change that names no design keeps the current one.
            merged[key] = {**(old if isinstance(old, dict) else {"design": old}), **value}
        # Ratios are replaced as a whole: merging them would keep entries that the change means to drop.
        elif isinstance(old, dict) and isinstance(value, dict) and key not in WHOLE_SETTINGS:
            merged[key] = _merged(old, value)
        else:
            merged[key] = value
    return merged


def _problem(first: ErrorDetails) -> str:
    key = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] == "extra_forbidden":
        # The setting or section of a similar key, else one whose last part is similar: `steps` means `solver.steps`.
        known = field_names()
        sections = {name[:place] for name in known for place, letter in enumerate(name) if letter == "."}
        by_last = {name.rpartition(".")[2]: name for name in known}
        last = nearest(key.rpartition(".")[2], by_last)
        meant = nearest(key, [*known, *sorted(sections)]) or by_last.get(last or "")
        advice = f"did you mean {meant}?" if meant else "`scope config` lists all settings"
        return f"unknown setting {key}; {advice}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        # A validator of a whole section names its settings itself; printing the section would bury the message.
        return f"{key}: {message}"
    found = repr(first["input"])
    shown = found if len(found) <= _LONGEST_SHOWN else f"{found[:_LONGEST_SHOWN]}..."
    if key == "name":
        # Its pattern tells a person nothing.
        message = f"expected: {RunConfig.model_fields[key].description}"
    return f"{key or 'run'}: found {shown}, {message[0].lower() + message[1:]}"
