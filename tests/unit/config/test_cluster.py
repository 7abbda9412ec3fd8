"""Settings of the cluster that an API server would refuse are refused with the setting's name."""

import pytest
import yaml

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.cluster.objects import pods_of
from scope_selfplay.config.cluster import OUR_MOUNTS
from scope_selfplay.config.load import load_config, parse_config
from tests.unit.k8s.conftest import REPOSITORY

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    "image",
    [
        *("scope", "scope:1.2", "scope-selfplay:latest", "a/b/c", f"a/b@{DIGEST}", f"a/b:1@{DIGEST}"),
        *("host:5000/team/scope:1", "localhost/x", "ghcr.io/a_b/c__d.e:V_1", "docker.io/library/busybox"),
    ],
)
def test_an_image_has_a_name(image: str) -> None:
    assert load_config(None, [f"cluster.images.trainer={image}"]).cluster.images.trainer == image


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        *(
            ("cluster.images.worker", value, "an image's name")
            for value in (
                "''",
                "Scope",
                "'scope:'",
                "scope latest",
                "a//b",
                "https://a/b",
                "a@sha256:12",
                "a:b:c",
            )
        ),
        *(
            (f"cluster.{name}", value, "the name of an object")
            for name in ("key_secret", "volume_claim")
            for value in ("My_Secret", "a/b", "-a", "a..b", "a" * 254)
        ),
        ("cluster.gpu_resource", "nvidia.com/", "a label's key"),
    ],
)
def test_a_name_that_no_server_takes_is_refused(setting: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=rf"{setting}.*found .*, expected {expected}.*, such as "):
        load_config(None, [f"{setting}={value}"])


@pytest.mark.parametrize(
    "path", ["/data", "/data/", "//data", "/x/../data", "/", "/etc", "/etc/scope/prompts/law"]
)
def test_a_further_volume_hides_nothing_of_ours(path: str) -> None:
    volume = {"name": "extra-a", "path": path, "source": {"emptyDir": {}}}
    with pytest.raises(ConfigError, match=r"cluster\.volumes\.0\.path: found .* meets /"):
        parse_config({"cluster": {"volumes": [volume]}})
    below = {**volume, "path": "/data/models/shared"}
    assert parse_config({"cluster": {"volumes": [below]}}).cluster.volumes[0].path == below["path"]


@pytest.mark.parametrize(("name", "path"), [("extra-a", "/y"), ("extra-b", "/x")])
def test_two_further_volumes_share_neither_name_nor_place(name: str, path: str) -> None:
    volumes = [
        {"name": "extra-a", "path": "/x", "source": {"emptyDir": {}}},
        {"name": name, "path": path, "source": {"emptyDir": {}}},
    ]
    with pytest.raises(ConfigError, match=r"cluster\.volumes: found the (name|path) '.*' twice"):
        parse_config({"cluster": {"volumes": volumes}})


def test_the_places_of_a_pods_own_mounts_are_known() -> None:
    bodies = [
        body
        for folder in ("base", "prepare")
        for file in sorted((REPOSITORY / "k8s" / folder).rglob("*.yaml"))
        for body in yaml.safe_load_all(file.read_text())
    ]
    mounted = {
        mount["mountPath"]
        for pods in pods_of(bodies)
        for container in pods.containers
        for mount in container["volumeMounts"]
    }
    assert mounted <= set(OUR_MOUNTS)
