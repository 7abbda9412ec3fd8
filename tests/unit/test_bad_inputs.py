"""What users get wrong, command by command: each ends at once with one line that names it, and with exit 64.

Nothing is left behind: no run folder, no output.
"""

import gzip
import importlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.cli import main
from tests.exported_run import write_finished_run
from tests.reference_files import read_reference

LINE = json.dumps({"id": "a", "title": "A", "text": "Some text."})
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
PAGE = "---\ntitle: T\n---\n# T\nSome text.\n"
FILES: dict[str, str | bytes] = {
    "list.yaml": "- a\n- b\n",
    "twice.yaml": "seed: 1\nseed: 2\n",
    "nested.yaml": "a: " + "{b: " * 50_000,
    "bomb.yaml": BOMB,
    "tag.yaml": "a: !!python/object/apply:os.system [ls]\n",
    "digits.yaml": f"seed: {'9' * 5000}\n",
    "sexagesimal.yaml": f"seed: 1{':1' * 5000}\n",
    "many.yaml": "iterations: x\nseed: -1\nsolver: {steps: 0, batch: 0}\nmodel: {slots: 0, lenght: 1}\n",
    "empty.jsonl": "",
    "torn.jsonl": LINE + '\n{"id": "b", "ti',
    "no_text.jsonl": '{"id": "a", "title": "A"}\n',
    "misspelt.jsonl": '{"id": "a", "titel": "A", "text": "x"}\n',
    "blank_text.jsonl": '{"id": "a", "title": "A", "text": "  "}\n',
    "same_id.jsonl": f"{LINE}\n{LINE}\n",
    "nan.jsonl": '{"id": "a", "title": "A", "text": "x", "score": NaN}\n',
    "same_key.jsonl": '{"id": "a", "id": "b", "title": "A", "text": "x"}\n',
    "nested.jsonl": '{"id": "a", "title": "A", "text": ' + "[" * 100_000 + "}\n",
    "latin.jsonl": '{"id": "a", "title": "A", "text": "caf\xe9"}\n'.encode("latin-1"),
    "contents.jsonl": '{"id": "a", "contents": "only a title"}\n',
    "quotes.tsv": '1\t"text\ttitle\n',
    "torn.tsv.gz": gzip.compress(b"1\ttext\ttitle\n" * 999)[:30],
    "toml/a.md": "+++\ntitle = [\n+++\n",
    "front_bomb/a.md": f"---\n{BOMB}---\nText.\n",
    "pages/a.md": PAGE,
    "packs/braces/domain.yaml": "title: T\nextends: wikipedia\n",
    "packs/braces/solver.md": "---\nrole: solver\n---\n" + "{{ " + "(" * 3000 + "\n",
    "corpus.jsonl": "".join(
        json.dumps({"id": str(n), "title": f"T{n}", "text": f"Text {n}."}) + "\n" for n in range(9)
    ),
    "utf16.yaml": "seed: 1\n".encode("utf-16"),
    "two\nlines.yaml": "sed: 1\n",
    "report.html": "precious",
    "a_file": "x",
}
"""What lies in the folder where the commands run; `demo` is a finished run beside it."""

DAMAGES: dict[str, tuple[str, bytes]] = {
    "yaml_torn": ("run.yaml", b"name: [\n"),
    "manifest_beyond": ("iteration-99999999999999999999/tasks/manifest.json", b"{}"),
    "ratings_empty": ("iteration-01/compare/ratings.json", b"{}"),
}
"""Copies of a finished run, each with one file overwritten by hand."""

CASES = [case for cases in read_reference("bad_inputs.json").values() for case in cases]
"""A command, where `~` is a line end, and what is said of it."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    # What is measured below is what a command does, not how long the first one of a process imports.
    assert importlib.import_module("transformers").AutoTokenizer
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    write_finished_run(folder / "demo")
    for name, (path, damage) in DAMAGES.items():
        shutil.copytree(folder / "demo", folder / name)
        (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / path).write_bytes(damage)
    return folder


@pytest.mark.parametrize(("command", "said"), CASES, ids=[command for command, _ in CASES])
def test_a_bad_input_is_one_line_and_exit_64(
    place: Path, command: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.delenv("NOT_SET_AT_ALL", raising=False)
    arguments = [word.replace("~", "\n") if word != "''" else "" for word in command.split()]
    monkeypatch.setattr(sys, "argv", ["scope", *arguments])
    before = sorted(place.rglob("*"))
    began = time.process_time()
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    assert stop.value.code == ExitCode.USER, err
    assert said in out + err
    assert "Traceback" not in err
    if said != "Usage":
        lines = (out + err).strip().splitlines()
        # Checks list what they find; everything else is one line.
        assert len(lines) == 1 or command.startswith(("preflight", "prompts check")), lines
        assert all(len(line) < 3000 for line in lines)
    assert time.process_time() - began < 5.0
    assert sorted(place.rglob("*")) == before
