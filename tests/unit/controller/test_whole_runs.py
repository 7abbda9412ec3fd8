"""Whole runs on the fake cluster: what is created, in which order, and what is left."""

import gc
import json
import pathlib
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import ConfigError, ExitCode
from scope_selfplay.cluster import stages
from scope_selfplay.cluster.pods import SHARD
from scope_selfplay.config.load import load_config
from scope_selfplay.driver.api import VERBS, ObjectKind
from scope_selfplay.driver.loop import Controller
from scope_selfplay.driver.parts import RunEnd, steps_of
from scope_selfplay.store.folder import Stage
from scope_selfplay.testing.fake_nodes import PodEnding
from tests.unit.controller.examples import PAPER, config_of
from tests.unit.controller.worlds import ONE, World

ORDER = [
    "i00-make-tasks",
    "i00-compare",
    "i01-train-challenger",
    "i01-make-tasks",
    "i01-train-solver",
    "i01-compare",
]


@pytest.mark.integration
def test_a_run_goes_through_every_stage_once_and_leaves_no_server(tmp_path: Path) -> None:
    world = World(tmp_path, PAPER | {"iterations": 2})
    run_end = world.drive()
    assert run_end == RunEnd(ExitCode.DONE, "every stage is done")
    later = [f"i02-{stage}" for stage in ("train-challenger", "make-tasks", "train-solver", "compare")]
    assert list(world.jobs_created) == [f"r1-{step}-a1" for step in (*ORDER, *later)]
    assert set(world.jobs_created.values()) == {1}
    state = world.end_state()
    assert (state["servers"], state["services"]) == ([], [])
    assert world.nodes.peak == 6
    assert world.status["phase"] == "Done"
    assert world.reasons.count("StageStarted") == world.reasons.count("StageDone") == 10


@pytest.mark.integration
def test_servers_of_a_stage_are_gone_before_the_next_stage_begins(tmp_path: Path) -> None:
    seen: dict[str, list[str]] = {}
    solvers: dict[str, set[str]] = {}
    world = World(tmp_path)

    def work(job: dict[str, Any], rank: int) -> PodEnding:
        seen[job["metadata"]["name"]] = sorted(world.cluster.objects(ObjectKind.DEPLOYMENT))
        pods = [pod["metadata"] for pod in world.cluster.objects(ObjectKind.POD).values()]
        own = {pod["uid"] for pod in pods if pod["name"].startswith("r1-i01-solver-")}
        solvers[job["metadata"]["name"]] = own
        return world.stages(job, rank)

    world.nodes.work = work
    world.drive()
    always = ["r1-judge", "r1-retriever"]
    assert seen == {
        "r1-i00-make-tasks-a1": ["r1-i00-challenger", *always],
        "r1-i00-compare-a1": ["r1-i00-solver", *always],
        "r1-i01-train-challenger-a1": ["r1-i01-solver", *always],
        "r1-i01-make-tasks-a1": ["r1-i01-challenger", "r1-i01-solver", *always],
        "r1-i01-train-solver-a1": always,
        "r1-i01-compare-a1": ["r1-i01-solver", *always],
    }
    # The frozen Solver of stage A goes on in stage B: it is made for these two, and for D.
    first, second = solvers["r1-i01-train-challenger-a1"], solvers["r1-i01-make-tasks-a1"]
    assert first and first == second
    assert world.cluster.created[(ObjectKind.DEPLOYMENT, "r1-i01-solver")] == 2


@pytest.mark.integration
def test_replicas_are_servers_of_their_own_and_a_stage_waits_for_each(tmp_path: Path) -> None:
    judge = PAPER["cluster"]["judge"] | {"replicas": 2}
    world = World(tmp_path, ONE | {"cluster": PAPER["cluster"] | {"judge": judge, "solver": {"replicas": 2}}})
    settings: dict[str, list[str]] = {}

    def work(job: dict[str, Any], rank: int) -> PodEnding:
        settings[job["metadata"]["name"]] = job["spec"]["template"]["spec"]["containers"][0]["command"]
        return world.stages(job, rank)

    world.nodes.work = work
    world.nodes.gpus = 16
    assert world.drive().code is ExitCode.DONE
    told = settings["r1-i01-make-tasks-a1"]
    assert "judge.endpoint.base_url=[http://r1-judge:8000/v1, http://r1-judge-1:8000/v1]" in told
    assert "partners.solver.base_url=[http://r1-i01-solver:8000/v1, http://r1-i01-solver-1:8000/v1]" in told
    assert "partners.challenger.base_url=http://r1-i01-challenger:8000/v1" in told
    parsed = load_config(None, [told[row + 1] for row, argument in enumerate(told) if argument == "--set"])
    assert parsed.judge.endpoint.each_url == ("http://r1-judge:8000/v1", "http://r1-judge-1:8000/v1")
    assert world.nodes.peak == 2 * 2 + 2 * 2 + 2
    caches = sorted(path.name.rpartition("-")[0] for path in (tmp_path / "r1" / "cache").iterdir())
    assert caches == ["challenger", "judge", "judge-1", "solver", "solver-1"]
    assert world.end_state()["servers"] == []


@pytest.mark.parametrize(
    ("change", "left_out"),
    [
        ({"challenger": {"freeze_after": 0}}, ["train-challenger"]),
        ({"solver": {"tasks": "x"}}, ["train-challenger", "make-tasks"]),
    ],
)
def test_stages_that_a_run_does_without_are_left_out(
    tmp_path: Path, change: dict[str, Any], left_out: list[str]
) -> None:
    names = [step.name for step in steps_of(World(tmp_path, ONE | change).config)]
    assert names == [step for step in ORDER if step.removeprefix("i01-") not in left_out]


@pytest.mark.integration
def test_iterations_one_by_one_make_what_the_run_makes(tmp_path: Path) -> None:
    whole = World(tmp_path / "a", PAPER | {"iterations": 2})
    whole.drive()
    parts = World(tmp_path / "b", PAPER | {"iterations": 2})
    for iteration in (1, 2):
        job = parts.add_controller_job(f"r1-i0{iteration}-controller")
        identity = f"pod-{iteration}"
        run_end = parts.drive(parts.controller(job=job, identity=identity, only=iteration))
        assert run_end.code is ExitCode.DONE
    assert parts.stages.published == whole.stages.published


@pytest.mark.integration
def test_an_iteration_whose_predecessor_is_not_complete_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, PAPER | {"iterations": 2})
    run_end = world.drive(world.controller(only=2))
    assert run_end.code is ExitCode.USER
    assert run_end.message.endswith("apply iteration-01 first")
    assert not world.jobs_created


@pytest.mark.integration
def test_an_iteration_that_the_run_does_not_have_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.drive()
    run_end = world.drive(world.controller(identity="pod-2", only=2))
    assert (run_end.code, run_end.message[:33]) == (ExitCode.USER, "the run has no such iteration; se")


def test_a_comparison_that_stops_the_run_ends_it_well_and_refuses_later_iterations(tmp_path: Path) -> None:
    settings = PAPER | {"iterations": 3, "compare": {"stop": "worse"}}
    world = World(tmp_path, settings, only=["i02-train-challenger"])
    ratings = {"promoted": False, "decision": "stop", "reason": "S_1 is worse than S_0"}
    world.stages.folder.stage(1, Stage.COMPARE).ratings.write_text(json.dumps(ratings))
    assert world.drive() == RunEnd(ExitCode.DONE, "stopped after iteration 1: S_1 is worse than S_0")
    assert world.status["progress"] == "6 of 6 stages done"
    job = world.add_controller_job("r1-i02-controller")
    run_end = world.drive(world.controller(identity="pod-2", job=job, only=2))
    assert (run_end.code, "S_1 is worse than S_0" in run_end.message) == (ExitCode.USER, True)
    going_on = PAPER | {"iterations": 3}
    world.inputs = world.inputs._replace(config=config_of(going_on))
    assert world.drive(world.controller(identity="pod-3")).message == "every stage is done"
    assert list(world.jobs_created) == ["r1-i02-train-challenger-a1"]


@pytest.mark.integration
def test_applying_a_finished_run_again_does_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.drive()
    before = world.end_state()
    job = world.add_controller_job("r1-again-controller")
    assert world.drive(world.controller(job=job, identity="pod-2")).code is ExitCode.DONE
    after = world.end_state()
    assert after | {"jobs": []} == before | {"jobs": []}
    assert set(after["jobs"]) - set(before["jobs"]) == {job}


@pytest.mark.integration
def test_an_hour_of_waiting_costs_few_calls_and_writes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, work=lambda job, rank: None)
    controller = world.controller()
    world.go(controller, 300, step=15)
    before = len(world.cluster.calls)
    world.go(controller, 900, step=15)
    calls_per_hour = 4 * (len(world.cluster.calls) - before)
    # 240 rounds of four lists; the Lease is read and written every other round.
    assert calls_per_hour == 240 * 4 + 120 * 2
    assert not [call for call in world.cluster.calls[before:] if call.method in ("POST", "PATCH", "DELETE")]


@pytest.mark.integration
def test_memory_grows_neither_with_time_nor_with_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = PodEnding(exit_code=75, message="judge is down")
    monkeypatch.setattr(stages, "KEPT", 600)
    world = World(tmp_path, ONE, work=lambda job, rank: down, tick=15.0, only=["i01-train-solver"])
    controller = world.controller()
    _go_and_forget(world, controller, 500)
    tracemalloc.start()
    gc.collect()
    objects = len(gc.get_objects())
    _go_and_forget(world, controller, 2000)
    gc.collect()
    kept = len(gc.get_objects()) - objects
    # pathlib interns the names that it sees: at some number of them the interpreter's table doubles.
    made = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, pathlib.__file__)])
    tracemalloc.stop()
    attempts = json.loads(world.status["ledger"])["histories"]["i01-train-solver"]["latest"]
    assert attempts > 50
    assert world.cluster.now / 3600 > 10
    # Nothing that a round makes is kept. (Allocations, not resident pages: other tests share this process.)
    assert kept < 200
    assert sum(statistic.size for statistic in made.statistics("filename")) < 256 * 1024


def _go_and_forget(world: World, controller: Controller, rounds: int) -> None:
    """Rounds after which the fake cluster, which lives in the same process, keeps nothing but what is there."""
    for _ in range(rounds):
        assert controller.round() is None
        world.cluster.advance(15)
        world.cluster.calls.clear()
        world.said.clear()
        for name in world.cluster.objects(ObjectKind.EVENT):
            world.cluster.erase(ObjectKind.EVENT, name)
        there = {(kind, name) for kind in ObjectKind for name in world.cluster.objects(kind)}
        world.cluster.created = {key: 1 for key in world.cluster.created if key in there}


@pytest.mark.integration
def test_the_verbs_used_are_the_verbs_granted(tmp_path: Path) -> None:
    world = World(tmp_path, ONE | {"cluster": ONE["cluster"] | {"make_tasks": {"shards": 2}}})

    def work(job: dict[str, Any], rank: int) -> PodEnding | None:
        # One shard ends with the user's mistake while the other still runs and has to be deleted.
        return PodEnding(exit_code=64) if job["metadata"]["labels"][SHARD] == "1" else None

    world.work_on("i01-make-tasks", work)
    controller = world.controller()
    assert world.drive(controller).code is ExitCode.USER
    list(controller.cluster.changes(ObjectKind.JOB, "", 1))
    used: dict[tuple[str, str], set[str]] = {}
    for group, resource, verb in controller.cluster.verbs_used | controller.leadership.cluster.verbs_used:
        used.setdefault((group, resource), set()).add(verb)
    # Server-side apply is a patch that asks for `create` too where the object is new.
    for verbs in used.values():
        if "patch" in verbs:
            verbs.add("create")
    assert used == {resource: set(verbs) for resource, verbs in VERBS.items()}


def test_a_run_id_that_cannot_name_a_service_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name: found '2024'; on a cluster a run's id begins with a letter"):
        World(tmp_path, ONE | {"name": "2024"}).controller()
