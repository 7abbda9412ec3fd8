"""`scope k8s render`: files that any reader of YAML reads alike, and nothing of a person's is lost; `prepare/` and
`evaluate/`: what a run needs on the volume before it starts, `scope eval` beside it, and where their pods run."""

import os
import re
import shlex
import shutil
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.cli import cli
from scope_selfplay.cluster.check import check_folder, schema_problems
from scope_selfplay.cluster.folder import components_of, write_folder
from scope_selfplay.cluster.objects import allows, name_of, pods_of
from scope_selfplay.cluster.prepare import manual_steps, prepare_jobs
from scope_selfplay.config.cluster import amount
from scope_selfplay.config.load import parse_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.evaluation.commands import evaluate
from tests.unit.k8s.conftest import QWEN, REPOSITORY, TINY, everything_of, plain, rendered, with_components


@pytest.mark.parametrize("name", ["1e3", "on"])
def test_a_run_may_be_called_whatever_yaml_might_misread(name: str, tmp_path: Path) -> None:
    text = f"name: '{name}'\ndomain: embedded\niterations: 1\n"
    objects = rendered(with_components(tmp_path, TINY, text=text))
    (job,) = [body for body in objects if body["kind"] == "Job"]
    assert job["metadata"]["labels"]["scope/run"] == name
    assert plain(job["metadata"]["name"]) == f"{name}-controller"


def test_what_a_person_changed_is_replaced_only_when_asked(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    assert write_folder(tmp_path, {"a.yaml": "one\n"}, force=False).changed == [file]
    assert write_folder(tmp_path, {"a.yaml": "one\n"}, force=False).changed == []
    # As it was written last: a newer release, or other settings, may write it anew.
    assert write_folder(tmp_path, {"a.yaml": "two\n"}, force=False).changed == [file]
    file.write_text("mine\n")
    with pytest.raises(ConfigError, match=r"a\.yaml differ"):
        write_folder(tmp_path, {"a.yaml": "three\n"}, force=False)
    done = write_folder(tmp_path, {"a.yaml": "three\n", "b.yaml": "b\n"}, force=False, update=True)
    assert (done.changed, done.kept, file.read_text()) == ([tmp_path / "b.yaml"], [file], "mine\n")
    assert "-mine\n+three\n" in done.difference
    assert write_folder(tmp_path, {"a.yaml": "three\n"}, force=True).changed == [file]


@pytest.mark.parametrize("vendored", [False, True])
def test_a_preset_is_a_folder_of_a_dozen_files_that_an_update_refreshes(
    vendored: bool, tmp_path: Path
) -> None:
    done = render("--preset", "arenarl", "--to", tmp_path, *(["--vendor"] if vendored else []))
    assert done.exit_code == 0, done.output
    folder = tmp_path / "k8s/runs/arenarl"
    assert 8 <= sum(each.is_file() and not each.is_symlink() for each in folder.rglob("*")) <= 15
    assert (tmp_path / "k8s/shared/rights.yaml").is_file() == vendored
    for part in ("shared", "prepare", "prepare/warm-start", "iteration-01", "."):
        assert rendered(folder / part)
    # The user's config changes one thing, the user's hand another.
    settings, setup = folder / "run.yaml", folder / "setup" / "kustomization.yaml"
    settings.write_text(settings.read_text().replace("gpus: 8", "gpus: 4"))
    (folder / "prepare" / "jobs.yaml").write_text("# older\n")
    setup.write_text(setup.read_text() + "commonAnnotations: {team: a}\n")
    mine = {file: file.read_text() for file in (settings, setup, folder / "prepare" / "jobs.yaml")}
    done = render(settings, "--update")
    assert done.exit_code == 0 and "-# older" in done.stdout
    assert done.stderr.count("kept: ") == 2 and os.path.relpath(setup) in done.stderr
    assert {file: file.read_text() for file in mine} == mine


def test_a_folder_that_does_not_render_says_why(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"resources": ["absent.yaml"]}))
    with pytest.raises(ConfigError, match=r"does not render: .*absent\.yaml"):
        rendered(tmp_path)


def test_quantities_are_numbers() -> None:
    assert [amount(each) for each in ("500m", "2", 8, "1Gi", "1k", "2Pi")] == [0.5, 2, 8, 2**30, 1000, 2**51]
    assert [amount(each) for each in ("512Mi", "1Ti", "2G", "1073741824")] == [2**29, 2**40, 2e9, 2**30]


def render(*words: object) -> Result:
    return CliRunner().invoke(cli, ["k8s", "render", *map(str, words)], catch_exceptions=False)


def test_components_stay_until_others_are_named(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("name: r1\ndomain: embedded\niterations: 1\n")
    folder = tmp_path / "k8s/runs/r1"
    setup = folder / "setup" / "kustomization.yaml"
    render(
        tmp_path / "run.yaml", "--to", tmp_path, "--component", "older-kubernetes", "--component", "tracking"
    )
    # One of a person's own, which render knows nothing of.
    body = yaml.safe_load(setup.read_text())
    setup.write_text(yaml.safe_dump(body | {"components": ["../own", *body["components"]]}))
    run = folder / "setup" / "run.yaml"
    run.write_text(run.read_text() + "seed: 7\n")
    done = render(run, "--force")
    assert done.exit_code == 0 and "components: ../own, older-kubernetes, tracking" in done.stderr
    listed = yaml.safe_load(setup.read_text())["components"]
    assert [each.rpartition("/components/")[2] for each in listed] == ["../own", "older-kubernetes"]
    render(run, "--force", "--component", "quota")
    assert components_of(folder) == ["quota"]
    assert (folder / "run.yaml").resolve() == run.resolve()
    before = run.stat().st_mtime_ns
    render(folder / "run.yaml", "--to", tmp_path / "other")
    assert (tmp_path / "other/k8s/runs/r1/setup/run.yaml").read_text() == run.read_text()
    assert run.stat().st_mtime_ns == before


def test_deleting_a_run_deletes_what_is_its_own_and_nothing_of_another_run(tmp_path: Path) -> None:
    """Two runs of one namespace: claim, accounts, rights and policies stay, and so do the other run's prompts."""
    components = ("external-servers", "ranks", "namespace", "quota", "single-node", "tool-servers")
    found: dict[str, set[str]] = {}
    for name in ("r1", "r2"):
        text = f"name: {name}\ndomain: embedded\niterations: 1\n"
        folder = with_components(tmp_path / name, TINY, *components, text=text)
        found[name] = {plain(name_of(body)) for body in rendered(folder)}
        assert found[name] == {
            f"Job/{name}-controller",
            f"ConfigMap/{name}-config",
            f"ConfigMap/{name}-prompts-embedded",
        }
        assert {body["metadata"]["namespace"] for body in rendered(folder)} == {"scope"}
        shared = {name_of(body) for body in rendered(folder / "shared")}
        assert shared >= {"Namespace/scope", "PersistentVolumeClaim/scope-data", "NetworkPolicy/scope-tools"}
    assert not found["r1"] & found["r2"]


PREPARE = {"model": "team/m0"}
CLUSTER: dict[str, Any] = {"prepare": PREPARE, "judge": {"model": "/data/models/m0"}}
RUN = {
    "name": "r1",
    "iterations": 1,
    "model": {"path": "/data/models/m0"},
    "corpus": {"path": "/data/corpus.jsonl"},
}
EVALUATE = {
    "checkpoints": ["S_2", "S_0"],
    "benchmarks": ["embedded", "popqa=/data/benchmarks/popqa"],
    "options": ["--samples=4"],
}


def config_of(**cluster: Any) -> RunConfig:
    return RunConfig.model_validate(RUN | {"cluster": CLUSTER | cluster})


def jobs_of(top: Path, *components: str, **cluster: Any) -> tuple[Path, dict[str, dict[str, Any]]]:
    """The run's folder as `scope k8s render` writes it, and by name the pods of all Jobs in it."""
    (top / "run.yaml").write_text(yaml.safe_dump(config_of(**cluster).model_dump(mode="json")))
    more = [word for each in components for word in ("--component", each)]
    done = CliRunner().invoke(cli, ["k8s", "render", str(top / "run.yaml"), "--to", str(top), *more])
    assert done.exit_code == 0, done.output
    folder = top / "k8s" / "runs" / "r1"
    parts = [folder, *(folder / part for part in ("prepare", "prepare/warm-start", "evaluate"))]
    bodies = [body for each in parts if each.is_dir() for body in rendered(each) if body["kind"] == "Job"]
    return folder, {body["metadata"]["name"]: body["spec"]["template"]["spec"] for body in bodies}


LABEL, HOST = {"scope/single-node": "true"}, {"kubernetes.io/hostname": "n1"}
OF_ONE_NODE = {"accessModes": ["ReadWriteOnce"], "storageClassName": "nfs"}


@pytest.mark.parametrize(
    ("components", "selector", "claim", "node"),
    [
        (["single-node"], {"pool": "a"}, {}, {"pool": "a", **LABEL}),
        # Without rights on nodes.
        ([], HOST, OF_ONE_NODE, HOST),
    ],
    ids=["label", "host"],
)
def test_the_claim_is_the_runs_from_the_first_and_all_of_it_is_on_one_node(
    components: list[str],
    selector: dict[str, str],
    claim: dict[str, Any],
    node: dict[str, str],
    tmp_path: Path,
) -> None:
    warm_start = {"start": "/data/models/base", "trajectories": ["/data/t"]}
    settings = {"pod": {"spec": {"nodeSelector": selector}}, "evaluate": EVALUATE}
    settings |= {"prepare": PREPARE | {"warm_start": warm_start}} | ({"claim": claim} if claim else {})
    folder, pods = jobs_of(tmp_path, *components, **settings)
    (found,) = [body for body in rendered(folder / "shared") if body["kind"] == "PersistentVolumeClaim"]
    assert found["spec"].items() >= {"accessModes": ["ReadWriteOnce"], **claim}.items()
    assert {"r1-evaluate", "r1-warm-start"} <= {name.rpartition("-")[0] for name in pods}
    assert {name: pod["nodeSelector"] for name, pod in pods.items()} == dict.fromkeys(pods, node)


def test_what_no_job_brings_is_said() -> None:
    judge = {"model": "/data/models/j"}
    named = config_of(prepare={"model": "team/m0@abc", "judge": "team/j"}, judge=judge)
    _, model, *others = prepare_jobs(named)["prepare"]
    (container,) = model["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["--model", "team/m0", "--folder", "/data/models/m0", "--revision", "abc"]
    names = [body["metadata"]["name"].rpartition("-")[0] for body in others]
    assert names == ["r1-fetch-judge", "r1-fetch-encoder", "r1-build-index"]
    loose = config_of(prepare={"encoder": None, "index": []}, judge=judge)
    assert list(manual_steps(loose)) == [
        "copy the model to /data/models/m0, or name its repository: cluster.prepare.model",
        "copy the model to /data/models/j, or name its repository: cluster.prepare.judge",
        "copy the corpus to /data/corpus.jsonl, or name its URL: cluster.prepare.corpus",
    ]


def test_corpus_and_published_vectors_are_fetched_and_the_index_is_made_of_them(tmp_path: Path) -> None:
    corpus = {"urls": ["https://example.org/psgs.tsv.gz"], "sha256": "ab" * 32}
    parts = {"urls": ["hf://datasets/a/b@c/part_aa", "hf://datasets/a/b@c/part_ab"], "sha256": "cd" * 32}
    prepare = PREPARE | {"corpus": corpus, "vectors": parts}
    folder, pods = jobs_of(tmp_path, "single-node", "namespace", prepare=prepare)
    # Deleting the folder deletes no data.
    assert {body["kind"] for body in rendered(folder / "prepare")} == {"Job"}
    told = {name[3:].rpartition("-")[0]: pod["containers"][0] for name, pod in pods.items()}
    for name in ("fetch-corpus", "fetch-vectors"):
        assert told[name]["command"] == ["scope", "index", "fetch"]
    vectors = f"/data/corpus/vectors-{'cd' * 6}.faiss"
    assert told["fetch-corpus"]["args"] == [
        *("/data/corpus.jsonl", "--sha256", "ab" * 32, "--url", "https://example.org/psgs.tsv.gz")
    ]
    assert told["fetch-vectors"]["args"][0] == vectors
    assert [word for word in told["fetch-vectors"]["args"] if word.startswith("hf:")] == parts["urls"]
    assert told["build-index"]["args"][-2:] == ["--vectors", vectors]
    assert list(manual_steps(config_of(prepare=prepare))) == []


def test_an_evaluation_runs_the_command_on_the_runs_volume_with_its_servers(tmp_path: Path) -> None:
    images = {"trainer": "gpu:1"}
    folder, pods = jobs_of(tmp_path, evaluate=EVALUATE, key_secret="key", images=images)
    assert schema_problems(rendered(folder / "evaluate")) == []
    ((container,),) = [pod["containers"] for name, pod in pods.items() if name.startswith("r1-evaluate-")]
    assert container["image"] == "gpu:1"
    assert [*container["command"], *container["args"]] == shlex.split(
        "scope eval /data/runs/r1:S_2 --against /data/runs/r1:S_0 --benchmark embedded "
        "--benchmark popqa=/data/benchmarks/popqa --set judge.endpoint.base_url=http://r1-judge:8000/v1 "
        "--set judge.endpoint.api_key_env=VLLM_API_KEY --set search.url=http://r1-retriever:8000 "
        "--set search.api_key_env=VLLM_API_KEY --root /data/runs/r1/benchmarks --samples=4"
    )
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "VLLM_API_KEY" in {each["name"] for each in container["env"]}
    # The words are those of the command.
    with click.Context(evaluate) as context:
        evaluate.parse_args(context, container["args"])
    # NetworkPolicies let it call judge and retriever as they let a worker.
    (job,) = [body for body in rendered(folder / "evaluate") if body["kind"] == "Job"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert (labels["app.kubernetes.io/component"], labels["scope/run"]) == ("worker", "r1")


SITE: dict[str, Any] = {
    "images": {
        "registry": "registry.example/team",
        "worker": f"scope-selfplay:1@sha256:{'1' * 64}",
        "trainer": f"scope-trainer:1@sha256:{'2' * 64}",
    },
    "pod": {"spec": {"imagePullSecrets": [{"name": "registry"}], "priorityClassName": "batch"}},
    "gpu_resource": "nvidia.com/mig-3g.40gb",
    "gpu_pod": {"spec": {"nodeSelector": {"pool": "gpu"}, "runtimeClassName": "nvidia"}},
    "cpu_pod": {"spec": {"nodeSelector": {"pool": "cpu"}}},
    "queue": "research",
    "proxy": "http://proxy.example:3128",
    "prepare": {"hub": "https://mirror.example:8443", "hub_secret": "team/hub"},
    "judge_secret": "judges/openai",
}


def test_the_clusters_values_are_those_of_every_pod_by_hand_and_by_the_controller(tmp_path: Path) -> None:
    (tmp_path / "k8s").mkdir()
    (tmp_path / "k8s" / "cluster.yaml").write_text(yaml.safe_dump({"cluster": SITE}))
    shutil.copy(QWEN / "setup" / "run.yaml", tmp_path / "my.yaml")
    assert render(tmp_path / "my.yaml", "--to", tmp_path, "--component", "external-servers").exit_code == 0
    folder = tmp_path / "k8s" / "runs" / "qwen3-8b"
    objects = everything_of(folder)
    assert schema_problems(objects) == []
    seen = set()
    for body in (each for each in objects if each["kind"] in ("Job", "Deployment")):
        template = body["spec"]["template"]
        spec, (main, *_) = template["spec"], template["spec"]["containers"]
        has_gpu = "nvidia.com/mig-3g.40gb" in main["resources"]["limits"]
        assert re.fullmatch(
            r"registry\.example/team/scope-(selfplay|trainer):1@sha256:(1|2){64}", main["image"]
        )
        assert (spec["imagePullSecrets"], spec["priorityClassName"]) == ([{"name": "registry"}], "batch")
        assert spec["nodeSelector"] == {"pool": "gpu" if has_gpu else "cpu"}
        assert spec.get("runtimeClassName") == ("nvidia" if has_gpu else None)
        tolerated = [each["key"] for each in spec.get("tolerations") or []]
        assert tolerated == (["nvidia.com/gpu"] if has_gpu else [])
        for labels in (body["metadata"]["labels"], template["metadata"]["labels"]):
            assert labels.get("kueue.x-k8s.io/queue-name") == ("research" if has_gpu else None), body
        told = {each["name"]: each.get("value", each.get("valueFrom")) for each in main["env"]}
        component = labels["app.kubernetes.io/component"]
        fetches, stage = component == "fetch-model", component in ("trainer", "worker")
        assert told.get("HTTPS_PROXY") == ("http://proxy.example:3128" if fetches or stage else None)
        assert told.get("HF_ENDPOINT") == ("https://mirror.example:8443" if fetches else None)
        judge = {"secretKeyRef": {"name": "judges", "key": "openai"}}
        assert told.get("JUDGE_API_KEY") == (judge if stage else None)
        key = {"secretKeyRef": {"name": "servers", "key": "token"}}
        is_served = stage or component in ("judge", "solver", "challenger", "retriever")
        assert told.get("VLLM_API_KEY") == (key if is_served else None)
        seen.add((component, has_gpu))
    assert seen >= {("build-index", True), ("judge", True), ("trainer", True), ("controller", False)}
    policies = [body for body in objects if body["kind"] == "NetworkPolicy"]
    ways = {
        (pods.labels["app.kubernetes.io/component"], port)
        for pods, port in product(pods_of(objects), (3128, 8443))
        if allows(policies, "Egress", pods, None, port, pods_of(objects))
    }
    fetching = {("fetch-model", 3128), ("fetch-model", 8443)}
    assert ways == {*fetching, ("trainer", 3128), ("worker", 3128), ("controller", 8443)}


@pytest.mark.parametrize("file", sorted((REPOSITORY / "k8s/clusters").glob("*.yaml")), ids=attrgetter("stem"))
def test_a_run_fits_what_clusters_usually_have(file: Path, tmp_path: Path) -> None:
    (tmp_path / "k8s").mkdir()
    shutil.copy(file, tmp_path / "k8s" / "cluster.yaml")
    shutil.copy(QWEN / "setup" / "run.yaml", tmp_path / "my.yaml")
    assert render(tmp_path / "my.yaml", "--to", tmp_path).exit_code == 0
    assert check_folder(tmp_path / "k8s/runs/qwen3-8b").problems == []


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({"gpu_resource": "amd.com/gpu"}, "AMD GPUs are not supported"),
        ({"gpu_pod": {"spec": {"resourceClaims": []}}}, "dynamic resource allocation is not supported"),
        ({"proxy": "http://me:secret@proxy:3128"}, "proxy"),
    ],
)
def test_what_is_not_supported_is_refused_in_a_line(cluster: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        parse_config({"cluster": cluster})
    assert "\n" not in str(caught.value)


def test_a_job_of_another_image_has_another_name() -> None:
    """A Job cannot be changed: `kubectl apply` of a newer image makes another one."""
    names = [
        {
            body["metadata"]["name"]
            for body in prepare_jobs(config_of(images={"worker": f"host.example/a:{tag}"}))["prepare"]
        }
        for tag in (1, 1, 2)
    ]
    assert names[0] == names[1] and not names[0] & names[2]
