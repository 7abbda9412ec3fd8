"""`prepare/` of a run's folder: what it needs on the volume before it starts, where its own pods run."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from scope_selfplay.cli import cli
from scope_selfplay.cluster.prepare import downloads, manual_steps, prepare_jobs
from scope_selfplay.config.run import RunConfig
from tests.unit.k8s.conftest import rendered

PAPER = {
    "name": "r1",
    "iterations": 1,
    "model": {"path": "/data/models/m0"},
    "corpus": {"path": "/data/corpus.jsonl"},
    "cluster": {"prepare": {"model": "team/m0"}, "judge": {"model": "/data/models/m0"}},
}


COPY_CORPUS = "copy the corpus to /data/corpus.jsonl, or name its URL: cluster.prepare.corpus"
JOBS = ("controller", "probe-volume", "fetch-model", "fetch-encoder", "build-index")
PUBLISHED = {"urls": ["https://example.org/psgs.tsv.gz"], "sha256": "ab" * 32}
PARTS = {"urls": ["hf://datasets/a/b@c/part_aa", "hf://datasets/a/b@c/part_ab"], "sha256": "cd" * 32}


def config_of(**cluster: Any) -> RunConfig:
    return RunConfig.model_validate({**PAPER, "cluster": {**PAPER["cluster"], **cluster}})  # type: ignore[dict-item]


def rendered_run(top: Path, *components: str, **cluster: Any) -> Path:
    """The run's folder, as `scope k8s render` writes it."""
    top.mkdir(exist_ok=True)
    (top / "run.yaml").write_text(yaml.safe_dump(config_of(**cluster).model_dump(mode="json")))
    more = [word for each in components for word in ("--component", each)]
    done = CliRunner().invoke(cli, ["k8s", "render", str(top / "run.yaml"), "--to", str(top), *more])
    assert done.exit_code == 0, done.output
    return top / "k8s" / "runs" / "r1"


def jobs_below(folder: Path) -> dict[str, dict[str, Any]]:
    """Pod specs of the Jobs that prepare and evaluate the run, and of its controller."""
    parts = [folder, *(folder / part for part in ("prepare", "prepare/warm-start", "evaluate"))]
    folders = [each for each in parts if each.is_dir()]
    return {
        body["metadata"]["name"]: body["spec"]["template"]["spec"]
        for each in folders
        for body in rendered(each)
        if body["kind"] == "Job"
    }


def test_what_prepares_a_run_goes_where_its_pods_go(tmp_path: Path) -> None:
    mount = {"name": "extra-ca", "mountPath": "/etc/company"}
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy"}
    folder = rendered_run(
        tmp_path,
        images={"worker": "registry.example/scope:2"},
        volume_claim="shared",
        pod={
            "spec": {
                "nodeSelector": {"pool": "cpu"},
                "securityContext": {"fsGroup": 12345},
                "volumes": [{"name": "extra-ca", "configMap": {"name": "ca"}}],
                "containers": [{"name": "main", "volumeMounts": [mount], "env": [proxy]}],
            }
        },
    )
    jobs = jobs_below(folder)
    assert jobs.keys() == {f"r1-{job}" for job in JOBS}
    for pod in jobs.values():
        assert pod["containers"][0]["image"] == "registry.example/scope:2"
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "shared"
        assert pod["securityContext"]["fsGroup"] == 12345 and pod["nodeSelector"] == {"pool": "cpu"}
        assert pod["securityContext"]["runAsUser"] == 10_001
        (container,) = pod["containers"]
        assert mount in container["volumeMounts"] and proxy in container["env"]
        assert len(container["volumeMounts"]) > 1 and len(container["env"]) > 1
    kinds = {body["kind"] for body in rendered(folder / "shared")}
    assert kinds == {"ServiceAccount", "NetworkPolicy", "Role", "RoleBinding"}, (
        "the claim was created by others"
    )


LABEL, HOST = {"scope/single-node": "true"}, {"kubernetes.io/hostname": "n1"}
OF_ONE_NODE = {"accessModes": ["ReadWriteOnce"], "storageClassName": "nfs"}


def placed(selector: dict[str, str]) -> dict[str, Any]:
    return {"pod": {"spec": {"nodeSelector": selector}}}


@pytest.mark.parametrize(
    ("components", "cluster", "node"),
    [
        (("single-node",), {}, LABEL),
        (("single-node",), placed({"pool": "a"}), {"pool": "a", **LABEL}),
        # Without rights on nodes.
        ((), {"claim": OF_ONE_NODE, **placed(HOST)}, HOST),
    ],
    ids=["label", "label and selector", "host"],
)
def test_the_claim_is_the_runs_from_the_first_and_all_of_it_is_on_one_node(
    components: tuple[str, ...], cluster: dict[str, Any], node: dict[str, str], tmp_path: Path
) -> None:
    evaluate = {"checkpoints": ["S_1"], "benchmarks": ["embedded"]}
    prepare = {
        **PAPER["cluster"]["prepare"],
        "warm_start": {"start": "/data/models/base", "trajectories": ["/data/t"]},
    }  # type: ignore[index]
    folder = rendered_run(tmp_path, *components, **cluster, evaluate=evaluate, prepare=prepare)
    (claim,) = [body for body in rendered(folder / "shared") if body["kind"] == "PersistentVolumeClaim"]
    assert claim["spec"].items() >= {"accessModes": ["ReadWriteOnce"], **cluster.get("claim", {})}.items()
    jobs = jobs_below(folder)
    assert jobs.keys() >= {"r1-evaluate", "r1-warm-start"}
    for name, pod in jobs.items():
        assert pod["nodeSelector"] == node, name


def test_deleting_a_job_that_prepares_deletes_no_data(tmp_path: Path) -> None:
    folder = rendered_run(tmp_path, "single-node", "namespace")
    bodies = rendered(folder / "prepare")
    assert {(body["kind"], body["metadata"]["namespace"]) for body in bodies} == {("Job", "scope")}
    first = rendered(folder / "shared")
    assert {body["metadata"].get("namespace", "scope") for body in first} == {"scope"}


def test_a_run_in_tiny_mode_needs_nothing_on_the_volume(tmp_path: Path) -> None:
    folder = rendered_run(tmp_path, tiny=True)
    assert not (folder / "prepare").exists()
    assert list(manual_steps(config_of(tiny=True))) == []


def test_what_no_job_brings_is_said() -> None:
    named = config_of(prepare={"model": "team/m0@abc", "judge": "team/j"}, judge={"model": "/data/models/j"})
    assert [*downloads(named)] == ["model", "judge", "encoder"]
    assert list(manual_steps(named)) == [COPY_CORPUS]
    loose = config_of(prepare={"encoder": None, "index": []}, judge={"model": "/data/models/j"})
    (jobs,) = prepare_jobs(loose).values()
    assert [body["metadata"]["name"] for body in jobs] == ["r1-probe-volume", "r1-build-index"]
    assert list(manual_steps(loose)) == [
        "copy the model to /data/models/m0, or name its repository: cluster.prepare.model",
        "copy the model to /data/models/j, or name its repository: cluster.prepare.judge",
        COPY_CORPUS,
    ]


def test_a_commit_behind_a_model_is_fetched(tmp_path: Path) -> None:
    jobs = jobs_below(rendered_run(tmp_path, prepare={"model": "team/m0@abc"}))
    assert jobs["r1-fetch-model"]["containers"][0]["args"] == [
        *("--model", "team/m0", "--folder", "/data/models/m0", "--revision", "abc")
    ]


def test_corpus_and_published_vectors_are_fetched_and_the_index_is_made_of_them(tmp_path: Path) -> None:
    folder = rendered_run(tmp_path, prepare={"model": "team/m0", "corpus": PUBLISHED, "vectors": PARTS})
    vectors = f"/data/corpus/vectors-{'cd' * 6}.faiss"
    # One folder is all of it: one command to apply, one label to wait for.
    jobs = {body["metadata"]["name"]: body for body in rendered(folder / "prepare")}
    assert {body["metadata"]["labels"]["scope/prepares"] for body in jobs.values()} == {"r1"}
    pods = {name: body["spec"]["template"]["spec"]["containers"][0] for name, body in jobs.items()}
    for name in ("r1-fetch-corpus", "r1-fetch-vectors"):
        assert pods[name]["command"] == ["scope", "index", "fetch"]
    assert pods["r1-fetch-corpus"]["args"] == [
        *("/data/corpus.jsonl", "--sha256", "ab" * 32, "--url", PUBLISHED["urls"][0])
    ]
    assert pods["r1-fetch-vectors"]["args"][0] == vectors
    assert [word for word in pods["r1-fetch-vectors"]["args"] if word.startswith("hf:")] == PARTS["urls"]
    assert pods["r1-build-index"]["args"][-2:] == ["--vectors", vectors]
    assert list(manual_steps(config_of(prepare={"model": "team/m0", "corpus": PUBLISHED}))) == []


def test_what_prepares_has_no_deadline_after_which_its_work_would_wait_for_a_person(tmp_path: Path) -> None:
    folder = rendered_run(tmp_path, prepare={"model": "team/m0", "corpus": PUBLISHED})
    for body in rendered(folder / "prepare"):
        assert "activeDeadlineSeconds" not in body["spec"], body["metadata"]["name"]
        assert body["spec"]["backoffLimit"] >= 30 or "probe" in body["metadata"]["name"]
