"""Whole runs on the fake cluster: what is created, in which order, what is left, what the status says of them; and
settings, prompts and numbers of shards that change while a run goes on."""

import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from scope_selfplay.base.errors import ConfigError, ExitCode
from scope_selfplay.base.intervals import Estimate
from scope_selfplay.cluster.folder import shipped_kustomize
from scope_selfplay.cluster.pods import Label, RunStage
from scope_selfplay.config.run import RunConfig
from scope_selfplay.driver.api import VERBS, ObjectKind
from scope_selfplay.driver.loop import Controller
from scope_selfplay.driver.metrics import RunCollector
from scope_selfplay.driver.parts import Inputs, RunEnd, read_inputs, training_progress
from scope_selfplay.prompts.folder import shipped_prompts
from scope_selfplay.store.columns import TaskTarget
from scope_selfplay.store.files import write_atomic
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.ratings import Ratings
from scope_selfplay.testing.fake_nodes import PodEnding
from tests.models import write_model
from tests.unit.controller.worlds import ONE, PAPER, World, config_of

TWO = PAPER | {"iterations": 2}


@pytest.mark.integration
def test_every_stage_has_its_servers_alone_and_none_is_left(tmp_path: Path) -> None:
    seen: dict[str, list[str]] = {}
    solvers: dict[str, set[str]] = {}
    world = World(tmp_path, TWO)

    def work(job: dict[str, Any], rank: int) -> PodEnding:
        seen[job["metadata"]["name"]] = sorted(world.cluster.objects(ObjectKind.DEPLOYMENT))
        pods = [pod["metadata"] for pod in world.cluster.objects(ObjectKind.POD).values()]
        own = {pod["uid"] for pod in pods if pod["name"].startswith("r1-i01-solver-")}
        solvers[job["metadata"]["name"]] = own
        return world.stages(job, rank)

    world.nodes.work = work
    assert world.drive() == RunEnd(ExitCode.DONE, "every stage is done")
    always = ["r1-judge", "r1-retriever"]
    partners = {"train-challenger": ["solver"], "make-tasks": ["challenger", "solver"]}
    partners |= {"train-solver": [], "compare": ["solver"]}
    expected = {
        "r1-i00-make-tasks-a1": ["r1-i00-challenger", *always],
        "r1-i00-compare-a1": ["r1-i00-solver", *always],
    }
    for iteration in ("r1-i01", "r1-i02"):
        for stage, needed in partners.items():
            expected[f"{iteration}-{stage}-a1"] = [*(f"{iteration}-{each}" for each in needed), *always]
    assert seen == expected
    assert list(world.jobs_created.items()) == [(name, 1) for name in expected]
    # The frozen Solver of `challenger` goes on in `tasks`: it is made for these two, and for `compare`.
    assert solvers["r1-i01-train-challenger-a1"] == solvers["r1-i01-make-tasks-a1"] != set()
    assert world.cluster.created[(ObjectKind.DEPLOYMENT, "r1-i01-solver")] == 2
    state = world.end_state()
    assert (state["servers"], state["services"]) == ([], [])
    assert (world.nodes.peak, world.status["phase"]) == (6, "Done")
    assert world.reasons.count("StageStarted") == world.reasons.count("StageDone") == 10


@pytest.mark.integration
def test_an_iteration_that_is_not_there_or_not_yet_in_its_turn_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path / "two", TWO)
    run_end = world.drive(world.controller(only=2))
    assert (run_end.code, run_end.message[-24:]) == (ExitCode.USER, "apply iteration-01 first")
    assert not world.jobs_created
    world = World(tmp_path / "one", only=["nothing"])
    run_end = world.drive(world.controller(only=2))
    assert (run_end.code, run_end.message[:33]) == (ExitCode.USER, "the run has no such iteration; se")


def test_a_comparison_that_stops_the_run_ends_it_well_and_refuses_later_iterations(tmp_path: Path) -> None:
    settings = PAPER | {"iterations": 3, "compare": {"stop": "worse"}}
    world = World(tmp_path, settings, only=["i02-train-challenger"])
    ratings = {"promoted": False, "decision": "stop", "reason": "S_1 is worse than S_0"}
    world.stages.folder.stage(1, Stage.COMPARE).ratings.write_text(json.dumps(ratings))
    advice = "with compare.stop=never it goes on all the same"
    assert world.drive() == RunEnd(
        ExitCode.DONE, f"stopped after iteration 1: S_1 is worse than S_0; {advice}"
    )
    assert world.status["progress"] == "6 of 6 stages done"
    job = world.add_controller_job("r1-i02-controller")
    run_end = world.drive(world.controller(identity="pod-2", job=job, only=2))
    assert (run_end.code, "S_1 is worse than S_0" in run_end.message) == (ExitCode.USER, True)
    going_on = PAPER | {"iterations": 3}
    world.inputs = world.inputs._replace(config=config_of(going_on))
    assert world.drive(world.controller(identity="pod-3")).message == "every stage is done"
    assert list(world.jobs_created) == ["r1-i02-train-challenger-a1"]


@pytest.mark.integration
def test_the_verbs_used_are_those_that_the_role_grants(tmp_path: Path) -> None:
    """The Role lies in k8s/shared; tests/cluster runs with it."""
    world = World(tmp_path, ONE | {"cluster": ONE["cluster"] | {"make_tasks": {"shards": 2}}})

    def work(job: dict[str, Any], rank: int) -> PodEnding | None:
        # One shard ends with the user's mistake while the other still runs and has to be deleted.
        return PodEnding(exit_code=64) if job["metadata"]["labels"][Label.SHARD] == "1" else None

    world.work_on("i01-make-tasks", work)
    controller = world.controller()
    assert world.drive(controller).code is ExitCode.USER
    list(controller.hand.cluster.changes(ObjectKind.JOB, "", 1))
    world.cluster.said["r1-judge-1"] = []
    list(controller.hand.cluster.log("r1-judge-1", "", previous=False))
    used = controller.hand.cluster.verbs_used | controller.hand.leadership.cluster.verbs_used
    # Server-side apply is a patch that asks for `create` too where the object is new.
    used |= {(group, resource, "create") for group, resource, verb in used if verb == "patch"}
    assert used == {(*resource, verb) for resource, verbs in VERBS.items() for verb in verbs}
    *_, role, binding = yaml.safe_load_all((shipped_kustomize() / "shared" / "rights.yaml").read_text())
    assert used == {
        (group, resource, verb)
        for rule in role["rules"]
        for group, resource, verb in product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }
    assert (role["kind"], binding["roleRef"]["name"]) == ("Role", role["metadata"]["name"])
    assert [each["name"] for each in binding["subjects"]] == ["scope-controller"]


def test_a_run_id_that_cannot_name_a_service_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name: found '2024'; on a cluster a run's id begins with a letter"):
        World(tmp_path, ONE | {"name": "2024"}).controller()


def write_rows(folder: RunFolder, stage: Stage, count: int, tail: str = "") -> None:
    metrics = folder.stage(1, stage).metrics
    metrics.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"step": number, "step_seconds": 90.0 + number, "reward": 0.5} for number in range(1, count + 1)]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)


def test_step_rate_time_left_and_reward_are_one_line(tmp_path: Path) -> None:
    config, folder = config_of(PAPER), RunFolder(tmp_path / "r1")
    assert training_progress(folder, config, RunStage(1, Stage.SOLVER)) == ""
    write_rows(folder, Stage.SOLVER, 10, tail='{"step": 11, "rew')
    line = training_progress(folder, config, RunStage(1, Stage.SOLVER))
    assert line == "step 10 of 20, 98 s a step, about 16 min left, reward 0.500"
    longer = config_of(PAPER, solver={"steps": 200})
    assert "about 5.2 h left" in training_progress(folder, longer, RunStage(1, Stage.SOLVER))
    assert training_progress(folder, config, RunStage(1, Stage.TASKS)) == ""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, only=["i01-train-solver", "i01-compare"])


def test_the_status_tells_of_the_training_and_of_little_room_for_as_long_as_they_last(world: World) -> None:
    controller = world.controller()
    controller.round()
    assert "training" not in world.status and "volume" not in world.status
    write_rows(world.stages.folder, Stage.SOLVER, 2)
    note = world.stages.folder.stage(1, Stage.SOLVER).room
    note.parent.mkdir()
    note.write_text("r1: 10.0 GiB are free on its volume\n")
    controller.round()
    assert world.status["training"].startswith("step 2 of ")
    assert world.status["volume"] == "r1: 10.0 GiB are free on its volume"
    note.unlink()
    world.drive(controller)
    assert "training" not in world.status and "volume" not in world.status
    assert world.reasons.count("LittleRoom") == 1


def test_prometheus_sees_what_the_run_has_reached(world: World) -> None:
    folder = world.stages.folder
    write_rows(folder, Stage.SOLVER, 7, tail='{"step": 8, "rew')
    seen = read_metrics(folder, world)
    assert seen["scope_run_stages_done", ()] == seen["scope_run_stages", ()] - 2
    here = ("01", "train-solver")
    assert seen["scope_run_stage", here] == 1 and seen["scope_training_step", here] == 7
    assert seen["scope_training_reward", here] == 0.5 and ("scope_training_kl", here) not in seen
    held_out = Estimate(value=0.25, low=None, high=None, items=1)
    ratings = Ratings(promoted=True, ratings={"S_0": 0.0}, held_out={"S_0": {"all": held_out}})
    folder.stage(0, Stage.COMPARE).ratings.write_text(ratings.model_dump_json())
    seen = read_metrics(folder, world)
    assert seen["scope_run_rating", ("S_0",)] == 0 and seen["scope_run_held_out_score", ("S_0",)] == 0.25
    # Damage is for the controller to tell; the rest is still shown.
    (folder.stage(0, Stage.TASKS).path / "manifest.json").write_text("{")
    assert read_metrics(folder, world)["scope_run_stages_done", ()] == seen["scope_run_stages_done", ()] - 1


def read_metrics(folder: RunFolder, world: World) -> dict[tuple[str, tuple[str, ...]], float]:
    families = RunCollector(folder, world.config).collect()
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_the_status_says_which_iterations_ended_below_their_target(tmp_path: Path) -> None:
    world = World(tmp_path)
    controller = world.controller()
    while controller.round() is None:
        world.cluster.advance(10)
        for iteration, accepted in ((1, 3000), (2, 5120)):
            folder = world.stages.folder.stage(iteration, Stage.TASKS)
            if folder.manifest is not None:
                reached = TaskTarget(accepted=accepted, target=5120)
                write_atomic(folder.target, reached.model_dump_json())
    assert world.status["below_target"] == "iteration 1: 3000 of 5120 tasks"


STAGE = "i01-train-solver"
_MOUNTED = ONE | {"domain": "embedded", "seed": 0, "corpus": {"sample": 16}, "judge": {"kind": "lexical"}}


class Mounted(NamedTuple):
    """A run's settings and prompts as its controller's pod has them, and the volume."""

    folder: Path
    runs: Path

    def read(self) -> Inputs:
        return read_inputs(self.folder / "run.yaml", self.runs, self.folder / "prompts", (), name="r1")

    def replace(self, old: str, new: str) -> None:
        """Edit the settings, and the Solver's prompt."""
        files = (self.folder / "run.yaml", self.folder / "prompts" / "embedded" / "solver.md")
        assert any(old in file.read_text() for file in files)
        for file in files:
            file.write_text(file.read_text().replace(old, new))


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    folder = tmp_path / "mounted"
    shutil.copytree(shipped_prompts() / "embedded", folder / "prompts" / "embedded")
    settings = _MOUNTED | {"model": {"path": str(write_model(tmp_path / "model"))}}
    (folder / "run.yaml").write_text(yaml.safe_dump(settings))
    return Mounted(folder, tmp_path / "runs")


def run_a_job(world: World, controller: Controller) -> None:
    world.have_done_all_but(STAGE, "i01-compare")
    world.go_until(controller, lambda: world.status.get("jobs"))


@pytest.mark.fault(19)
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seed: 0", "seed: 7", "belongs to another config (changed: seed)"),
        ("seed: 0", "sed: 7", "run.yaml: unknown setting sed;"),
        ("seed: 0", "seed: [", "run.yaml: not valid YAML"),
        ("name: r1", "name: r2", "name: found 'r2', this controller's run is 'r1'"),
        ("Task: ", "Question: ", "was begun with prompts"),
    ],
    ids=["setting", "unknown setting", "no YAML", "name", "prompt"],
)
def test_an_edit_lets_the_running_stage_end_and_is_then_refused_by_name(
    mounted: Mounted, old: str, new: str, said: str, restarts: bool
) -> None:
    world = World(mounted.runs, _MOUNTED)
    controller = world.controller(read=mounted.read)
    run_a_job(world, controller)
    mounted.replace(old, new)
    if restarts:
        controller.stop()
        controller = world.controller(read=mounted.read)
    controller.round()
    assert world.nodes.taken() > 0, "the running stage was not let end"
    run_end = world.drive(controller)
    assert (run_end.code, said in run_end.message) == (ExitCode.USER, True), run_end.message
    assert run_end.message.startswith("changed since the run began: ")
    assert list(world.jobs_created) == [f"r1-{STAGE}-a1"]
    assert world.stages.published == [f"{STAGE} by r1-{STAGE}-a1"]
    assert (world.status["phase"], world.nodes.taken()) == ("Failed", 0)
    assert "Edited" in world.reasons


@pytest.mark.fault(19)
def test_a_run_folder_that_cannot_be_read_any_more_counts_as_an_edit(mounted: Mounted) -> None:
    world = World(mounted.runs, _MOUNTED)
    controller = world.controller(read=mounted.read)
    run_a_job(world, controller)
    world.stages.folder.config.write_text("{")
    end = world.drive(controller)
    assert (end.code, "not valid YAML" in end.message) == (ExitCode.USER, True), end.message


@pytest.mark.fault(19)
def test_a_running_job_that_computes_something_else_is_never_adopted(tmp_path: Path) -> None:
    world = World(tmp_path, only=[STAGE, "i01-compare"])
    controller = world.running()
    world.inputs = world.inputs._replace(prompt_hash="fedcba9876543210")
    run_end = world.drive(controller)
    assert run_end.code is ExitCode.USER
    assert run_end.message.startswith(f"r1-{STAGE}-a1 was made from other settings or prompts")


def test_a_damaged_manifest_ends_the_run_and_frees_the_gpus(tmp_path: Path) -> None:
    world = World(tmp_path, only=[STAGE, "i01-compare"])
    controller = world.running()
    (world.stages.folder.path / "iteration-00" / "compare" / "manifest.json").write_text("{")
    run_end = world.drive(controller)
    assert (run_end.code, "manifest.json: damaged" in run_end.message) == (ExitCode.USER, True)
    assert (world.end_state()["servers"], world.nodes.taken()) == ([], 0)


def test_a_record_of_attempts_that_was_edited_by_hand_ends_the_run(tmp_path: Path) -> None:
    world = World(tmp_path, only=[STAGE])
    body = {"metadata": {"name": "r1-status", "labels": {}}, "data": {"ledger": "{"}}
    world.cluster.put(ObjectKind.CONFIG_MAP, body)
    run_end = world.drive()
    assert (run_end.code, "its ledger cannot be read" in run_end.message) == (ExitCode.USER, True)


FIRST, SECOND = "i00-make-tasks", "i01-make-tasks"
EDITS = [(4, 2), (4, 8), (4, 1), (1, 4)]


@pytest.mark.fault(19)
@pytest.mark.parametrize(("before", "after"), EDITS)
def test_a_stage_ends_with_the_shards_that_it_began_with_and_the_next_takes_the_new_number(
    tmp_path: Path, before: int, after: int
) -> None:
    world = _running(tmp_path, before)
    _edit(world, after)
    assert world.drive().code is ExitCode.DONE
    assert set(world.jobs_created.values()) == {1}
    assert _made(world, FIRST) == _names(FIRST, before)
    assert _made(world, SECOND) == _names(SECOND, after)


@pytest.mark.fault(19)
@pytest.mark.parametrize(("before", "after"), EDITS)
def test_an_edit_between_attempts_does_not_change_the_shards(tmp_path: Path, before: int, after: int) -> None:
    world, failed = World(tmp_path, _sharing(before), only=[FIRST]), list[str]()
    last = _names(FIRST, before)[before - 1]

    def work(job: dict[str, Any], rank: int) -> PodEnding:
        failed.append(job["metadata"]["name"])
        return PodEnding(75, message="judge is down")

    world.work_on(last, work)
    controller = world.controller()
    world.go_until(controller, lambda: failed)
    world.cluster.advance(5)
    _edit(world, after)
    assert world.drive(controller).code is ExitCode.DONE
    assert sorted(_made(world, FIRST)) == sorted([*_names(FIRST, before), last.removesuffix("a1") + "a2"])


def _running(root: Path, shards: int) -> World:
    """A world in which the Jobs of the first task making run."""
    world = World(root, _sharing(shards), only=[FIRST, SECOND])
    controller = world.controller()
    world.go_until(controller, lambda: len(world.status.get("jobs", "").split()) == shards)
    controller.stop()
    return world


def _sharing(shards: int) -> dict[str, Any]:
    return ONE | {"cluster": ONE["cluster"] | {"make_tasks": {"shards": shards}}}


def _edit(world: World, shards: int) -> None:
    config: RunConfig = config_of(_sharing(shards))
    world.inputs = world.inputs._replace(config=config)


def _names(step: str, shards: int) -> list[str]:
    parts = [f"r1-{step}-s{shard:02d}-a1" for shard in range(shards)] if shards > 1 else []
    return [*parts, f"r1-{step}-a1"]


def _made(world: World, step: str) -> list[str]:
    return [name for name in world.jobs_created if step in name]
