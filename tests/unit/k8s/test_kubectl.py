"""The reason of a failing kubectl, as one line for a person."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from scope_selfplay.base.errors import ConfigError, OutsideError
from scope_selfplay.cli import cli
from scope_selfplay.cluster.kubectl import Kubectl
from tests.unit.k8s.conftest import REPOSITORY, take_as_kubectl

TINY = REPOSITORY / "k8s/runs/tiny"
NOISE = (
    'E1122 03:49:10.399353   22825 memcache.go:265] "Unhandled Error" err="could not get current server API group '
    'list: Get https://10.0.0.1: dial tcp: connect: connection refused"\n'
)
REFUSED = "The connection to the server localhost:8080 was refused"


def test_without_a_cluster_every_command_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real kubectl, with no context at all."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: nothing reports what is wrong")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    cluster = Kubectl()
    questions: list[Callable[[], object]] = [
        lambda: cluster.objects("jobs"),
        lambda: cluster.get("configmaps", "a"),
        lambda: cluster.refusals(TINY),
        cluster.version,
    ]
    for ask in questions:
        with pytest.raises(OutsideError) as raised:
            ask()
        assert str(raised.value) == (
            f"the cluster does not answer: {REFUSED}; see `kubectl config get-contexts` and `kubectl cluster-info`"
        )
    done = CliRunner().invoke(cli, ["k8s", "doctor"])
    assert "the cluster does not answer" in done.stdout and "memcache" not in done.output


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl that prints what this file holds, and fails."""
    take_as_kubectl(f"#!/bin/sh\ncat {tmp_path}/said >&2\nexit 1\n", tmp_path, monkeypatch)
    return tmp_path / "said"


@pytest.mark.parametrize(
    ("said", "error", "line"),
    [
        (f"{NOISE * 5}{REFUSED} - did you specify the right host or port?\n", OutsideError, f": {REFUSED};"),
        (NOISE, OutsideError, r': "Unhandled Error" err='),
        (
            "Unable to connect to the server: dial tcp: lookup x: no such host\n",
            OutsideError,
            "no such host;",
        ),
        (
            f"{NOISE}Error from server (Forbidden): jobs is forbidden\n",
            ConfigError,
            r"refuses: Error.*forbidden$",
        ),
        ("", ConfigError, "no reason given"),
    ],
    ids=["refused", "noise alone", "unknown host", "forbidden", "silent"],
)
def test_kubectls_last_sentence_is_taken(failing: Path, said: str, error: type[Exception], line: str) -> None:
    failing.write_text(said)
    with pytest.raises(error, match=line) as raised:
        Kubectl().objects("jobs")
    assert "memcache" not in str(raised.value)


def test_a_server_whose_webhook_is_down_has_answered(failing: Path) -> None:
    webhook = 'Error from server (InternalError): failed calling webhook "a": connect: connection refused'
    failing.write_text(f"{NOISE}{webhook}\n")
    assert Kubectl().refusals(TINY) == [webhook]
