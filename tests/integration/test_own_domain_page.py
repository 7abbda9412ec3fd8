"""docs/your-own-domain.md as a new user follows it: an empty folder, every command in its order."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

for library in ("trl", "bm25s", "starlette"):
    pytest.importorskip(library, reason="needs the train and retrieval extras")

from tests.doc_commands import REPOSITORY, environment
from tests.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PAGE = REPOSITORY / "docs" / "your-own-domain.md"
BLOCK = re.compile(r"^```(sh|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def script(page: str) -> str:
    """The page as one script: files are written, commands run, servers waited for and ended."""
    lines = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null' EXIT"]
    for kind, text in BLOCK.findall(page):
        if kind == "yaml":
            name = text.partition("\n")[0].removeprefix("# ")
            lines.append(f"cat > {name} <<'END_OF_FILE'\n{text}END_OF_FILE")
            continue
        for command in text.strip().split("\n"):
            lines += [f"echo '+' {command.split()[1]} >&2", command]
            port = re.search(r"--port (\d+) &$", command)
            if port:
                reached = f"(echo > /dev/tcp/127.0.0.1/{port[1]}) 2>/dev/null"
                lines.append(f"for i in $(seq 150); do {reached} && break; sleep 0.2; done")
    return "\n".join(lines)


def test_every_command_of_the_page_runs_in_an_empty_folder(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "tests" / "fixtures" / "support_docs", tmp_path / "pages")
    binary = tmp_path / "bin" / "scope"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} -m scope_selfplay.cli "$@"\n')
    binary.chmod(0o755)
    page = PAGE.read_text(encoding="utf-8")
    kinds = [kind for kind, _ in BLOCK.findall(page)]
    assert kinds.count("sh") >= 6 and kinds.count("yaml") == 2
    for port in ("8000", "8001"):
        page = page.replace(port, str(free_port()))
    env = {**environment(), "PATH": f"{binary.parent}{os.pathsep}{os.environ['PATH']}"}
    bash = ["bash", "-c", script(page)]
    done = subprocess.run(bash, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "pack(s) without mistakes: helpdesk" in done.stderr
    assert "own, over support" in done.stdout and "own, instead of that of support" in done.stdout
    run = tmp_path / "runs" / "rehearsal"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["iterations"][0]["accepted"] >= 1
    assert list(summary["held_out"]) == ["S_0", "S_1"]
    records = (run / "iteration-01" / "tasks" / "candidates.jsonl").read_text().splitlines()
    types = {task["type"] for record in records if (task := json.loads(record)["task"])}
    assert types and types <= {"diagnose", "procedure", "configure", "customer_reply", "return_a_device"}
    assert "pages" not in (run / "corpus.jsonl").read_text()
    assert "Brevik Gate 4 (4.2, 4.3, 4.4): Error codes" in (run / "corpus.jsonl").read_text()
