"""Whether the ranks of a training go out of step: seeded plans of rows, delays, faults and stops on real processes.

A plan trains a tiny policy on made-up rollouts, on two or three ranks over gloo, plain or sharded by FSDP, with at most
one fault. What its ranks came to and agreed is compared, how they ended, what they said, and how soon after the fault.
A training that a fault has ended is gone on with, to the weights of one without a fault. tests/fsdp/test_ranks.py tries
plans, and `make bench-ranks` 200 of them.
"""

import json
import os
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.forked import fork_server

CODES = {"user": 64, "outside": 75, "bug": 1, "memory": 1, "ctrl-c": 130, "term": 143, "term all": 143}
CODES |= {"kill": 137, "exit": 9, "hung": 143}
"""What may happen, and the code that the job ends with then; `hung`: a rank that SIGTERM finds in what never ends."""
STOPS = ("term", "term all", "hung")
HARD = ("kill", "exit")
"""Nobody but the launcher knows why."""
ON_ANY_RANK = ("take", "push", "sampling", "judging", "refer", "account", "pass", "optimizer", "saving")
ON_THE_FIRST = ("metrics", "on_step", "publishing", "reading", "export")
_BUG = ("Error: a planned fault", "this is a bug in scope")
ALL = -1


class Fault(NamedTuple):
    """In step `step` (from 0), at `moment`, `kind` happens on `rank` (or on ALL), while others sample (`slow`)."""

    kind: str
    moment: str
    rank: int
    step: int = 1
    slow: str = ""


@dataclass(frozen=True)
class Plan:
    """`share`: groups of each rank in a step; `rounds`: how often ranks gather something while they sample one."""

    seed: int = 0
    ranks: int = 2
    steps: int = 2
    share: int = 1
    group: int = 2
    rounds: int = 0
    trainings: int = 1
    """One after the other in the same processes; a fault is in the last."""
    sharded: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    fault: Fault | None = None

    @classmethod
    def read(cls, text: str) -> "Plan":
        plan = cls(**json.loads(text))
        return replace(plan, fault=Fault(*plan.fault) if plan.fault else None)


@dataclass(frozen=True)
class Outcome:
    """`after`: seconds from the fault to the end, None without one; `codes`: None where the launcher killed a rank."""

    code: int
    codes: Sequence[int | None]
    said: Sequence[str]
    after: float | None
    traces: Sequence[Sequence[Sequence[str]]]
    weights: Sequence[str]


class Tried(NamedTuple):
    plan: Plan
    outcome: Outcome
    wrong: list[str]


def drawn(seed: int) -> Plan:
    """The moment of a fault may never come."""
    rng = random.Random(seed)
    ranks, steps, share = rng.choice((2, 2, 3)), rng.randint(1, 3), rng.choice((1, 2))
    places = [(each, rng.choice((ALL, *range(ranks)))) for each in ON_ANY_RANK]
    moment, rank = rng.choice([*places, *((each, 0) for each in ON_THE_FIRST)])
    kind, slow = rng.choice([*CODES][:-1]), rng.choice(("", "", "awaits", "blocks"))
    settings = {
        "updates": rng.randint(1, share),
        "epochs": rng.choice((1, 1, 2)),
        "overlap": rng.choice((0, 1)),
        "save_every": rng.choice((1, 2)),
        "kl_beta": rng.choice((0.0, 0.1)),
        "loss": rng.choice(("grpo", "dr_grpo", "dapo", "cispo", "gspo")),
        "micro_tokens": rng.choice((1, 60, 1000)),
    }
    fault = Fault(kind, moment, rank, rng.randrange(steps), slow) if rng.random() < 0.85 else None
    group, rounds, trainings = rng.choice((2, 3)), rng.choice((0, 1, 2)), rng.choice((1, 1, 2))
    return Plan(seed, ranks, steps, share, group, rounds, trainings, rng.random() < 0.3, settings, fault)


class Ground(NamedTuple):
    """Where plans are tried: a folder, the beginning of a rank's command line, and the policy."""

    folder: Path
    command: list[str]
    policy: Path


@contextmanager
def ground(folder: Path) -> Iterator[Ground]:
    from benchmarks.tiny_tokenizer import build_tokenizer
    from scope_selfplay.testing.random_policy import small_qwen3

    tokenizer, policy = build_tokenizer(), folder / "policy"
    small_qwen3(tokenizer, positions=256).save_pretrained(str(policy))
    tokenizer.save_pretrained(str(policy))
    with fork_server("benchmarks.planned_rank", folder) as command:
        yield Ground(folder, command, policy)


def tried(plan: Plan, name: str, ground: Ground) -> Tried:
    """A plan, and after a fault the same command again, beside a training that had none."""
    whole = replace(plan, fault=None)
    if plan.fault and plan.fault.moment == "reading":
        start(replace(whole, steps=max(1, plan.steps - 1)), name, ground)
    outcome = start(plan, name, ground)
    found = wrong(plan, outcome)
    if outcome.after is not None:
        again, undisturbed = start(whole, name, ground), start(whole, f"{name}-whole", ground)
        found += [f"gone on with: {each}" for each in wrong(whole, again) + wrong(whole, undisturbed)]
        found += ["gone on to other weights"] if again.weights != undisturbed.weights else []
        shutil.rmtree(ground.folder / f"{name}-whole")
    return Tried(plan, outcome, found)


def start(plan: Plan, name: str, ground: Ground) -> Outcome:
    """Runs a plan under the project's own launcher; what it saves stays in the folder of this name."""
    from jobs.launch import TrainingNode, rank_environments, run_ranks

    folder = ground.folder / name
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        if file.is_file():
            file.unlink()
    environments = rank_environments(TrainingNode(plan.ranks))
    for number, variables in enumerate(environments):
        variables["ENDING"] = str(folder / f"ending-{number}")
        variables |= {"SCOPE_FSDP_SHARERS": str(plan.ranks)} if plan.sharded else {}
    told, said = [json.dumps(asdict(plan)), str(folder), str(ground.policy), str(os.getpid())], list[str]()
    ending, ended = run_ranks([*ground.command, *told], environments, said.append, grace=20.0), time.time()

    def left(kind: str) -> list[str]:
        files = [folder / f"{kind}-{number}" for number in range(plan.ranks)]
        return [file.read_text() if file.exists() else "" for file in files]

    return Outcome(
        ending.code,
        [int(code) if code else None for code in left("ending")],
        [line for line in said if not line.endswith("] ") and line],
        ended - float((folder / "fault").read_text()) if (folder / "fault").exists() else None,
        [[json.loads(line) for line in trace.splitlines()] for trace in left("trace")],
        left("weights"),
    )


def wrong(plan: Plan, outcome: Outcome) -> list[str]:
    """What did not hold, in a few words each."""
    fault, after = plan.fault, outcome.after
    found = list(_differences(outcome.traces, ahead=0 if after is None else 1))
    if fault is None or after is None or (fault.kind in STOPS and not outcome.code):
        # A stop may come too late to end anything.
        if outcome.code or any(outcome.codes):
            found.append(f"ended with {outcome.code}, {outcome.codes}")
        if len(set(outcome.weights)) > 1 or not all(outcome.weights):
            found.append("ranks have other weights than each other")
        if any("SIGTERM: " not in line for line in outcome.said):
            found.append(f"said {outcome.said[:9]}")
        return found
    # A rank that had to be killed, since it did not end in time, has no code of its own.
    if outcome.code != CODES[fault.kind] or (
        fault.kind not in HARD and set(outcome.codes) != {CODES[fault.kind]}
    ):
        found.append(f"ended with {outcome.code}, {outcome.codes}")
    mark = f"[rank {fault.rank}] " if fault.rank else ""
    said = [line for line in outcome.said if "SIGTERM: " not in line]
    own = [line for line in said if (line.startswith(mark) if mark else not line.startswith("[rank "))]
    lines = said if fault.rank == ALL else own
    words = {"bug": _BUG, "memory": _BUG}.get(fault.kind, ("rank: ",))
    quiet = fault.kind in (*HARD, *STOPS)
    if lines if quiet else any(sum(word in line for line in lines) != 1 for word in words):
        found.append(f"said {lines[:9]}")
    if others := [line for line in said if line not in lines]:
        found.append(f"others said {others[:9]}")
    return found


def _differences(traces: Sequence[Sequence[Sequence[str]]], *, ahead: int) -> Iterator[str]:
    """Where ranks came to something else than each other, knew something else, or one came further than `ahead`."""
    made: dict[str, set[str]] = defaultdict(set)
    for stream in ("loop", "rollouts"):
        for words in (2, 3):
            of_ranks = [
                [each for each in trace if each[0] == stream and len(each) == words] for trace in traces
            ]
            lengths = [len(each) for each in of_ranks]
            for place, came in enumerate(zip(*of_ranks, strict=False)):
                if any(each != came[0] for each in came):
                    yield f"out of step at {place}: {came}"
            if max(lengths) - min(lengths) > ahead:
                yield f"{stream}: {lengths}"
    for _, name, *known in (each for trace in traces for each in trace if each[0] == "once"):
        made[name].update(known)
    yield from (f"made twice: {name}" for name, known in made.items() if len(known) > 1)
