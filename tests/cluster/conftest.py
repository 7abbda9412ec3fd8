"""A namespace of one's own on the cluster of KUBECONFIG, or a reason to skip. Any conforming cluster will do."""

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from scope_selfplay.cluster.check_cluster import is_older
from scope_selfplay.cluster.folder import components_of, layout_of, run_folder, write_folder
from scope_selfplay.cluster.kubectl import Kubectl
from scope_selfplay.config.load import load_config
from tests.cluster.image import Image, image_for_pods
from tests.commands import ran
from tests.unit.k8s.conftest import TINY


@pytest.fixture(scope="session")
def api() -> Any:
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("needs a Kubernetes API: set KUBECONFIG")
    kubernetes = pytest.importorskip("kubernetes", reason="needs the extra k8s")
    kubernetes.config.load_kube_config()
    try:
        kubernetes.client.VersionApi().get_code(_request_timeout=60)
    except Exception as error:  # noqa: BLE001 - whatever keeps us from a cluster is a reason to skip
        pytest.skip(f"no Kubernetes API answers at KUBECONFIG: {type(error).__name__}")
    return kubernetes


@contextmanager
def fresh_namespace() -> Iterator[str]:
    name = f"scope-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def namespace(api: Any) -> Iterator[str]:
    """A fresh one, with nothing in it."""
    with fresh_namespace() as name:
        yield name


@pytest.fixture
def neighbour(api: Any) -> Iterator[str]:
    """Another one."""
    with fresh_namespace() as name:
        yield name


@pytest.fixture
def controller_settings(api: Any, namespace: str) -> Callable[[], Any]:
    """Credentials of the controller's account, in a namespace with all that its runs share."""
    kubectl("apply", "--kustomize", str(TINY / "shared"), "--namespace", namespace)
    asked = {"spec": {"expirationSeconds": 3600, "audiences": []}}
    core = api.client.CoreV1Api()
    token = core.create_namespaced_service_account_token("scope-controller", namespace, asked)

    def settings() -> Any:
        configuration = api.client.Configuration()
        api.config.load_kube_config(client_configuration=configuration)
        configuration.cert_file = configuration.key_file = None
        configuration.api_key = {"authorization": f"Bearer {token.status.token}"}
        return configuration

    return settings


def kubectl(
    *arguments: str, stdin: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    done = ran(["kubectl", "--request-timeout=30s", *arguments], input=stdin, timeout=180)
    if check:
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
    return done


def fit_to_server(run: Path) -> None:
    """Adds the component `older-kubernetes` to a run's folder where this server needs it."""
    known, file = components_of(run), run / "setup" / "run.yaml"
    if is_older(Kubectl().version(), "1.26") and "older-kubernetes" not in known:
        config = load_config(file)
        layout = layout_of(run, config, [*known, "older-kubernetes"])
        files = run_folder(config, file.read_text(), layout)
        top = run.parents[2]
        write_folder(top, {str(run.relative_to(top) / name): files[name] for name in files}, force=True)


@pytest.fixture(scope="module")
def pods_image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    if "KUBECONFIG" not in os.environ:
        pytest.skip("no cluster: KUBECONFIG is not set")
    image = image_for_pods(tmp_path_factory.mktemp("image"))
    if image is None:
        pytest.skip("pods need an image: set SCOPE_IMAGE, or CONTAINERD_ADDRESS, where one can be imported")
    return image


@pytest.fixture
def volume(namespace: str, tmp_path: Path) -> Iterator[Path]:
    """A folder of this machine as the run's volume."""
    folder = tmp_path / "volume"
    folder.mkdir()
    folder.chmod(0o777)
    body = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": namespace},
        "spec": {
            "capacity": {"storage": "1Ti"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": namespace, "name": "scope-data"},
        },
    }
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump(body))
    yield folder
    kubectl("delete", "persistentvolume", namespace, "--wait=false")
