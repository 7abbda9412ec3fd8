"""`prepare/` of a run's folder: what it needs on the volume before it starts, where its own pods run."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from scope_selfplay.cli import cli
from scope_selfplay.config import RunConfig, load_config
from scope_selfplay.errors import ConfigError
from scope_selfplay.k8s.prepare import manual_steps, model_downloads, prepare_parts
from tests.unit.k8s.conftest import rendered

PAPER = {
    "name": "r1",
    "iterations": 1,
    "model": {"path": "/data/models/m0"},
    "corpus": {"path": "/data/corpus.jsonl"},
    "cluster": {"prepare": {"model": "team/m0"}, "judge": {"model": "/data/models/m0"}},
}


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
    """Pod specs of the Jobs that prepare the run, and of its controller."""
    folders = [folder, *sorted(folder.glob("prepare/*"))]
    return {
        body["metadata"]["name"]: body["spec"]["template"]["spec"]
        for each in folders
        for body in rendered(each)
        if body["kind"] == "Job"
    }


def test_what_prepares_a_run_goes_where_its_pods_go(tmp_path: Path) -> None:
    folder = rendered_run(
        tmp_path,
        images={"worker": "registry.example/scope:2"},
        volume_claim="shared",
        user=12345,
        node_selector={"pool": "cpu"},
        tolerations=[{"key": "spot", "effect": "NoSchedule"}],
        priority_class="low",
        pull_secret="registry",
        volumes=[{"name": "extra-ca", "path": "/etc/company", "source": {"configMap": {"name": "ca"}}}],
    )
    jobs = jobs_below(folder)
    assert jobs.keys() == {"r1-controller", "fetch-model", "fetch-encoder", "build-index"}
    for pod in jobs.values():
        assert pod["containers"][0]["image"] == "registry.example/scope:2"
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "shared"
        assert pod["securityContext"]["fsGroup"] == 12345 and pod["nodeSelector"] == {"pool": "cpu"}
        assert pod["tolerations"] == [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}]
        assert pod["priorityClassName"] == "low" and pod["imagePullSecrets"] == [{"name": "registry"}]
        mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        assert mounts["extra-ca"] == "/etc/company"
    kinds = {body["kind"] for body in rendered(folder / "shared")}
    assert kinds == {"ServiceAccount", "NetworkPolicy", "Role", "RoleBinding"}, (
        "the claim was created by others"
    )


@pytest.mark.parametrize(
    ("components", "cluster", "node"),
    [
        (("single-node",), {}, {"scope/single-node": "true"}),
        (("single-node",), {"node_selector": {"pool": "a"}}, {"pool": "a", "scope/single-node": "true"}),
        # Without rights on nodes.
        (
            (),
            {"access_mode": "ReadWriteOnce", "node_selector": {"kubernetes.io/hostname": "n1"}},
            {"kubernetes.io/hostname": "n1"},
        ),
    ],
    ids=["label", "label and selector", "host"],
)
def test_the_claim_is_the_runs_from_the_first_and_all_of_it_is_on_one_node(
    components: tuple[str, ...], cluster: dict[str, Any], node: dict[str, str], tmp_path: Path
) -> None:
    folder = rendered_run(tmp_path, *components, **cluster)
    (claim,) = [body for body in rendered(folder / "shared") if body["kind"] == "PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    for name, pod in jobs_below(folder).items():
        assert pod["nodeSelector"] == node, name


def test_deleting_a_job_that_prepares_deletes_no_data(tmp_path: Path) -> None:
    folder = rendered_run(tmp_path, "single-node", "namespace")
    for part in ("models", "index"):
        bodies = rendered(folder / "prepare" / part)
        assert {body["kind"] for body in bodies} <= {"Job", "NetworkPolicy"}
        assert {body["metadata"]["namespace"] for body in bodies} == {"scope"}
    first = rendered(folder / "shared")
    assert {(body["kind"], body["metadata"]["name"]) for body in first} >= {("Namespace", "scope")}
    assert {body["metadata"].get("namespace", "scope") for body in first} == {"scope"}


def test_a_run_in_tiny_mode_needs_nothing_on_the_volume(tmp_path: Path) -> None:
    folder = rendered_run(tmp_path, tiny=True)
    assert not (folder / "prepare").exists()
    assert list(manual_steps(config_of(tiny=True))) == []


def test_what_no_job_brings_is_said() -> None:
    named = config_of(prepare={"model": "team/m0@abc", "judge": "team/j"}, judge={"model": "/data/models/j"})
    assert [each.part for each in model_downloads(named)] == ["model", "judge", "encoder"]
    assert list(manual_steps(named)) == ["copy the corpus to /data/corpus.jsonl"]
    loose = config_of(prepare={"encoder": None, "index": []}, judge={"model": "/data/models/j"})
    assert prepare_parts(loose) == ["index"]
    assert list(manual_steps(loose)) == [
        "copy the model to /data/models/m0, or name its repository: cluster.prepare.model",
        "copy the model to /data/models/j, or name its repository: cluster.prepare.judge",
        "copy the corpus to /data/corpus.jsonl",
    ]
    with pytest.raises(ConfigError, match=r"cluster\.prepare\.model: found 'm0'"):
        load_config(None, ["cluster.prepare.model=m0"])


def test_a_commit_behind_a_model_is_fetched(tmp_path: Path) -> None:
    jobs = jobs_below(rendered_run(tmp_path, prepare={"model": "team/m0@abc"}))
    assert jobs["fetch-model"]["containers"][0]["args"] == [
        *("--model", "team/m0", "--folder", "/data/models/m0", "--revision", "abc")
    ]


def test_the_config_is_beside_the_run_as_a_link(tmp_path: Path) -> None:
    folder = rendered_run(tmp_path)
    assert (folder / "run.yaml").resolve() == (folder / "setup" / "run.yaml").resolve()
