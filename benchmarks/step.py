"""Where the time of one paper-sized training step goes, simulated from rates of a GPU.

    python -m benchmarks.step [--rates FILE] [--seed N]

A Solver's step is 256 tasks of 8 rollouts, up to six turns each, on 4 GPUs that train and sample by turns; every answer
is graded by four criteria by a judge on 2 or 4 more. A Challenger's step is 64 documents of 8 rollouts on 2 GPUs (their
optimizer on the host) or 4; each task is answered by 8 rollouts of a Solver on 2, with gates, rubric and grades by a
judge on 2. Rows are those of Qwen3, one per turn.

Engines run in simulated time (`step_rates`), with the library's queue and room; passes of the update are cut by the
library's own function; the reference reads the rollouts while the last of them are judged. With `ahead` (`overlap: 1`)
the policy is served by GPUs of its own, and the next step is sampled and judged while this one is updated.
`--rates` names the file that `make prove-gpu` writes; what it has not is assumed, and marked so. Goals of a
Solver's step: at most a tenth of it outside generation and update, padding of at most 1.1.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.markdown import markdown
from benchmarks.options import read_options
from benchmarks.rollouts import Load
from benchmarks.rollouts import Turn as DrawnTurn
from benchmarks.step_rates import PARAMETERS, EngineSettings, Episode, Rates, Served, Turn, read_rates, serve
from scope_selfplay.config.run import RunConfig
from scope_selfplay.plan.size import KNOWN, Assumptions
from scope_selfplay.training.passes import Passes, cut_passes, padding_factor

GOAL_OUTSIDE, GOAL_PADDING = 0.10, 1.10
GIB = 2**30
CACHE_BYTES = KNOWN["qwen3-8b"].cache_bytes
ENGINE_GIB = 3
"""What an engine needs of its share beside weights and cache: CUDA graphs, the largest batch that it reads."""
PARTS = ("generation", "judge", "reference", "update", "transfer", "other")


@dataclass(frozen=True)
class Workload:
    """One step: groups, their rollouts, tokens. `visible` of a turn stay in later prompts, as Qwen3 drops thoughts."""

    groups: int = 256
    group_size: int = 8
    prompt: int = 500
    result: int = 450
    visible: int = 60
    median_tokens: float = 280.0
    most_turns: int = 6
    criteria: int = 4
    judge_prompt: int = 1200
    judge_shared: int = 1000
    judge_tokens: float = 500.0

    @property
    def rollouts(self) -> int:
        return self.groups * self.group_size

    def episodes(self, count: int, seed: int, begins: Sequence[float] | None = None) -> list[Episode]:
        load = Load(
            "step", count, 1, most_turns=self.most_turns, median_tokens=self.median_tokens, median_search=0.2
        )
        return [
            Episode(begins[number] if begins else 0.0, tuple(self._turns(drawn)))
            for number, drawn in enumerate(load.draw(seed))
        ]

    def _turns(self, drawn: Sequence[DrawnTurn]) -> Iterator[Turn]:
        for place, (tokens, search) in enumerate(drawn):
            earlier = self.visible + self.result
            # The cache ends where a dropped thought began: what of that turn stays is read again.
            kept = self.prompt + (place - 1) * earlier if place else 0
            yield Turn(self.prompt + place * earlier, kept, tokens, search or 0.0)


@dataclass(frozen=True)
class Setup:
    """How a step is run; `ahead`: its engine has GPUs of its own and never sleeps."""

    name: str
    packed: bool = False
    ahead: bool = False


@dataclass(frozen=True)
class Layout:
    """GPUs of the trainer, of the judge, and of the Solver that the Challenger's tasks are tried on.

    `policy`: those that serve the policy in training, one step ahead; where it has none, the trainer's sample by turns.
    """

    trainer: int
    judge: int
    partner: int = 0
    policy: int = 0

    @property
    def name(self) -> str:
        counts = (self.trainer, self.policy, self.partner, self.judge)
        return " + ".join(str(count) for count in counts if count)


SETUPS = (Setup("padded"), Setup("packed", packed=True))
AHEAD = Setup("packed, ahead", packed=True, ahead=True)
SOLVER_LAYOUTS = (Layout(4, 2), Layout(4, 4), Layout(4, 2, policy=2))
CHALLENGER_LAYOUTS = (Layout(2, 2, 2), Layout(4, 2, 2), Layout(4, 2, 2, policy=2))


class Step(NamedTuple):
    """Seconds of each part of a step, and the tokens that its passes compute or wait for over the real ones."""

    role: str
    layout: str
    setup: str
    seconds: dict[str, float]
    padding: float
    passes: int
    running: float
    """Sequences that an engine decodes side by side, on average."""

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def outside(self) -> float:
        """Share of the step that is neither generation nor update; the reference belongs to the update."""
        inside = sum(self.seconds[part] for part in ("generation", "reference", "update"))
        return 1 - inside / self.total


@dataclass(frozen=True)
class Sampled:
    """Seconds from the first turn: to the last one of the policy in training, to the last one of any policy (a
    Challenger's tasks are answered), to the last verdict.
    """

    own: float
    all: float
    judged: float
    running: float


def solver_step(setup: Setup, layout: Layout, rates: Rates, work: Workload, seed: int = 0) -> Step:
    ranks = _served(setup, layout, rates, work, seed)
    ends = [end for served in ranks for end in served.ends]
    last = max(ends)
    judged = _judged([(end, work.criteria) for end in ends], layout, rates, work, seed)
    running = sum(served.running for served in ranks) / len(ranks)
    return _step("solver", setup, layout, rates, work, Sampled(last, last, max(judged), running), seed)


def challenger_step(setup: Setup, layout: Layout, rates: Rates, work: Workload, seed: int = 0) -> Step:
    """The judge meets gates and rubrics first: their calls delay the Solver's rollouts, and are among all calls."""
    ranks = _served(setup, layout, rates, work, seed)
    written = [end for served in ranks for end in served.ends]
    asked = [(end, 3) for end in written]
    gated = _judged(asked, layout, rates, work, seed)
    begins = [end for end in gated for _ in range(work.group_size)]
    tries, engine = work.episodes(len(begins), seed + 1, begins), _engine(0.9, rates)
    solved = [0.0] * len(tries)
    for copy in range(layout.partner):
        solved[copy :: layout.partner] = serve(tries[copy :: layout.partner], engine).ends
    judged = _judged([*asked, *((end, work.criteria) for end in solved)], layout, rates, work, seed)
    running = sum(served.running for served in ranks) / len(ranks)
    sampled = Sampled(max(written), max(solved), max(*judged, *solved), running)
    return _step("challenger", setup, layout, rates, work, sampled, seed)


def _served(setup: Setup, layout: Layout, rates: Rates, work: Workload, seed: int) -> list[Served]:
    """The rollouts of every engine: one a GPU of the trainer, or one a GPU of the served policy."""
    engine = _engine(0.9 if setup.ahead else RunConfig().model.vllm_memory, rates)
    engines = layout.policy or layout.trainer
    each = work.rollouts // engines
    return [serve(work.episodes(each, 100 * seed + number), engine) for number in range(engines)]


def _engine(share: float, rates: Rates) -> EngineSettings:
    """One copy of the model on a GPU of its own, as servers have where it fits."""
    room = (share * Assumptions().gpu_gib - ENGINE_GIB) * GIB - 2 * PARAMETERS
    return EngineSettings(rates, cache=int(room / CACHE_BYTES))


def _judged(
    answers: Sequence[tuple[float, int]], layout: Layout, rates: Rates, work: Workload, seed: int
) -> list[float]:
    """When each answer, which arrives then with so many calls, has all its verdicts."""
    rng, engine = random.Random(seed), _engine(0.9, rates)
    ends = [0.0] * len(answers)
    for copy in range(layout.judge):
        own = answers[copy :: layout.judge]
        calls = [_call(arrives, call, work, rng) for arrives, number in own for call in range(number)]
        ended = iter(serve(calls, engine).ends)
        ends[copy :: layout.judge] = [max(next(ended) for _ in range(number)) for _, number in own]
    return ends


def _call(arrives: float, number: int, work: Workload, rng: random.Random) -> Episode:
    """The calls about one answer share what they read, but for the criterion."""
    written = max(16, int(rng.lognormvariate(-0.125, 0.5) * work.judge_tokens))
    return Episode(arrives, (Turn(work.judge_prompt, work.judge_shared if number else 0, written),))


def _step(
    role: str, setup: Setup, layout: Layout, rates: Rates, work: Workload, sampled: Sampled, seed: int
) -> Step:
    each = work.rollouts // layout.trainer
    rows = [
        [
            (turn.prompt, turn.tokens)
            for episode in work.episodes(each, 100 * seed + rank)
            for turn in episode.turns
        ]
        for rank in range(layout.trainer)
    ]
    sizes, padding = pass_sizes(rows, setup)
    reference = sum(max(size / rates.reference, rates.pass_floor / 3) for size in sizes)
    update = sum(max(size / rates.update, rates.pass_floor) for size in sizes)
    update += rates.optimizer * (10 if layout.trainer < 4 else 1)
    before = _beside(sampled, reference + update) if layout.policy else _by_turns(sampled, reference)
    seconds = {
        "generation": 0.0,
        "judge": 0.0,
        "reference": reference,
        **before,
        "update": update,
        "transfer": rates.transfer + (0.0 if setup.ahead else rates.sleep),
        "other": rates.other,
    }
    return Step(role, layout.name, setup.name, seconds, padding, len(sizes), sampled.running)


def _by_turns(sampled: Sampled, reference: float) -> dict[str, float]:
    """The trainer's GPUs sample first. What they do while others sample or judge takes no time of its own."""
    visible = max(0.0, sampled.own + reference - max(sampled.own, sampled.all))
    ready = max(sampled.judged, sampled.own + reference)
    return {"generation": sampled.all, "judge": ready - visible - sampled.all, "reference": visible}


def _beside(sampled: Sampled, busy: float) -> dict[str, float]:
    """The next step is sampled and judged while this one is `busy` for so long: what is longer is waited for."""
    return {
        "generation": max(0.0, sampled.all - busy),
        "judge": max(0.0, sampled.judged - max(sampled.all, busy)),
    }


def pass_sizes(rows: Sequence[Sequence[tuple[int, int]]], setup: Setup) -> tuple[list[int], float]:
    """Tokens of every pass, as the slowest rank has them, and all of them over the real ones.

    `rows` are (prompt, completion) of every rank.
    """
    lengths = [[prompt + completion for prompt, completion in rank] for rank in rows]
    cuts = cut_passes(lengths, RunConfig().solver.micro_tokens, packed=setup.packed)
    return _slowest(lengths, cuts, setup.packed), padding_factor(lengths, cuts, packed=setup.packed)


def _slowest(lengths: Sequence[Sequence[int]], cuts: Sequence[Passes], packed: bool) -> list[int]:
    found = []
    for together in zip(*cuts, strict=True):
        parts = [[rank[number] for number in part] for rank, part in zip(lengths, together, strict=True)]
        found.append(max(sum(part) if packed else max(part, default=0) * len(part) for part in parts))
    return found


def all_steps(rates: Rates, seed: int) -> list[Step]:
    solver, challenger = Workload(), Workload(groups=64)
    return [
        step_of(setup, layout, rates, load, seed)
        for step_of, layouts, load in (
            (solver_step, SOLVER_LAYOUTS, solver),
            (challenger_step, CHALLENGER_LAYOUTS, challenger),
        )
        for layout in layouts
        for setup in ((AHEAD,) if layout.policy else SETUPS)
    ]


def as_table(steps: Sequence[Step]) -> str:
    heads = ["step", "GPUs", "how", "seconds", *PARTS, "outside", "padding", "passes", "running", "goals"]
    return markdown([heads, *map(_row, steps)])


def _row(step: Step) -> list[str]:
    shares = [f"{seconds / step.total:.0%}" for seconds in step.seconds.values()]
    kept = step.outside <= GOAL_OUTSIDE and step.padding <= GOAL_PADDING
    goals = ("kept" if kept else "missed") if step.role == "solver" else ""
    figures = [f"{step.outside:.0%}", f"{step.padding:.2f}", f"{step.passes:,}", f"{step.running:.0f}"]
    return [step.role, step.layout, step.setup, f"{step.total:,.0f}", *shares, *figures, goals]


def main() -> None:
    options = read_options(__doc__, rates=None, seed=0)
    rates = read_rates(options.rates)
    print("\n".join(["rates of one GPU, for 8.19 billion parameters", *rates.table(), ""]))
    print(as_table(all_steps(rates, options.seed)))


if __name__ == "__main__":
    main()
