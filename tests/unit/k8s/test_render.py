"""`scope k8s render`: files that any reader of YAML reads alike, and nothing of a person's is lost."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.cli import cli
from scope_selfplay.cluster.folder import components_of, write_folder
from scope_selfplay.cluster.objects import name_of
from scope_selfplay.config.cluster import amount
from tests.unit.k8s.conftest import REPOSITORY, rendered, with_components

TINY = REPOSITORY / "k8s/runs/tiny"


@pytest.mark.parametrize("name", ["1e3", "0x1f", "on", "y"])
def test_a_run_may_be_called_whatever_yaml_might_misread(name: str, tmp_path: Path) -> None:
    text = f"name: '{name}'\ndomain: embedded\niterations: 1\n"
    objects = rendered(with_components(tmp_path, TINY, text=text))
    (job,) = [body for body in objects if body["kind"] == "Job"]
    assert job["metadata"]["labels"]["scope/run"] == name
    assert job["metadata"]["name"] == f"{name}-controller"


def test_what_a_person_changed_is_replaced_only_when_asked(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a.yaml": "one\n"}, force=False)
    assert write_folder(tmp_path, {"a.yaml": "one\n"}, force=False) == []
    with pytest.raises(ConfigError, match=r"a\.yaml differ"):
        write_folder(tmp_path, {"a.yaml": "two\n"}, force=False)
    assert (tmp_path / "a.yaml").read_text() == "one\n"
    assert write_folder(tmp_path, {"a.yaml": "two\n"}, force=True) == [tmp_path / "a.yaml"]


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
    render(tmp_path / "run.yaml", "--to", tmp_path, "--component", "kueue", "--component", "spot")
    # One of a person's own, which render knows nothing of.
    setup.write_text(setup.read_text().replace("components:\n", "components:\n- ../own\n"))
    run = folder / "setup" / "run.yaml"
    run.write_text(run.read_text() + "seed: 7\n")
    done = render(run, "--force")
    assert done.exit_code == 0 and "components: ../own, kueue, spot" in done.stderr
    shipped = [f"../../../../k8s/components/{each}" for each in ("kueue", "spot")]
    assert yaml.safe_load(setup.read_text())["components"] == ["../own", *shipped]
    render(run, "--force", "--component", "quota")
    assert components_of(folder) == ["quota"]
    assert (folder / "run.yaml").resolve() == run.resolve()


def test_deleting_a_run_deletes_what_is_its_own_and_nothing_of_another_run(tmp_path: Path) -> None:
    """Two runs of one namespace: claim, accounts, rights and policies stay, and so do the other run's prompts."""
    components = ("external-servers", "multi-node", "namespace", "quota", "single-node", "tool-servers")
    found: dict[str, set[str]] = {}
    for name in ("r1", "r2"):
        text = f"name: {name}\ndomain: embedded\niterations: 1\n"
        folder = with_components(tmp_path / name, TINY, *components, text=text)
        found[name] = {name_of(body) for body in rendered(folder)}
        assert found[name] == {
            f"Job/{name}-controller",
            f"ConfigMap/{name}-config",
            f"ConfigMap/{name}-prompts-embedded",
        }
        assert {body["metadata"]["namespace"] for body in rendered(folder)} == {"scope"}
        shared = {name_of(body) for body in rendered(folder / "shared")}
        assert shared >= {"Namespace/scope", "PersistentVolumeClaim/scope-data", "NetworkPolicy/scope-ranks"}
    assert not found["r1"] & found["r2"]


def test_what_comes_before_a_run_begins_with_its_secrets(tmp_path: Path) -> None:
    text = (REPOSITORY / "k8s/runs/qwen3-8b/setup/run.yaml").read_text()
    (tmp_path / "run.yaml").write_text(text)
    said = render(tmp_path / "run.yaml", "--to", tmp_path).stderr
    key = "kubectl create secret generic servers --from-literal=token=$(openssl rand -hex 32)"
    assert f"before that: {key}; kubectl apply -k {tmp_path}/k8s/runs/qwen3-8b/shared; " in said
    (tmp_path / "run.yaml").write_text(text.replace("  key_secret: servers\n", ""))
    said = render(tmp_path / "run.yaml", "--to", tmp_path, "--force").stderr
    assert f"before that: kubectl apply -k {tmp_path}/k8s/runs/qwen3-8b/shared; " in said
