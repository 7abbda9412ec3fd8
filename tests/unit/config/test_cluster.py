"""Settings of the cluster that an API server would refuse are refused with the setting's name."""

import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.config.load import load_config

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
            for value in ("scope latest", *"'' Scope 'scope:' a//b https://a/b a@sha256:12 a:b:c".split())
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
