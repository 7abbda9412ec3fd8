"""`make bench-step`: the simulated engine keeps time by its rates, and a step's parts are what they must be."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.step import (
    AHEAD,
    BEFORE,
    GOAL_OUTSIDE,
    GOAL_PADDING,
    PARTS,
    SETUPS,
    Layout,
    Setup,
    Step,
    Workload,
    all_steps,
    as_table,
    challenger_step,
    pass_sizes,
    solver_step,
)
from benchmarks.step_engine import EngineSettings, Episode, Turn, serve
from benchmarks.step_rates import PARAMETERS, Rates, read_rates
from scope_selfplay.config import RunConfig

RATES = Rates(decode_step=0.01, cache_read=0.0, prefill=1000.0)
SMALL = Workload(groups=16)
LAYOUT = Layout(4, 2)


def settings(**changes: object) -> EngineSettings:
    return replace(EngineSettings(RATES, cache=100_000), **changes)


def test_an_episode_alone_takes_what_it_reads_and_writes() -> None:
    """400 tokens read, 30 steps; two seconds of search; 150 new tokens behind 400 that are still there, 20 steps."""
    episode = Episode(1.0, (Turn(400, 0, 30, pause=2.0), Turn(550, 400, 20)))
    served = serve([episode], settings())
    assert served.ends == pytest.approx([1.0 + 0.4 + 0.3 + 2.0 + 0.15 + 0.2])
    assert served.read == 550 and served.running == pytest.approx(1.0)


def test_sequences_decode_side_by_side_and_the_cache_slows_all_of_them() -> None:
    two = [Episode(0.0, (Turn(100, 0, 50),)), Episode(0.0, (Turn(100, 0, 80),))]
    assert serve(two, settings()).ends == pytest.approx([0.2 + 0.5, 0.2 + 0.8])
    slower = serve(two, settings(rates=replace(RATES, cache_read=1e-4))).ends
    assert slower[0] == pytest.approx(0.2 + 50 * (0.01 + 200 * 1e-4))
    shared = serve(two[:1], settings(gpus=2)).ends
    assert shared == pytest.approx([0.05 + 50 * (0.005 + RATES.parallel)])


def test_turns_first_come_first_served_read_again_what_others_drove_out() -> None:
    turns = (Turn(1000, 0, 50), Turn(1500, 1000, 50), Turn(2000, 1500, 50))
    episodes = [Episode(0.0, turns)] * 40
    ordered, arrival = (serve(episodes, settings(cache=8000, later_first=order)) for order in (True, False))
    assert arrival.read > 0.95 * 40 * (1000 + 1500 + 2000)
    assert 40 * 2000 <= ordered.read < 0.8 * arrival.read
    assert sum(ordered.ends) < 0.8 * sum(arrival.ends) and max(ordered.ends) < max(arrival.ends)


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: str(setup.name))
@pytest.mark.parametrize("role", [solver_step, challenger_step])
def test_the_parts_of_a_step_add_up(role: object, setup: Setup) -> None:
    assert callable(role)
    step: Step = role(setup, Layout(4, 2, 2), Rates(), SMALL)
    assert tuple(step.seconds) == PARTS and all(seconds >= 0 for seconds in step.seconds.values())
    assert sum(step.share(part) for part in PARTS) == pytest.approx(1.0)
    inside = step.share("generation") + step.share("update") + step.share("reference")
    assert step.outside == pytest.approx(1 - inside)
    assert step.padding >= 1.0


def seconds(setup: Setup, layout: Layout = LAYOUT) -> Step:
    # A judge that is slow for so few answers, as a step of 2,048 has it.
    return solver_step(setup, layout, Rates(), replace(SMALL, judge_tokens=4000.0))


def test_every_change_makes_a_step_shorter() -> None:
    setup, total = BEFORE, seconds(BEFORE).total
    for change in (
        {"later_first": True},
        {"cache_share": 0.6},
        {"overlapped": True},
        {"budget": 16_384},
        {"early": True},
        {"packed": True},
    ):
        setup = replace(setup, **change)  # type: ignore[arg-type]
        shorter = seconds(setup).total
        assert shorter <= total + 0.01, change
        total = shorter


def test_the_reference_reads_while_the_step_is_judged() -> None:
    late, early = seconds(Setup("late", early=False)), seconds(Setup("early"))
    reference = late.seconds["reference"]
    assert 0 < reference < late.seconds["judge"]
    assert early.seconds["judge"] == pytest.approx(late.seconds["judge"] - reference)
    assert early.total == pytest.approx(late.total - reference)
    # The other way round, the wait is part of the reading.
    quick = [
        solver_step(setup, Layout(4, 4), Rates(reference=1_000.0), SMALL)
        for setup in (Setup("late", early=False), Setup("early"))
    ]
    assert quick[1].seconds["judge"] == pytest.approx(0.0)
    assert quick[1].total == pytest.approx(quick[0].total - quick[0].seconds["judge"])


def test_the_papers_solver_keeps_the_goal_where_the_judge_is_slowest() -> None:
    step = solver_step(Setup("now"), Layout(4, 2), Rates(), Workload())
    assert step.outside <= GOAL_OUTSIDE and step.padding <= GOAL_PADDING
    # Without reading meanwhile it does not.
    assert solver_step(Setup("late", early=False), Layout(4, 2), Rates(), Workload()).outside > GOAL_OUTSIDE


def test_a_challengers_reference_reads_while_its_tasks_are_answered() -> None:
    late, early = (
        challenger_step(Setup("", early=early), Layout(4, 2, 2), Rates(), SMALL) for early in (False, True)
    )
    assert early.seconds["reference"] == 0.0 and early.seconds["generation"] == late.seconds["generation"]
    assert early.total == pytest.approx(late.total - late.seconds["reference"])


def test_one_step_ahead_lasts_as_long_as_the_longer_of_sampling_and_updating() -> None:
    slow, quick = (
        solver_step(AHEAD, Layout(4, 2, policy=2), Rates(update=rate), SMALL) for rate in (100.0, 1e6)
    )
    assert slow.seconds["generation"] == slow.seconds["judge"] == 0.0
    busy = [each.seconds["reference"] + each.seconds["update"] for each in (slow, quick)]
    waited = [each.seconds["generation"] + each.seconds["judge"] for each in (slow, quick)]
    # Sampling and judging take what they take.
    assert waited[1] > 0 and busy[0] > busy[1] + waited[1]
    assert quick.seconds["transfer"] == Rates().transfer


def test_more_gpus_for_the_judge_never_make_a_step_longer() -> None:
    assert seconds(Setup("now"), Layout(4, 4)).seconds["judge"] < seconds(Setup("now")).seconds["judge"]


def test_passes_by_tokens_compute_every_row_and_little_else() -> None:
    rows = [
        [(turn.prompt, turn.tokens) for episode in Workload().episodes(200, rank) for turn in episode.turns]
        for rank in range(4)
    ]
    real = sum(prompt + after for rank in rows for prompt, after in rank)
    paddings = {}
    for setup in SETUPS[:3]:
        sizes, padding = pass_sizes(rows, setup, seed=0)
        assert sum(sizes) * len(rows) == pytest.approx(padding * real)
        paddings[setup.name] = padding
        if setup.budget is not None:
            assert max(sizes) <= setup.budget
    assert 1.0 <= paddings["now, packed"] <= paddings["now"] <= 1.10 < 1.5 < paddings["before"]


def test_the_workload_of_a_step_is_the_papers() -> None:
    assert Workload().groups == RunConfig().solver.batch
    assert Workload().group_size == RunConfig().challenger.rollouts == RunConfig().solver.group_size


def test_rates_come_from_a_file_of_results_and_say_so(tmp_path: Path) -> None:
    file = tmp_path / "gpu.jsonl"
    lines = [
        {"machine": "H200", "parameters": PARAMETERS / 2, "rates": {"prefill": 50_000.0, "transfer": 2.0}},
        {
            "machine": "H200",
            "part": "solver-step",
            "status": "ok",
            "parameters": 1.7e9,
            "rates": {"decode_step": 0.004, "update": 8190.0},
        },
        {"machine": "H200", "part": "colocated", "status": "failed", "rates": {"sleep": 99.0}},
        {"machine": "H200", "part": "sharded", "status": "ok", "parameters": None, "rates": {}},
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    rates = read_rates(file)
    assert rates.prefill == pytest.approx(25_000) and rates.transfer == pytest.approx(4.0)
    assert rates.decode_step == pytest.approx(8.19 / 1.7 * 0.004)
    assert rates.update == pytest.approx(1700)
    table = rates.table()
    measured = {line.split()[0] for line in table if "measured: H200" in line}
    assert measured == {"prefill", "transfer", "decode_step", "update"}
    assert sum("assumed" in line for line in table) == len(table) - 4
    assert all(line.endswith("assumed") for line in read_rates(None).table())


def test_the_table_has_a_row_for_every_role_layout_and_setup() -> None:
    steps = all_steps(Rates(), seed=0, work=SMALL)
    assert len({(step.role, step.layout, step.setup) for step in steps}) == len(steps) == 14
    heads, *rows = as_table(steps)
    assert len(rows) == 14 and len({len(line) for line in (heads, *rows)}) == 1
