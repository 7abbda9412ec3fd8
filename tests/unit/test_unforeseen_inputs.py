"""What stands in the place of a file, a folder or a setting and is none: one line and exit 64, as `test_bad_inputs`."""

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scope_selfplay.cli import main
from scope_selfplay.errors import ExitCode
from tests.exported_run import write_finished_run

FILES: dict[str, str | bytes] = {
    "types.yaml": "domain: 7\niterations: yes\nmodel: [a]\ncorpus: none\nseed: 1e3\n",
    "date.yaml": "name: 2026-01-01\n",
    "no.yaml": "name: no\n",
    "number_key.yaml": "1: 2\n",
    "no_key.yaml": "~: 2\n",
    "set.yaml": "!!set {a, b}\n",
    "two_documents.yaml": "seed: 1\n---\nseed: 2\n",
    "windows.yaml": "seed: 1\r\niterations: zwei\r\n",
    "utf16.yaml": "seed: 1\n".encode("utf-16"),
    "infinite.yaml": "solver: {learning_rate: .inf}\n",
    "alias.yaml": "a: *b\n",
    "merge.yaml": "<<: [1, 2]\n",
    "words.yaml": "just words\n",
    "huge.yaml": "# " + "x" * 1_000_001,
    "two\nlines.yaml": "sed: 1\n",
    "two\nlines.jsonl": "{}\n",
    "folder.yaml/a": "",
    "folder.jsonl/a": "",
}
DAMAGES: dict[str, tuple[str, bytes]] = {
    "yaml_torn": ("run.yaml", b"name: [\n"),
    "yaml_list": ("run.yaml", b"- a\n"),
    "manifest_empty": ("iteration-01/tasks/manifest.json", b"{}"),
    "manifest_bytes": ("iteration-01/tasks/manifest.json", b"\x00"),
    "manifest_beyond": ("iteration-99999999999999999999/tasks/manifest.json", b"{}"),
    "ratings_empty": ("iteration-01/compare/ratings.json", b"{}"),
    "ratings_null": ("iteration-01/compare/ratings.json", b"null"),
}
"""Copies of a finished run, each with one file overwritten by hand."""

CASES: list[tuple[str, str]] = [
    ("documents pipe", "a pipe or a device"),
    ("documents /dev/zero", "a pipe or a device"),
    ("documents /dev/full", "a pipe or a device"),
    ("documents socket", "a pipe or a device"),
    ("documents loop", "Too many levels of symbolic links"),
    ("documents gone", "No such file or directory"),
    ("documents folder.jsonl", "holds no documents"),
    ("documents two~lines.jsonl", 'two lines.jsonl, line 1: the field "title" is missing'),
    ("run --set corpus.path=pipe", "a pipe or a device"),
    ("run --set corpus.path=/dev/zero", "a pipe or a device"),
    ("run --set corpus.path=loop", "Too many levels"),
    ("index build pipe index", "pipe"),
    ("index build /dev/zero index", "/dev/zero"),
    ("index build loop index", "loop"),
    ("rehearsal-policy pipe policy --domain wikipedia", "a pipe or a device"),
    ("config --config /dev/zero", "has more than 1,000,000 characters"),
    ("config --config huge.yaml", "has more than 1,000,000 characters"),
    ("config --config loop", "Too many levels of symbolic links"),
    ("config --config gone", "no such file"),
    ("config --config socket", "cannot be read: No such device"),
    ("config --config folder.yaml", "Is a directory"),
    ("config --config two~lines.yaml", "two lines.yaml: unknown setting sed"),
    ("config --config types.yaml", "4 mistakes: (1)"),
    ("config --config date.yaml", "name: found"),
    ("config --config no.yaml", "name: found False"),
    ("config --config number_key.yaml", "keys should be strings"),
    ("config --config no_key.yaml", "keys should be strings"),
    ("config --config set.yaml", "found a set"),
    ("config --config two_documents.yaml", "expected a single document"),
    ("config --config windows.yaml", "iterations: found 'zwei'"),
    ("config --config utf16.yaml", "UTF-8 text, from byte 1 on"),
    ("config --config infinite.yaml", "finite number"),
    ("config --config alias.yaml", "undefined alias"),
    ("config --config merge.yaml", "expected a mapping for merging"),
    ("config --config words.yaml", "found text, expected a mapping"),
    ("tasks ls yaml_torn", "not a run config"),
    ("report yaml_list -o new.html", "not a run config"),
    ("tasks ls manifest_empty", "manifest.json: damaged"),
    ("export manifest_bytes --format trl -o out", "manifest.json: damaged"),
    ("tasks stats manifest_beyond", "manifest.json: damaged"),
    ("tasks stats ratings_empty", "ratings.json: damaged"),
    ("report ratings_null -o new.html", "ratings.json: damaged"),
]
"""`~` is a line end."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("odd")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "gone").symlink_to("nowhere")
    write_finished_run(folder / "demo")
    for name, (path, content) in DAMAGES.items():
        shutil.copytree(folder / "demo", folder / name)
        (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / path).write_bytes(content)
    before = Path.cwd()
    # The path of a socket may have a hundred characters only.
    os.chdir(folder)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        yield folder
    os.chdir(before)


@pytest.mark.parametrize(("command", "said"), CASES, ids=[command for command, _ in CASES])
def test_what_is_no_such_thing_is_one_line_and_exit_64(
    place: Path,
    command: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["scope", *(word.replace("~", "\n") for word in command.split())])
    before = sorted(place.rglob("*"))
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    assert stop.value.code == ExitCode.USER, err
    assert said in out + err and "Traceback" not in err
    assert len((out + err).strip().splitlines()) == 1
    assert sorted(place.rglob("*")) == before
