"""The run tiny with real pods and no volume: each has a disk of its own, and an S3 that somebody else wrote is between
them, behind a proxy that cuts off. It listens on the node's address, which pods reach; moto, which it is, is of
tests/consumers/requirements.txt.
"""

from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyarrow import fs

from scope_selfplay.cli import cli
from scope_selfplay.store.folder import RunFolder
from tests.cluster.conftest import kubectl
from tests.cluster.image import Image
from tests.cluster.test_pods import SHORT, condition, pods_made, same_results_as_at_home, start, when, written
from tests.consumers.test_object_store import Proxy, moto

pytestmark = [pytest.mark.pods, pytest.mark.full, pytest.mark.timeout(3600)]
MEAN = 32 << 20
"""Bytes after which a connection is cut off."""
DRAINED = {
    "app.kubernetes.io/component=trainer,scope/stage=train-challenger": "train the Challenger",
    "app.kubernetes.io/component=controller": "running tiny-i01-",
    "app.kubernetes.io/component=trainer,scope/stage=train-solver": "train the Solver",
}
"""Pods that are told to go when they have said so."""


def have_said(told: str, *pods: str) -> bool:
    return told in kubectl("logs", *pods, "--container=main", check=False).stdout


def test_a_run_without_a_shared_volume_makes_the_corpus_of_one_process(
    pods_image: Image, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer's node is drained, and the controller dies with its disk."""
    if not pods_image.volumes:
        pytest.skip("pods must reach this machine: unset SCOPE_IMAGE and SCOPE_IMAGE_ARCHIVE")
    node = kubectl("get", "nodes", "--output", "jsonpath={.items[0].status.addresses[0].address}").stdout
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    proxy = Proxy(server.get_host_and_port()[1], node)
    proxy.store.create_dir("bucket")
    proxy.bytes_to_cut = MEAN
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    keys["AWS_EC2_METADATA_DISABLED"] = "true"
    literals = [f"--from-literal={name}={value}" for name, value in keys.items()]
    kubectl("create", "secret", "generic", "store", *literals, "--namespace", namespace)
    cluster = {"store": f"s3://bucket/scope?endpoint={proxy.url}", "store_secret": "store"}
    folder = written(tmp_path, pods_image, SHORT | {"cluster": cluster})
    start(folder, namespace, tmp_path)
    for pods, told in DRAINED.items():
        chosen = (f"--selector={pods}", f"--namespace={namespace}")
        when(partial(have_said, told, *chosen), minutes=20, namespace=namespace)
        kubectl("delete", "pods", *chosen, "--grace-period=30", "--wait=false")
    when(partial(condition, namespace), minutes=40, namespace=namespace)
    assert condition(namespace) == "Complete"
    for drained in ("tiny-i01-train-challenger-a", "tiny-i01-train-solver-a", "tiny-controller"):
        assert pods_made(namespace, drained) >= 2
    assert not kubectl("get", "persistentvolumeclaims", "--namespace", namespace).stdout
    listed = proxy.store.get_file_info(fs.FileSelector("bucket/scope/runs/tiny", recursive=True))
    published = [
        each.path for each in listed if each.path.endswith("/index.json") and "iteration-" in each.path
    ]
    assert len(published) == 6 and proxy.broken >= 3, (published, proxy.broken)
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    words = ["k8s", "fetch", "tiny", "--to", str(tmp_path / "fetched"), "--namespace", namespace]
    assert CliRunner().invoke(cli, words).exit_code == 0
    run = RunFolder(tmp_path / "fetched" / "tiny")
    assert {file.name.split("-i0")[0] for file in run.logs.glob("*.log")} >= {"tiny"}
    same_results_as_at_home(run, tmp_path / "run.yaml", tmp_path / "home")
    print(f"{proxy.broken} connections cut off, {len(proxy.methods)} requests")
    server.stop()
