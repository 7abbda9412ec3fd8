"""What an iteration cost in judge calls, sampled tokens and GPU-hours, from the files of its stages.

A finished stage has an account of its verdicts (`judge.json`), and where a model judges one of its calls and tokens
by role (`judge_usage.json`, rubric writing among them). A running stage has neither: its records are counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scope_selfplay.gates import Gate
from scope_selfplay.store.files import read_value
from scope_selfplay.store.folders import Stage
from scope_selfplay.store.reader import RunReader

_VERDICTS = f"""
    SELECT unnest(verdicts) AS v FROM grades WHERE iteration = $1 AND stage = $2 UNION ALL
    SELECT unnest([{", ".join(f"gates.{gate}" for gate in Gate)}]) FROM (
        SELECT gates FROM candidates WHERE iteration = $1 AND stage = $2
        QUALIFY row_number() OVER (PARTITION BY coalesce(task.id, id) ORDER BY ordinal DESC) = 1) UNION ALL
    SELECT verdict FROM comparisons WHERE iteration = $1 AND stage = $2
"""

_HOLDS: Mapping[Stage, tuple[str, tuple[str, ...]]] = {
    Stage.CHALLENGER: ("train_challenger", ("judge", "retriever", "solver")),
    Stage.TASKS: ("make_tasks", ("judge", "retriever", "solver", "challenger")),
    Stage.SOLVER: ("train_solver", ("judge", "retriever")),
    Stage.COMPARE: ("compare", ("judge", "retriever", "solver")),
}
"""Settings under `cluster` of a stage's Job and of the servers that run meanwhile."""


@dataclass(frozen=True)
class JudgeUse:
    """Calls to the judge; `tokens` in and out, as far as they were paid for."""

    calls: int = 0
    failed: int = 0
    tokens: int = 0


def judge_use(reader: RunReader, iteration: int, stage: Stage) -> JudgeUse:
    """By one stage, finished or running.

    After a kill the account by role holds the last attempt only and the records hold all but rubric writing: the
    larger count is the better one.
    """
    recorded = _recorded(reader, iteration, stage)
    if account := judge_account(reader, iteration, stage):
        recorded = replace(recorded, calls=account.get("calls", 0), failed=account.get("failed", 0))
    roles = _read(reader.folder.stage(iteration, stage).path / "judge_usage.json").values()
    usage = JudgeUse(
        calls=sum(role["calls"] for role in roles),
        failed=sum(sum(role["faults"].values()) for role in roles),
        tokens=sum(role["tokens_in"] + role["tokens_out"] for role in roles),
    )
    fuller = usage if usage.calls > recorded.calls else recorded
    return replace(fuller, tokens=max(usage.tokens, recorded.tokens))


def judge_account(reader: RunReader, iteration: int, stage: Stage) -> dict[str, int]:
    """A finished stage's count of verdicts: `calls`, `unreadable`, `failed`; empty where there is none."""
    return _read(reader.folder.stage(iteration, stage).path / "judge.json")


def failure_share(reader: RunReader, iteration: int) -> float | None:
    """Of all calls to the judge in the stages of an iteration."""
    begun = [state.stage for state in reader.stages() if state.iteration == iteration]
    uses = [judge_use(reader, iteration, stage) for stage in begun]
    calls = sum(use.calls for use in uses)
    return sum(use.failed for use in uses) / calls if calls else None


def trained_tokens(reader: RunReader, iteration: int) -> float | None:
    """Tokens that the policies in training sampled: each step's mean length times its rollouts."""
    found = []
    for stage in (Stage.CHALLENGER, Stage.SOLVER):
        settings = reader.settings.get(stage.value) or {}
        rollouts = settings.get("batch", 0) * settings.get("group_size", 0)
        found += [
            # A rollout of a family that forgets its thinking is several rows, each with its own length.
            row["completion_tokens"] * rollouts * (row.get("rows") or 1.0)
            for row in reader.metrics(iteration, stage)
            if row.get("completion_tokens") is not None
        ]
    return sum(found) or None


def gpu_hours(reader: RunReader, iteration: int) -> float | None:
    """GPUs that the finished stages of an iteration held, servers included, times their time.

    None where the config names no image with CUDA (`cluster.images.trainer`): then its pods' sizes are mere defaults.
    """
    cluster = reader.settings.get("cluster") or {}
    if cluster.get("tiny") or not (cluster.get("images") or {}).get("trainer"):
        return None
    seconds = 0.0
    for state in reader.stages():
        if state.iteration == iteration and state.manifest is not None:
            job, servers = _HOLDS[state.stage]
            settings = cluster.get(job) or {}
            running = [server for name in servers if (server := cluster.get(name) or {}).get("serve", True)]
            beside = sum(server.get("gpus", 0) for server in running)
            # Workers that share a stage have their seconds added up, while all of them use the same servers.
            held = settings.get("gpus", 0) * settings.get("nodes", 1) + beside / settings.get("shards", 1)
            seconds += held * state.manifest.seconds
    return seconds / 3600 or None


def _recorded(reader: RunReader, iteration: int, stage: Stage) -> JudgeUse:
    (row,) = reader.sql(
        "SELECT count(*) FILTER (v.attempts > 0) AS calls, "
        "count(*) FILTER (v.attempts > 0 AND v.fault IS NOT NULL) AS failed, "
        "sum(v.tokens_in + v.tokens_out) FILTER (NOT v.cached) AS tokens "
        f"FROM ({_VERDICTS}) WHERE v IS NOT NULL",
        [iteration, stage.value],
    )
    (other,) = reader.sql(
        "SELECT count(*) AS calls, count(*) FILTER (missing) AS failed, "
        "sum(v.tokens_in + v.tokens_out) FILTER (NOT v.cached) AS tokens FROM ("
        "SELECT winner_ids IS NULL AS missing, verdict AS v FROM selections WHERE iteration = $1 AND stage = $2 "
        "UNION ALL SELECT value IS NULL, verdict FROM scores WHERE iteration = $1 AND stage = $2)",
        [iteration, stage.value],
    )
    return JudgeUse(**{name: int(row[name] or 0) + int(other[name] or 0) for name in row})


def _read(file: Path) -> dict[str, Any]:
    return read_value(file, dict[str, Any], "remove it") or {}
