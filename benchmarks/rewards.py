"""Reward designs by what the Solver learns from them, at equal judge calls: a Markdown table.

    python -m benchmarks.rewards [--designs rubric balanced ...] [--steps 12] [--seeds 1 2] [--equal calls|steps]

Per seed the embedded run makes its held-out tasks, trains the Challenger and makes the training tasks once; every
design then trains the same S_0 on the same tasks. `--steps` are those of a design that makes 28 judge calls for a
group of 8, as a round robin does; with `--equal calls` others get as many steps as the same calls pay for, at the price
of a pilot of two steps; the table shows the calls really made. Designs
are names of `solver.reward`, with what differs after a colon: `balanced:meetings=7`. What was trained before under
the same root is not trained again.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scope_selfplay.cli import DEFAULT_CONFIG
from scope_selfplay.config import RunConfig, load_config
from scope_selfplay.evaluation.held_out import bootstrap
from scope_selfplay.judge import grade_answer
from scope_selfplay.progress import LineProgress
from scope_selfplay.run import Run, open_run
from scope_selfplay.schemas import Candidate, CandidateStatus, Role
from scope_selfplay.stages import make_held_out, make_tasks, train_challenger, train_solver
from scope_selfplay.store import Stage, read_records
from scope_selfplay.store.files import read_rows
from scope_selfplay.store.weights import Policy

ROOT = Path(__file__).parent.parent
DESIGNS = (
    "rubric",
    "implicit",
    "explicit",
    "pairwise",
    "tournament_grpo_2_1_1",
    "tournament_grpo_4_2_2",
    "arenarl",
    "reasoning_arena_live",
    "balanced",
    "balanced:meetings=7",
)
REFERENCE_CALLS = 28
PILOT_STEPS = 2

Scores = Mapping[str, float]


class Prepared(NamedTuple):
    """What all designs of a seed start from: held-out tasks and S_0's scores on them, and a file of tasks."""

    run: Run
    tasks: Path
    first: Scores


class Trained(NamedTuple):
    design: str
    seed: int
    gains: list[float]
    score: float
    rows: list[dict[str, Any]]

    @property
    def calls(self) -> float:
        return sum(row["judge_calls"] for row in self.rows)

    def mean(self, name: str) -> float:
        return sum(row[name] for row in self.rows) / len(self.rows)


def prepare(seed: int, root: Path, overrides: Sequence[str], *, frozen: bool) -> Prepared:
    config = config_of(seed, "tasks", [*overrides, f"challenger.freeze_after={0 if frozen else 'null'}"])
    run = open_run(config, root / f"seed-{seed}", LineProgress(_say))
    make_held_out(run)
    if not frozen:
        train_challenger(run, 1)
    make_tasks(run, 1)
    return Prepared(run, run.folder.stage(1, Stage.TASKS).candidates, held_out_scores(run, run.solver(0)))


def train(design: str, seed: int, prepared: Prepared, root: Path, options: argparse.Namespace) -> Trained:
    settings = [*options.overrides, *reward_settings(design), f"solver.tasks={prepared.tasks}"]
    name = design.replace("_", "-").replace(":", "-").replace("=", "-").replace(".", "-")
    steps = options.steps
    if options.equal == "calls":
        steps = max(1, round(options.steps * REFERENCE_CALLS / price(settings, seed, name, root)))
    config = config_of(seed, name, [*settings, f"solver.steps={steps}"])
    run = open_run(config, root / f"seed-{seed}", LineProgress(_say))
    train_solver(run, 1)
    scores = held_out_scores(prepared.run, Policy(f"S_1 {design}", run.solver(1).path))
    return Trained(
        design,
        seed,
        [scores[task] - before for task, before in prepared.first.items() if task in scores],
        sum(scores.values()) / len(scores),
        read_rows(run.folder.stage(1, Stage.SOLVER).metrics),
    )


def config_of(seed: int, name: str, overrides: Sequence[str]) -> RunConfig:
    return load_config(DEFAULT_CONFIG, [f"seed={seed}", f"name={name}", *overrides])


def reward_settings(design: str) -> list[str]:
    name, _, changes = design.partition(":")
    return [f"solver.reward={name}", *(f"solver.reward.{each}" for each in changes.split(",") if each)]


def price(settings: Sequence[str], seed: int, name: str, root: Path) -> float:
    """Judge calls that a group of this design costs in a pilot of two steps from S_0.

    Only a real step knows it all: rubrics of which length are written, how many answers are equal and therefore not
    compared, and, with routing, how many groups are flat.
    """
    config = config_of(seed, f"{name}-pilot", [*settings, f"solver.steps={PILOT_STEPS}"])
    run = open_run(config, root / f"seed-{seed}", LineProgress(_say))
    train_solver(run, 1)
    rows = read_rows(run.folder.stage(1, Stage.SOLVER).metrics)
    calls = float(sum(row["judge_calls"] for row in rows))
    return max(1.0, calls / (len(rows) * config.solver.batch))


def held_out_scores(run: Run, policy: Policy) -> Scores:
    """The rubric score of a greedy answer to every held-out task."""
    context, engine = run.stage_context(1, Stage.COMPARE), run.engine(policy, Role.SOLVER)
    policy_format = run.policy_format(policy, Role.SOLVER, greedy=True)
    found: dict[str, float] = {}

    async def answer(candidate: Candidate) -> None:
        task, rubric = candidate.task, candidate.rubric
        if candidate.status is not CandidateStatus.ACCEPTED or task is None or rubric is None:
            return
        key = ("held-out", task.id)
        rollout = await context.sample_rollout(context.solver_episode(policy_format, key, task), engine, key)
        grade = await grade_answer(context.judge, task, rubric, rollout, key=key)
        if grade.score is not None:
            found[task.id] = grade.score

    async def answer_all() -> None:
        candidates = read_records(run.folder.stage(0, Stage.TASKS).candidates, Candidate)
        await asyncio.gather(*(answer(candidate) for candidate in candidates))

    asyncio.run(answer_all())
    return found


def table(results: Sequence[Trained], first: Sequence[Scores], options: argparse.Namespace) -> str:
    before = [sum(scores.values()) / len(scores) for scores in first]
    lines = [
        "| reward | steps | judge calls | held-out score | gain over S_0, 95 % interval | non-zero advantages "
        "| zero-variance groups | routed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for design in options.designs:
        own = [each for each in results if each.design == design]
        gains = [gain for each in own for gain in each.gains]
        low, high = bootstrap(gains, seed=0, resamples=4000)
        cells = [
            f"`{design}`",
            f"{sum(len(each.rows) for each in own) / len(own):.0f}",
            f"{sum(each.calls for each in own) / len(own):,.0f}",
            f"{sum(each.score for each in own) / len(own):.3f}",
            f"{sum(gains) / len(gains):+.3f} [{low:+.3f}, {high:+.3f}]",
            *(
                f"{sum(each.mean(name) for each in own) / len(own):.0%}"
                for name in ("non_zero_advantage", "zero_variance", "routed")
            ),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    tasks = sum(map(len, first))
    return "\n".join(
        [
            *lines,
            "",
            f"S_0 scores {sum(before) / len(before):.3f}. Seeds {', '.join(map(str, options.seeds))}, {tasks} held-out "
            f"tasks in all; equal {options.equal}: {options.steps} steps at {REFERENCE_CALLS} calls a group. "
            "Made by `make bench-rewards`.",
        ]
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--designs", nargs="+", default=list(DESIGNS), metavar="NAME")
    parser.add_argument("--steps", type=int, default=12, help="GRPO steps at 28 judge calls a group")
    parser.add_argument("--equal", choices=("calls", "steps"), default="calls")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--frozen", action="store_true", help="tasks by C_0: no Challenger training")
    parser.add_argument("--root", type=Path, default=ROOT / "bench-out" / "rewards")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    results: list[Trained] = []
    first: list[Scores] = []
    for seed in options.seeds:
        prepared = prepare(seed, options.root, options.overrides, frozen=options.frozen)
        first.append(prepared.first)
        results += [train(design, seed, prepared, options.root, options) for design in options.designs]
    print(table(results, first, options))


if __name__ == "__main__":
    main()
