"""The dataset card (`README.md`) of a stage folder and of a run: what is in it, where it is from, how to load it.

Its front matter names the parquet files, so that `datasets.load_dataset("<folder>")` finds them.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from scope_selfplay import __version__
from scope_selfplay.base.terminal import Table
from scope_selfplay.config.judge import NoiseConfig
from scope_selfplay.store.columns import RecordKind
from scope_selfplay.store.folder import MANIFEST, RunFolder, Stage
from scope_selfplay.store.ratings import kept_solver, read_fork, shared_words

CARD = "README.md"

_WHAT = {
    RecordKind.CANDIDATES: "one row per document tried: task, gates with the judge's reasoning, rubric, mean score, "
    "status and reason, provenance",
    RecordKind.ROLLOUTS: "one row per episode of either role: every turn with its thinking, its search and the "
    "passages that came back",
    RecordKind.GRADES: "one row per graded rollout: a verdict with reasoning for each criterion, in rubric order",
    RecordKind.COMPARISONS: "one row per comparison of two answers, with the judge's reasoning",
    RecordKind.SELECTIONS: "one row per group of answers shown together: who was shown, who was picked, and "
    "the judge's reasoning",
    RecordKind.SCORES: "one row per number that the judge gave an answer, with its scale and reasoning",
    RecordKind.RUBRICS: "one row per rubric that the judge wrote from a task's text alone",
}
_TITLES = {
    Stage.CHALLENGER: "training of the Challenger",
    Stage.TASKS: "task making",
    Stage.SOLVER: "training of the Solver",
    Stage.COMPARE: "comparison on held-out tasks",
}
_COMMON = ("challenger", "solver", "judge", "prompt_hash", "config_hash", "seed", "version")
"""The provenance that all candidates of a stage share."""
_TAGS = ("self-play", "synthetic")
_CAUTION = """\
Tasks, answers, rubrics and verdicts were written by models from the documents of the run and nobody has read
them all; rejected ones are kept with their reason. Passages belong to the source corpus and its licence.
"""


def stage_card(run: str, iteration: int, stage: Stage, folder: Path) -> str:
    """The card of one finished stage, from the parquet files in its folder."""
    rows = _rows_in(folder)
    title = f"{run}, iteration {iteration}: {_TITLES[stage]}"
    lines = [
        front_matter(title, {kind.value: {"train": [f"{kind}.parquet"]} for kind in rows}, *_TAGS),
        f"# {title}",
        "",
    ]
    lines += [f"- `{kind}` ({count:,}): {_WHAT[kind]}" for kind, count in rows.items()]
    if rows:
        lines += _loading(next(iter(rows)).value, "train")
    if RecordKind.CANDIDATES in rows:
        made = pq.read_table(folder / "candidates.parquet", columns=["status", "reason", "provenance"])
        pairs = Counter(zip(made["status"].to_pylist(), made["reason"].to_pylist(), strict=True))
        counted = sorted(pairs.items(), key=lambda item: (item[0][0], -item[1], item[0][1]))
        funnel = tuple((status, reason, f"{count:,}") for (status, reason), count in counted)
        table = Table("", ("status", "reason", "candidates"), funnel)
        lines += ["## What became of the candidates", "", *table.markdown()]
        provenance = made["provenance"][0].as_py()
        common = [f"- {name}: `{provenance[name]}`" for name in _COMMON if provenance[name] not in ("", None)]
        lines += ["", "## Provenance", "", *common, ""]
    return "\n".join([*lines, "## Before use", "", _CAUTION])


def run_card(folder: RunFolder, run: str) -> str:
    """The card of a run: the finished stages of all iterations together, held-out tasks as a split of their own."""
    configs: dict[str, dict[str, list[str]]] = {}
    for manifest in sorted(folder.path.glob(f"iteration-*/*/{MANIFEST}")):
        stage, iteration = manifest.parent.name, manifest.parent.parent.name
        making = stage == Stage.TASKS
        split = "held_out" if making and iteration == "iteration-00" else "train"
        for kind in _rows_in(manifest.parent):
            name = "tasks" if making and kind is RecordKind.CANDIDATES else f"{stage}_{kind}"
            files = configs.setdefault(name, {}).setdefault(split, [])
            files.append(f"{iteration}/{stage}/{kind}.parquet")
    tasks_first = sorted(configs, key=lambda name: (name != "tasks", name))
    configs = {name: dict(sorted(configs[name].items(), reverse=True)) for name in tasks_first}
    lines = [front_matter(run, configs, *_TAGS), f"# {run}", ""]
    lines += ["A self-play run of SCOPE, every stage of every iteration.", ""]
    fork = read_fork(folder)
    if fork is not None:
        lines += [f"It was forked: {shared_words(fork)}.", ""]
    kept = kept_solver(folder)
    if kept is not None:
        where = kept.checkpoint or "the base model"
        lines += [f"The Solver that was kept is {kept.words}. Its weights: `best`, which is {where}.", ""]
    noise = judge_noise(folder)
    if noise:
        lines += [f"**Its judge errs on purpose** (`judge.noise`): {noise}.", ""]
    lines += exam_lines(folder)
    lines += [f"- `{name}`: {', '.join(splits)}" for name, splits in configs.items()]
    if configs:
        name, splits = next(iter(configs.items()))
        lines += _loading(name, next(iter(splits)))
    return "\n".join([*lines, "## Before use", "", _CAUTION])


def exam_lines(folder: RunFolder) -> list[str]:
    """What the run's judge was found to be able to, as Markdown; nothing where it was not examined."""
    path = folder.exam / "exam.json"
    if not path.exists():
        return []
    exam = json.loads(path.read_text())
    rows = []
    for name, found in exam["questions"].items():
        order = found["order"] or {"value": float("nan"), "low": None, "high": None}
        ends = "-" if order["low"] is None else f"{order['low']:.2f} to {order['high']:.2f}"
        rows.append((name, f"{order['value']:.2f}", ends, f"{found['asked']}"))
    table = Table("", ("question", "pairs in order", "95 % interval", "judgements"), tuple(rows))
    return [f"The exam of its judge, {exam['judge']}:", "", *table.markdown(), ""]


def judge_noise(folder: RunFolder) -> str:
    """How a run's judge errs on purpose; "" where it does not."""
    settings = yaml.safe_load(folder.config.read_text(encoding="utf-8")) if folder.config.exists() else None
    return NoiseConfig.model_validate(((settings or {}).get("judge") or {}).get("noise") or {}).description


def _rows_in(folder: Path) -> dict[RecordKind, int]:
    """The records of each parquet file that has any; a file without rows has nothing to load."""
    files = {kind: folder / f"{kind}.parquet" for kind in RecordKind}
    rows = {kind: pq.read_metadata(file).num_rows for kind, file in files.items() if file.exists()}
    return {kind: count for kind, count in rows.items() if count}


def front_matter(title: str, configs: Mapping[str, Mapping[str, Sequence[str]]], *tags: str) -> str:
    """The YAML block that the Hugging Face hub and `datasets` read."""
    entries: list[dict[str, Any]] = []
    for name, splits in configs.items():
        files = [{"split": split, "path": list(paths)} for split, paths in splits.items()]
        entries.append({"config_name": name, "data_files": files})
    if entries:
        entries[0]["default"] = True
    front = {"pretty_name": title, "tags": [*tags, "scope-selfplay"], "configs": entries}
    return f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n"


def _loading(name: str, split: str) -> list[str]:
    call = f'{name} = load_dataset("PATH OF THIS FOLDER", "{name}", split="{split}")'
    return ["", "```python", "from datasets import load_dataset", "", call, "```", ""]


@dataclass(frozen=True)
class Lineage:
    """What a policy was made from."""

    run: str = ""
    role: str = ""
    iteration: int = 0
    base_hash: str = ""
    start: str = ""
    prompt_hash: str = ""
    config_hash: str = ""
    dialect: str = ""


def model_card(lineage: Lineage) -> str:
    """The README.md of a checkpoint, with the front matter that model hubs read."""
    rows = {
        "run": lineage.run,
        "role": lineage.role,
        "iteration": lineage.iteration,
        "base model (SHA-256 of its weights)": lineage.base_hash,
        "trained from": lineage.start,
        "dialect": lineage.dialect,
        "prompt pack": lineage.prompt_hash,
        "config": lineage.config_hash,
        "scope-selfplay": __version__,
    }
    table = "".join(f"| {name} | `{value}` |\n" for name, value in rows.items())
    return (
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags: [self-play, grpo]\n---\n"
        f"# {lineage.role or 'Policy'} of iteration {lineage.iteration}\n\n"
        "Trained by self-play (GRPO, KL to the base model) from documents alone, without labels.\n\n"
        f"| | |\n|---|---|\n{table}"
    )
