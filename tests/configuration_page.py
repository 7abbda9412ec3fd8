"""Writes docs/look-up/settings.md from the settings themselves: `python -m tests.configuration_page`."""

import json
import re
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo

from scope_selfplay.config import training
from scope_selfplay.config.load import field_names
from scope_selfplay.config.run import RunConfig

PAGE = Path(__file__).parents[1] / "docs" / "look-up" / "settings.md"

HEAD = """# Settings

A run is one YAML file of settings. It holds only what differs from the defaults below, which are the paper's (SCOPE,
Table 9) unless a line says otherwise; `scope run` without `--config` takes `scope_selfplay/embedded/run.yaml`, with
which the loop takes a few minutes on a laptop.

```
scope run --config my.yaml --set solver.steps=8 --set tasks.search_turns='{1: 1}'
scope config --config my.yaml           # every setting with the value that a run would use
```

`--set` takes a dotted key and a YAML value and overrides the file. An unknown key or an
invalid value ends with exit 64 and one line that names the key, before anything is written. A run cannot be resumed
with other settings, except for those that do not affect its results: `name`, `iterations`, `stop_after`,
`compare.stop`, `compare.tolerance`, `compare.benchmarks`, `tracking`, `cluster`, `partners`, `save_every`, the
addresses, keys and timeouts of retriever and judge, and `vllm_url`, `vllm_memory` and `processes` of `model`.

The Challenger trains as the Solver does: every setting of training under `solver`, from `steps` to `format_weight`,
holds for `challenger`, too, unless `challenger` states its own.
"""
PART = """
## {part}

| setting | default | meaning |
|---|---|---|
"""

REWARDS = """
## Rewards of the Solver

`solver.reward` is a name, or a mapping with a name under `design` and the settings to change; those of a preset are
changed like those of a design. [Rewards](../how/rewards.md) describes the designs, with examples.

| preset | short for |
|---|---|
"""

DESIGN_HEAD = """
| design | setting | default | meaning |
|---|---|---|---|
"""

ROUTING_HEAD = """
`solver.routing` is `off`, a mapping, or `rubric` or `verifier` as short forms of `{by: ...}`:

| setting | default | meaning |
|---|---|---|
"""


def render() -> str:
    inherited = {f"challenger.{key}" for key in training.INHERITED}
    alike: dict[tuple[str, str], list[str]] = {}
    for name in field_names():
        if name not in inherited:
            alike.setdefault((name.rpartition(".")[2], _meaning(field_of(name))), []).append(name)
    rows: dict[str, str] = {}
    for (_, meaning), names in alike.items():
        part, dot, _ = names[0].partition(".")
        part = part if dot else "The run"
        rows[part] = rows.get(part, PART.format(part=part)) + _row(names, meaning)
    presets = "".join(_preset(name) for name in training.PRESETS if name not in training.DESIGNS)
    designs = "".join(_design(name, model.model_fields) for name, model in training.DESIGNS.items())
    designs += "".join(_setting(*each) for each in training.RewardSettings.model_fields.items())
    routing = "".join(
        f"| `{name}` | `{_shown(field.default)}` | {_meaning(field)} |\n"
        for name, field in training.RoutingSettings.model_fields.items()
    )
    return HEAD + "".join(rows.values()) + REWARDS + presets + DESIGN_HEAD + designs + ROUTING_HEAD + routing


def _row(names: list[str], meaning: str) -> str:
    """One row for all parts of a run that have the setting."""
    defaults = list(dict.fromkeys(map(_default, names)))
    listed = ", ".join(f"`{name}`" for name in names)
    return f"| {listed} | {', '.join(f'`{each}`' for each in defaults)} | {meaning} |\n"


def _preset(name: str) -> str:
    settings = json.dumps(training.PRESETS[name])
    routed = ", with `solver.routing=auto`" if name in training.ROUTED else ""
    return f"| `{name}` | `{settings}`{routed} |\n"


def _design(name: str, fields: dict[str, FieldInfo]) -> str:
    own = [
        (key, field)
        for key, field in fields.items()
        if key not in {"design", *training.RewardSettings.model_fields}
    ]
    return f"| `{name}` | | | {_meaning(fields['design'])} |\n" + "".join(_setting(*each) for each in own)


def _setting(name: str, field: FieldInfo) -> str:
    of_all = "all" if name in training.RewardSettings.model_fields else ""
    return f"| {of_all} | `{name}` | `{_shown(field.default)}` | {_meaning(field)} |\n"


def _default(name: str) -> str:
    value: Any = RunConfig().model_dump(mode="json")
    for part in name.split("."):
        value = value[part]
    return _shown(value)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value)


def _meaning(field: FieldInfo) -> str:
    text = " ".join((field.description or "").split()).replace("|", "\\|")
    values = [f"`{each}`" for each in get_args(field.annotation) if isinstance(each, str)]
    if len(values) > 1 and any(each not in text for each in values):
        text += f" One of {', '.join(values)}."
    return re.sub(r"docs/([\w/-]+)\.md", r"[\1](../\1.md)", text)


def field_of(name: str) -> FieldInfo:
    model: Any = RunConfig
    *groups, last = name.split(".")
    for group in groups:
        model = model.model_fields[group].annotation
    field: FieldInfo = model.model_fields[last]
    return field


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
