"""A stage as one JobSet: what it holds, and that its controller waits, ends and goes on with it."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from scope_selfplay.controller.api import Body, ObjectKind
from scope_selfplay.controller.gangs import LONGEST_NAME, gang, jobs_of
from scope_selfplay.controller.observed import JOB_SET
from scope_selfplay.controller.servers import server_service, servers_of
from scope_selfplay.controller.stage_jobs import StageAttempt
from scope_selfplay.errors import ConfigError, ExitCode
from scope_selfplay.k8s.check import schema_problems
from scope_selfplay.store import Stage
from scope_selfplay.testing.fake_gangs import FakeGangs, gpus_of
from scope_selfplay.testing.fake_nodes import PodEnding
from tests.unit.controller.examples import PAPER, a_step, config_of, context_of
from tests.unit.controller.worlds import ONE, World

GANG = {"gang": {"queue": "research"}}
CRDS = Path(__file__).parents[2] / "fixtures" / "crds" / "queues.yaml"
STAGE = "i01-train-solver"


def a_gang(stage: Stage = Stage.CHALLENGER, name: str = "r1", **cluster: Any) -> Body:
    config = config_of(PAPER, name=name, cluster=PAPER["cluster"] | GANG | cluster)
    step = a_step(1, stage)
    return gang(context_of(config), StageAttempt(step, 2), servers_of(config, step, (True,)))


def a_world(tmp_path: Path, **cluster: Any) -> tuple[World, FakeGangs]:
    world = World(tmp_path, ONE | {"cluster": ONE["cluster"] | GANG | cluster})
    world.have_done_all_but(STAGE)
    return world, FakeGangs(world.cluster, queue="research")


def pods_of(world: World) -> list[Body]:
    return list(world.cluster.objects(ObjectKind.POD).values())


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize(
    "cluster",
    [
        {"judge": PAPER["cluster"]["judge"] | {"replicas": 2}},
        {"train_solver": {"gpus": 8, "nodes": 2}, "make_tasks": {"shards": 4}},
    ],
)
def test_every_gang_fits_the_schema_of_job_set_and_its_jobs_those_of_kubernetes(
    stage: Stage, cluster: dict[str, Any]
) -> None:
    body = a_gang(stage, **cluster)
    crd = next(
        each
        for each in yaml.safe_load_all(CRDS.read_text())
        if each["metadata"]["name"].startswith("jobsets")
    )
    (version,) = crd["spec"]["versions"]
    assert body["apiVersion"] == f"{crd['spec']['group']}/{version['name']}"
    jsonschema.Draft202012Validator(_strict(version["schema"]["openAPIV3Schema"])).validate(body)
    assert schema_problems(jobs_of(body)) == []


def _strict(schema: Body) -> Body:
    """What a server drops silently is a mistake here."""
    found = {key: _strict(value) if key == "items" else value for key, value in schema.items()}
    if "properties" in schema:
        found["properties"] = {key: _strict(value) for key, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            found["additionalProperties"] = False
    return found


def test_one_gang_holds_every_gpu_of_its_stage_and_waits_suspended_in_its_queue() -> None:
    body = a_gang()
    assert [part["name"] for part in body["spec"]["replicatedJobs"]] == [
        "judge",
        "retriever",
        "solver",
        "stage",
    ]
    assert gpus_of(body) == 6
    assert body["spec"]["suspend"] is True
    assert body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert body["spec"]["successPolicy"]["targetReplicatedJobs"] == ["stage"]


def test_a_gang_is_deleted_with_its_run_and_is_no_part_of_its_job_to_kueue() -> None:
    """Kueue before 0.12 leaves alone what a Job controls, also with a queue of its own."""
    (owner,) = a_gang()["metadata"]["ownerReferences"]
    assert owner["kind"] == "Job" and "controller" not in owner


def test_a_stage_begins_when_its_servers_answer_and_each_server_is_found_by_its_service() -> None:
    *_, stage = jobs_of(a_gang())
    (waiting,) = stage["spec"]["template"]["spec"]["initContainers"]
    urls = [word for word in waiting["command"] if word.startswith("http")]
    assert urls == [f"http://{name}:8000/health" for name in ("r1-judge", "r1-retriever", "r1-i01-solver")]
    config = config_of(PAPER, cluster=PAPER["cluster"] | GANG)
    servers = servers_of(config, a_step(1, Stage.CHALLENGER), (True,))
    for server, job in zip(servers, jobs_of(a_gang()), strict=False):
        labels = job["spec"]["template"]["metadata"]["labels"]
        assert server_service(context_of(config), server)["spec"]["selector"].items() <= labels.items()
        assert job["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"


def test_ranks_meet_by_the_names_that_job_set_gives_them() -> None:
    body = a_gang(Stage.SOLVER, train_solver={"gpus": 8, "nodes": 2})
    *_, stage = jobs_of(body)
    assert (stage["spec"]["completions"], stage["spec"]["completionMode"]) == (2, "Indexed")
    variables = {
        each["name"]: each.get("value") for each in stage["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    name = "r1-i01-train-solver-a2"
    assert variables["SCOPE_RENDEZVOUS"] == f"{name}-stage-0-0.{name}:29500"
    assert body["spec"]["network"] == {"enableDNSHostnames": True}


def test_shards_are_pods_of_one_job_and_what_collects_them_comes_after() -> None:
    body = a_gang(Stage.TASKS, make_tasks={"shards": 4})
    *_, share, collect = body["spec"]["replicatedJobs"]
    assert share["template"]["spec"]["completions"] == 4
    assert (
        "$(JOB_COMPLETION_INDEX)/4"
        in share["template"]["spec"]["template"]["spec"]["containers"][0]["command"]
    )
    assert collect["dependsOn"] == [{"name": "stage", "status": "Complete"}]
    assert body["spec"]["successPolicy"]["targetReplicatedJobs"] == ["collect"]


def test_names_fit_into_63_characters_or_the_run_is_refused(tmp_path: Path) -> None:
    for stage in Stage:
        for job in jobs_of(a_gang(stage, name="a" * LONGEST_NAME, train_solver={"gpus": 8, "nodes": 2})):
            # Those of several attempts more; pods of an Indexed Job are <job>-<rank>-<five letters>.
            more = len("99") + (len("-15-abcde") if job["spec"]["completionMode"] == "Indexed" else 0)
            assert len(job["metadata"]["name"]) + more <= 63
    world = World(tmp_path, ONE | {"name": "a" * 21, "cluster": ONE["cluster"] | GANG})
    with pytest.raises(ConfigError, match=r"21 characters; with cluster\.gang at most 20"):
        world.controller()


def test_a_stage_that_its_queue_has_not_admitted_says_so_and_holds_nothing(tmp_path: Path) -> None:
    world, gangs = a_world(tmp_path)
    gangs.gpus = 4
    controller = world.controller()
    for _ in range(30):
        controller.round()
        world.cluster.advance(15)
    assert world.status["message"] == f"r1-{STAGE}-a1 waits for admission by queue research"
    assert "Queued" in world.reasons and "quota" not in world.messages
    assert pods_of(world) == [] and world.nodes.taken() == 0
    gangs.gpus = 8
    assert world.drive(controller).code is ExitCode.DONE
    assert world.jobs_created[f"r1-{STAGE}-a1-stage-0"] == 1
    world.cluster.advance(60)
    assert not world.cluster.objects(ObjectKind.DEPLOYMENT) and pods_that_live(world) == []


def pods_that_live(world: World) -> list[str]:
    return [
        pod["metadata"]["name"] for pod in pods_of(world) if pod["status"]["phase"] in ("Pending", "Running")
    ]


def test_a_stage_that_kueue_preempts_goes_on_when_it_is_admitted_again(tmp_path: Path) -> None:
    world, gangs = a_world(tmp_path)
    world.nodes.seconds = 100
    controller = world.controller()
    for _ in range(3):
        controller.round()
        world.cluster.advance(15)
    gangs.preempt(f"r1-{STAGE}-a1")
    gangs.gpus = 0
    world.cluster.advance(15)
    controller.round()
    assert "waits for admission by queue research" in world.status["message"]
    assert world.nodes.taken() == 0
    gangs.gpus = 8
    assert world.drive(controller).code is ExitCode.DONE
    assert '"failures_counted":0' in world.status["ledger"]


ENDINGS = {
    "bug": (PodEnding(1, message="KeyError"), "KeyError", 1),
    "outside": (
        PodEnding(75, message="the judge is down"),
        "something outside was down (the judge is down)",
        0,
    ),
    "node": (PodEnding(137, status={"reason": "Evicted"}), "its pod was evicted", 0),
}


@pytest.mark.fault(16)
@pytest.mark.parametrize("kind", ENDINGS)
def test_a_gang_whose_stage_fails_is_judged_by_its_stages_pod(tmp_path: Path, kind: str) -> None:
    ending, said, counted = ENDINGS[kind]
    endings = iter([ending])
    world, _ = a_world(tmp_path)
    stages = world.stages
    world.nodes.work = lambda job, rank: next(endings, None) or stages(job, rank)
    assert world.drive().code is ExitCode.DONE
    assert said in world.messages
    assert f'"failures_counted":{counted}' in world.status["ledger"]
    assert sorted(world.cluster.objects(ObjectKind.JOB_SET)) == [f"r1-{STAGE}-a1", f"r1-{STAGE}-a2"]


@pytest.mark.fault(16)
def test_a_gang_that_meets_its_deadline_costs_a_retry(tmp_path: Path) -> None:
    world, _ = a_world(tmp_path, train_solver={"deadline": 100})
    world.nodes.seconds = 1e9
    controller = world.controller()
    for _ in range(12):
        controller.round()
        world.cluster.advance(15)
    assert "it met its deadline" in world.messages
    world.nodes.seconds = 20
    assert world.drive(controller).code is ExitCode.DONE


@pytest.mark.fault(16)
def test_a_server_of_a_gang_that_was_given_wrong_input_ends_the_run(tmp_path: Path) -> None:
    world, _ = a_world(tmp_path)
    world.nodes.leaves_alone = lambda name: "-judge-" in name
    controller = world.controller()
    for _ in range(4):
        controller.round()
        world.cluster.advance(15)
    (judge,) = [pod for pod in pods_of(world) if "-judge-" in pod["metadata"]["name"]]
    ended = {"terminated": {"exitCode": 64, "message": "scope: no such index"}}
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    judge["status"] = {
        "phase": "Running",
        "containerStatuses": [{"name": "main", "state": state, "lastState": ended}],
    }
    world.nodes.leaves_alone = lambda name: False
    end = world.drive(controller)
    assert (end.code, end.message) == (ExitCode.USER, "r1-judge: scope: no such index")
    world.cluster.advance(60)
    assert not world.cluster.objects(ObjectKind.JOB_SET) and world.nodes.taken() == 0


def test_a_gang_that_somebody_else_made_is_left_alone(tmp_path: Path) -> None:
    world, _ = a_world(tmp_path)
    labels = {"scope/run": "r1", "scope/iteration": "01", "scope/stage": "train-solver", "scope/attempt": "1"}
    body = {
        "metadata": {"name": f"r1-{STAGE}-a1", "labels": labels},
        "spec": {"suspend": True, "replicatedJobs": []},
    }
    world.cluster.put(ObjectKind.JOB_SET, body)
    controller = world.controller()
    controller.round()
    assert "which another controller owns" in world.status["message"]
    assert list(world.cluster.objects(ObjectKind.JOB_SET)) == [f"r1-{STAGE}-a1"]


def test_pods_of_a_gang_belong_to_it(tmp_path: Path) -> None:
    world, _ = a_world(tmp_path)
    controller = world.controller()
    for _ in range(3):
        controller.round()
        world.cluster.advance(15)
    assert {pod["metadata"]["labels"][JOB_SET] for pod in pods_of(world)} == {f"r1-{STAGE}-a1"}
    assert len(pods_of(world)) == 3
