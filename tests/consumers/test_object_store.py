"""`scope upload` and `scope download` with an S3 that somebody else wrote, behind a proxy that cuts off."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Thread

import pytest
from click.testing import CliRunner
from pyarrow import fs

from scope_selfplay.base.errors import ConfigError, OutsideError, RecordError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.cli import cli
from scope_selfplay.store import object_store
from scope_selfplay.store.object_store import ObjectFolder, Unit, keep, pull

moto = pytest.importorskip("moto.server", reason="make test-consumers installs it beside the project")
pytestmark = pytest.mark.consumers
PART, KILLS, URL, HERE, TO = 1 << 16, 10, "s3://bucket/runs/r1", Path("from"), Path("to")
MAIN = "import scope_selfplay.store.object_store as o, scope_selfplay.cli as c; o.PART, o.WORKERS = 65536, 2; c.main()"


class Proxy:
    """Hands on what comes, and tells `seen` of each request whether it is a GET or a PUT."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._port, self._rng, self.bytes_to_cut, self.broken = port, Random(0), float("inf"), 0
        self.seen: Callable[[str], object] = len
        self.methods: list[str] = []
        options = (
            f"scheme=http&region=us-east-1&endpoint_override=127.0.0.1%3A{port}&allow_bucket_deletion=true"
        )
        self.store, _ = fs.FileSystem.from_uri(f"s3://a:b@bucket?allow_bucket_creation=true&{options}")
        self._listening = socket.create_server((host, 0))
        self.url = f"http://{host}:{self._listening.getsockname()[1]}"
        Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            ends = [self._listening.accept()[0], socket.create_connection(("127.0.0.1", self._port))]
            left = [self._rng.expovariate(1.0) * self.bytes_to_cut]
            for source, target in (ends, ends[::-1]):
                Thread(target=self._hand_on, args=(source, target, left), daemon=True).start()

    def _hand_on(self, source: socket.socket, target: socket.socket, left: list[float]) -> None:
        with suppress(OSError):
            while (data := source.recv(PART)) and left[0] >= 0:
                if data[:4] in (b"PUT ", b"GET "):
                    self.methods.append(data[:3].decode())
                    self.seen(self.methods[-1])
                left[0] -= len(data)
                target.sendall(data if left[0] >= 0 else b"")
            self.broken += left[0] < 0
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Proxy]:
    """With an empty bucket behind it, and 45 parts of files in the folder HERE."""
    monkeypatch.chdir(tmp_path)
    sizes = {"checkpoint/weights": 40 * PART + 1, "checkpoint/more": 3 * PART, ".work/step": 7, "empty": 0}
    for file, size in ((HERE / name, size) for name, size in sizes.items()):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(Random(size).randbytes(size))
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    proxy = Proxy(server.get_host_and_port()[1])
    values = {"AWS_ENDPOINT_URL": proxy.url, "AWS_DEFAULT_REGION": "us-east-1", "HOME": os.devnull}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED", *values):
        monkeypatch.setenv(name, values.get(name, "true"))
    # The project is not installed beside moto, and what is killed runs elsewhere.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(object_store, "PART", PART)
    monkeypatch.setattr(object_store, "PAUSE", 0.01)
    proxy.store.create_dir("bucket")
    yield proxy
    proxy.store.delete_dir("bucket")
    server.stop()


def scope(*words: object) -> None:
    if (error := CliRunner().invoke(cli, [str(word) for word in words]).exception) is not None:
        raise error


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_comes_back_as_it_was_is_sent_once_and_replaces_nothing(proxy: Proxy) -> None:
    scope("upload", HERE, URL)
    TO.mkdir()
    (TO / "empty").write_text("mine")
    with pytest.raises(ConfigError, match="to/empty: differs, and nothing was written"):
        scope("download", URL, TO)
    assert contents(TO) == {"empty": b"mine"}
    scope("download", URL, TO, "--force")
    assert contents(TO) == contents(HERE)
    proxy.methods.clear()
    scope("upload", HERE, URL)
    scope("download", URL, TO)
    assert proxy.methods == ["GET", "PUT", "GET"], "the list of parts, and the index"


def test_copies_get_through_a_store_that_cuts_off(proxy: Proxy) -> None:
    proxy.bytes_to_cut = 2 * PART
    scope("upload", HERE, URL)
    sent, proxy.broken = proxy.broken, 0
    scope("download", URL, TO)
    assert contents(TO) == contents(HERE)
    assert min(sent, proxy.broken) >= 10


@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_copy_that_is_killed_at_ten_moments_goes_on(proxy: Proxy, method: str) -> None:
    words = ["upload", str(HERE), URL]
    if method == "GET":
        scope(*words)
        words = ["download", URL, str(TO)]
    for kill in range(1, KILLS + 1):
        process = subprocess.Popen([sys.executable, "-c", MAIN, *words])
        while process.poll() is None and proxy.methods.count(method) < 3 * kill:
            time.sleep(0.002)
        process.kill()
        assert process.wait() != 0, "it was not at its end"
    subprocess.run([sys.executable, "-c", MAIN, *words], check=True)
    if method == "PUT":
        scope("download", URL, TO)
    assert contents(TO) == contents(HERE)
    # Each part once, the index, what was on its way at each kill, and what each start lists or reads first.
    assert proxy.methods.count(method) <= 46 + KILLS * (2 if method == "PUT" else 4)


def test_a_stage_goes_on_from_what_its_newest_attempt_has_stored(proxy: Proxy) -> None:
    proxy.bytes_to_cut = 2 * PART
    unit, store = Unit("runs/r1/iteration-01/solver"), f"s3://bucket?endpoint={proxy.url}"
    for attempt, parts in ((1, 3), (2, 5)):
        disk = Path(f"disk-{attempt}")
        assert pull(store, unit, disk, Progress(), of_work=True) is (attempt > 1)
        work = disk / unit.name / f".work/checkpoint-{attempt}"
        work.parent.mkdir(parents=True, exist_ok=True)
        work.write_bytes(Random(attempt).randbytes(parts * PART))
        assert keep(store, unit, disk, ["sh", "-c", "exit 75"], print, attempt=attempt) == 75
    remote = ObjectFolder(store, Progress(), unit.name)
    assert (remote.names(), remote.index()) == (["work-a1.json", "work-a2.json"], None)
    assert pull(store, unit, TO, Progress(), of_work=True)
    assert contents(TO) == contents(Path("disk-2")) and len(contents(TO)) == 2
    assert "iteration-01" in ObjectFolder(store, Progress(), "runs/r1").names()
    assert proxy.broken >= 3


def test_damage_is_named_and_mended_by_another_upload(proxy: Proxy) -> None:
    scope("upload", HERE, URL)
    index = "bucket/runs/r1/index.json"
    some = proxy.store.get_file_info(fs.FileSelector("bucket/runs/r1/parts"))[3].path
    for found in ("damaged; delete it", "missing"):
        if found == "missing":
            proxy.store.delete_file(some)
        else:
            proxy.store.copy_file(index, some)
        with pytest.raises(RecordError, match=f"parts/{Path(some).name}: is {found}, then upload again"):
            scope("download", URL, TO)
        whole = {name: data for name, data in contents(TO).items() if not name.endswith(".part")}
        assert whole.items() < contents(HERE).items()
    scope("upload", HERE, URL)
    scope("download", URL, TO)
    assert contents(TO) == contents(HERE)
    proxy.store.copy_file(some, index)
    with pytest.raises(RecordError, match=r"index.json: damaged; upload again"):
        scope("download", URL, TO)


def test_a_file_that_changes_is_sent_again_and_never_mixed(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = HERE / "checkpoint" / "weights"
    changes = iter([b"b" * weights.stat().st_size])
    proxy.seen = lambda method: method == "PUT" and [weights.write_bytes(each) for each in changes]
    scope("upload", HERE, URL)
    scope("download", URL, TO)
    assert contents(TO) == contents(HERE)
    # With one worker the first part is on its way before the second is read again.
    monkeypatch.setattr(object_store, "WORKERS", 1)
    rng = Random(1)
    proxy.seen = lambda method: method == "PUT" and weights.write_bytes(rng.randbytes(8 * PART))
    weights.write_bytes(rng.randbytes(8 * PART))
    with pytest.raises(OutsideError, match="weights: changes while it is uploaded"):
        scope("upload", HERE, URL)
    scope("download", URL, TO)
    assert set((TO / "checkpoint" / "weights").read_bytes()) == {ord("b")}, "the upload before"


@pytest.mark.parametrize(
    ("variable", "words", "said"),
    [
        ("", ["upload", HERE, "s3://nobody/x"], "x: AWS Error NO_SUCH_BUCKET .*; correct the URL"),
        ("", ["download", "s3://nobody/x", TO], "no index.json is there; correct the URL"),
        ("", ["upload", HERE, "s3:/bucket"], "expected s3://BUCKET/FOLDER"),
        ("AWS_ACCESS_KEY_ID=", ["download", URL, TO], "ACCESS_DENIED .*AWS_ACCESS_KEY_ID and such"),
        ("AWS_ENDPOINT_URL=http://127.0.0.1:9", ["upload", HERE, URL], "connect .*the same command again"),
    ],
)
def test_what_stands_in_the_way_is_told_in_a_line(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, variable: str, words: list[object], said: str
) -> None:
    scope("upload", HERE, URL)
    if variable:
        monkeypatch.setenv(*variable.split("=", 1))
    with pytest.raises(OutsideError if "again" in said else ConfigError, match=said):
        scope(*words)
