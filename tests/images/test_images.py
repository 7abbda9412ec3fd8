"""The shipped Dockerfiles, really built: what is in an image, who runs in it, and that it does its work."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from scope_selfplay.base.machine import free_port
from tests.images.buildah import Buildah

pytestmark = [pytest.mark.images, pytest.mark.timeout(2400)]
Inside = Callable[..., str]

MODULES = ("torch", "transformers", "faiss", "onnxruntime", "kubernetes", "starlette")
PRESENT = f"""
from importlib.util import find_spec
print(*[name for name in {MODULES} if find_spec(name)])
"""
WRITABLE = ["find", "/", "-xdev", "-writable", "-not", "-type", "l", "-not", "-path", "/proc/*"]
# Serves, asks once, and sends SIGTERM: in one script, because a container of this kind has no address of its own.
SERVE = """
import json, signal, subprocess, sys, time, urllib.error, urllib.request
entry = json.loads(sys.argv[1])
server = subprocess.Popen([*entry, "--port", sys.argv[2], "--workers", "1"])
url = "http://127.0.0.1:" + sys.argv[2]
for _ in range(600):
    try:
        urllib.request.urlopen(url + "/readyz", timeout=60)
        break
    except OSError:
        assert server.poll() is None, "the server ended"
        time.sleep(0.1)
body = json.dumps({"queries": ["Which river runs through Aldmoor?"], "topk": 1}).encode()
asked = urllib.request.Request(url + "/retrieve", body, {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(asked, timeout=120))
server.send_signal(signal.SIGTERM)
print(json.dumps([answer, server.wait(120)]))
"""


@pytest.fixture(params=["slim_worker", "training_worker", "retriever"])
def image(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def test_an_image_explains_itself_and_its_user_is_a_number(
    buildah: Buildah, image: str, inside: Inside
) -> None:
    config = buildah.config(image)
    assert config["User"] == "10001:10001"
    assert "8000/tcp" in config["ExposedPorts"]
    command = config["Entrypoint"] or config["Cmd"]
    told = inside(image, *[each for each in command if each != "--help"][:2], "--help")
    assert "Usage: scope" in told


def test_nothing_that_an_image_brings_can_be_written_by_its_user(image: str, inside: Inside) -> None:
    """Pods mount the root read-only; an image that counts on writing below it would fail there."""
    assert inside(image, "id", "-u").strip() == "10001"
    found = inside(image, "sh", "-c", f"{' '.join(WRITABLE)} 2>/dev/null || true").split()
    allowed = ("/tmp", "/var/tmp", "/dev", "/run", "/sys")
    assert [each for each in found if not each.startswith(allowed)] == []


def test_the_slim_images_hold_what_they_need_and_no_torch(
    slim_worker: str, retriever: str, training_worker: str, inside: Inside
) -> None:
    held = {
        image: set(inside(image, "python", "-c", PRESENT).split())
        for image in (slim_worker, retriever, training_worker)
    }
    assert held[retriever] == {"faiss", "onnxruntime", "starlette"}
    assert held[slim_worker] == set(MODULES) - {"torch"}
    assert held[training_worker] == set(MODULES)


def test_an_index_made_in_the_worker_is_served_by_the_retriever(
    buildah: Buildah, slim_worker: str, retriever: str, inside: Inside, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    rows = [
        {"id": "a", "title": "Aldmoor", "text": "The river Teven runs through Aldmoor."},
        {"id": "b", "title": "Brask", "text": "Brask is known for its copper."},
    ]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    indexes = tmp_path / "indexes"
    indexes.mkdir()
    # For the image's user, who has no name here.
    indexes.chmod(0o777)
    build = ("scope", "index", "build", "/corpus.jsonl", "/indexes/small")
    inside(slim_worker, *build, mounts={corpus: "/corpus.jsonl:ro", indexes: "/indexes"})

    entry = json.dumps(buildah.config(retriever)["Entrypoint"])
    serve = ("python", "-c", SERVE, entry, str(free_port()))
    told = inside(retriever, *serve, mounts={indexes / "small": "/index:ro"})
    answer, status = json.loads(told.splitlines()[-1])
    assert answer["result"][0][0]["document"]["id"] == "a"
    assert status == 0
