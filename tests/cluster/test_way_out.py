"""A pod that fetches where a proxy is the only way out: the name that it asks for is known to the proxy alone."""

import hashlib
import ssl
import subprocess
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from scope_selfplay.cluster.folder import yaml_text
from scope_selfplay.cluster.kubectl import kustomize
from tests.cluster.conftest import fit_to_server, kubectl
from tests.cluster.image import Image
from tests.loopback import handled
from tests.unit.k8s.conftest import ONE_GPU, with_components

pytestmark = pytest.mark.pods

HOST = "files.invalid"
CORPUS = b'{"id": "1", "title": "The dam", "text": "It was built in 1936."}\n'
REPLY = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(CORPUS) + CORPUS


def proxy(context: ssl.SSLContext, asked: list[str]) -> type[BaseHTTPRequestHandler]:
    """Leads every tunnel to one server, which has one file; notes where each was to lead."""

    class Proxy(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            with context.wrap_socket(self.connection, server_side=True) as inside:
                inside.recv(65_536)
                inside.sendall(REPLY)

        def log_message(self, *_: object) -> None: ...

    return Proxy


def certified(folder: Path) -> ssl.SSLContext:
    """What answers as HOST, for whoever trusts `ca.pem` of the folder."""
    subject = ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}"]
    made = ["-keyout", folder / "key.pem", "-out", folder / "ca.pem"]
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run([*new, *subject, *made], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return context


def test_a_corpus_comes_by_the_proxy(pods_image: Image, namespace: str, volume: Path, tmp_path: Path) -> None:
    if not pods_image.volumes:
        pytest.skip("pods must reach this machine: unset SCOPE_IMAGE and SCOPE_IMAGE_ARCHIVE")
    asked, pod = list[str](), pods_image.pod()
    (main,) = pod["spec"]["containers"]
    main["env"] = [{"name": "SSL_CERT_FILE", "value": "/data/ca.pem"}]
    main["resources"] = {kind: {"cpu": "500m", "memory": "1Gi"} for kind in ("requests", "limits")}
    node = kubectl("get", "nodes", "--output", "jsonpath={.items[0].status.addresses[0].address}").stdout
    corpus = {"urls": [f"https://{HOST}/dams.jsonl"], "sha256": hashlib.sha256(CORPUS).hexdigest()}
    with handled(proxy(certified(volume), asked), "") as port:
        cluster = {
            "cluster__proxy": f"http://{node}:{port}",
            "cluster__prepare": {"corpus": corpus},
            "cluster__images": {"worker": pods_image.name},
            "cluster__pod": pod,
        }
        folder = with_components(tmp_path, ONE_GPU, **cluster)
        fit_to_server(folder)
        kubectl("apply", "--kustomize", str(folder / "shared"), "--namespace", namespace)
        (job,) = [
            each for each in kustomize(folder / "prepare") if "fetch-corpus" in each["metadata"]["name"]
        ]
        kubectl("apply", "-f", "-", "--namespace", namespace, stdin=yaml_text(job))
        done = ("wait", "--for=condition=complete", "--timeout=150s", f"job/{job['metadata']['name']}")
        waited = kubectl(*done, "--namespace", namespace, check=False)
    pods = ("logs", "--selector", f"job-name={job['metadata']['name']}", "--namespace", namespace)
    assert waited.returncode == 0, kubectl(*pods, check=False).stdout
    assert (volume / "corpus" / "wikipedia-2018-small.jsonl").read_bytes() == CORPUS
    assert set(asked) == {f"{HOST}:443"}
