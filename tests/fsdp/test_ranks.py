"""Whatever ends one rank ends all of them, at once and with one line, and the same command goes on: on real processes.

Plans are drawn, 200 of them by `make bench-ranks`; the events are each rank's turn to fail in each phase.
All are tried side by side, since ranks mostly wait.
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import pytest

from benchmarks.ranks import ALL, Fault, Ground, Plan, Tried, drawn, ground, start, tried
from scope_selfplay.base.machine import folder_lock
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.checkpoint import Checkpoints
from scope_selfplay.training.ranks import Ranks

pytestmark = pytest.mark.fsdp


def events() -> Iterator[Plan]:
    """Each rank fails in turn, in each phase of the second step."""
    for sharded in (False, True):
        for rank in range(2):
            for moment in ("sampling", "judging", "pass"):
                for kind in ("bug", "memory"):
                    yield Plan(sharded=sharded, fault=Fault(kind, moment, rank))
            # While the others gather weights, compute, or sample for a minute.
            yield Plan(sharded=sharded, fault=Fault("outside", "push", rank))
            yield Plan(sharded=sharded, fault=Fault("user", "saving", rank))
            yield Plan(sharded=sharded, fault=Fault("outside", "sampling", rank, slow="blocks"))
            yield Plan(sharded=sharded, fault=Fault("ctrl-c", "judging", rank, slow="awaits"))
            yield Plan(sharded=sharded, fault=Fault("hung", "pass", rank))
            yield Plan(sharded=sharded, fault=Fault("kill", "pass", rank))
        for moment in ("metrics", "on_step", "publishing", "reading", "export"):
            yield Plan(sharded=sharded, fault=Fault("outside", moment, 0))
    for rank in (0, 1, 2, ALL):
        yield Plan(ranks=3, fault=Fault("user", "sampling", rank, slow="awaits"))
        yield Plan(ranks=3, rounds=2, fault=Fault("bug", "refer", rank))


def name_of(plan: Plan) -> str:
    fault = plan.fault
    assert fault is not None
    rank = "all" if fault.rank == ALL else f"rank {fault.rank}"
    mode = " under FSDP" if plan.sharded else ""
    slow = f" while others {fault.slow.removesuffix('s')}" if fault.slow else ""
    return f"{fault.kind} in {fault.moment} on {rank} of {plan.ranks}{mode}{slow}"


EVENTS = {name_of(plan): plan for plan in events()}
PLANS = {f"plan {seed}": drawn(seed) for seed in range(int(os.environ.get("SCOPE_RANK_PLANS", 8)))}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ground(tmp_path_factory.mktemp("ranks")) as found:
        yield found


@pytest.fixture(scope="module")
def tries(request: pytest.FixtureRequest, here: Ground) -> Iterator[Mapping[str, "Future[Tried]"]]:
    """What became of the plans of all selected tests."""
    asked = [getattr(item, "callspec", None) for item in request.session.items]
    names = [each.params["name"] for each in asked if each is not None and "name" in each.params]
    known = PLANS | EVENTS
    with ProcessPoolExecutor(3) as pool:
        yield {name: pool.submit(tried, known[name], name, here) for name in names if name in known}


@pytest.mark.parametrize("name", PLANS)
def test_ranks_stay_in_step_and_end_together(name: str, tries: Mapping[str, "Future[Tried]"]) -> None:
    found = tries[name].result()
    assert found.wrong == [], (found.plan, found.outcome.said)


@pytest.mark.parametrize("name", EVENTS)
def test_what_ends_a_rank_ends_all_and_the_same_command_goes_on_to_the_same_weights(
    name: str, tries: Mapping[str, "Future[Tried]"]
) -> None:
    found = tries[name].result()
    assert found.wrong == [], found.outcome.said
    assert found.outcome.after is not None, "it never happened"


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(
    ("kind", "moment", "complete"), [("term", "optimizer", 2), ("term all", "optimizer", 2), ("hung", "sampling", 1)]
)  # fmt: skip
def test_a_stop_keeps_every_complete_step_and_costs_the_one_under_way_alone(
    kind: str, moment: str, complete: int, sharded: bool, here: Ground
) -> None:
    """The second step, of which no checkpoint was due, or in which a rank samples for a minute."""
    settings, name = {"save_every": 3 if moment == "optimizer" else 1}, f"{kind} {sharded}"
    plan = Plan(steps=3, sharded=sharded, settings=settings, fault=Fault(kind, moment, 1))
    outcome = start(plan, name, here)
    assert outcome.code == 143 and outcome.after is not None and set(outcome.codes) == {143}
    training = here.folder / name / "training-0"
    assert [each.name for each in (training / ".work").glob("checkpoint-*")] == [f"checkpoint-{complete}"]
    newest = Checkpoints(training / ".work", Ranks()).newest(print)
    assert newest is not None and newest.name == f"checkpoint-{complete}"
    assert [row["step"] for row in read_rows(training / "metrics.jsonl")] == [*range(1, complete + 1)]


def test_ranks_whose_leader_finds_the_stage_done_behind_its_lock_end_with_0_at_once(tmp_path: Path) -> None:
    from tests.integration.jobs.test_launching import Training

    training = Training(tmp_path)
    alone = training.start("--iteration", "1")
    assert (alone.communicate(timeout=300), alone.returncode)[1] == 0
    stage = training.folder.path
    manifest, aside = stage / "manifest.json", tmp_path / "manifest.json"
    manifest.rename(aside)
    said: list[str] = []
    with folder_lock(
        stage, stage.with_name(f".{stage.name}.lock"), work="writing", say=said.append, timeout=1.0
    ):
        job = training.start("--iteration", "1", "--processes", "2")
        assert job.stderr is not None
        while "waiting up to" not in (line := job.stderr.readline()):
            assert line, said
            said.append(line)
        aside.rename(manifest)
    said.append(job.communicate(timeout=120)[1])
    assert job.returncode == 0, said
