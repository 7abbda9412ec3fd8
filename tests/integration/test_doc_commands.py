"""Every command of the documentation runs: page by page, in the page's order, in a folder of its own.

A run is shrunken (`SMALL`); what needs something that is not here is in `ELSEWHERE`,
with the reason. Servers run until the end of their page.
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from scope_selfplay.base.machine import free_port
from scope_selfplay.cli import cli
from scope_selfplay.config.load import load_config
from tests.commands import ran
from tests.doc_commands import ALL, REPOSITORY, DocCommand, environment
from tests.exported_run import write_finished_run

for library in ("trl", "bm25s", "starlette", "math_verify"):
    pytest.importorskip(library, reason="needs the local extra")

LIST = "docs/look-up/commands.md"
OWN_PAGE = "docs/start/own-domain.md"
ELSEWHERE = {
    "kubectl ": "a cluster: make test-cluster and make test-pods",
    "vllm serve ": "vLLM: make test-vllm",
    "pip install ": "a package index",
    "scope k8s doctor": "a cluster: tests/unit/k8s/test_check_cluster.py",
    "scope k8s check --cluster ": "a cluster: tests/unit/k8s/test_check_cluster.py",
    "scope status ": "a run with a driver: tests/integration/controller/test_node.py, tests/cluster/test_apply.py",
    "scope k8s fetch ": "a cluster: tests/unit/k8s/test_fetch.py, tests/cluster/test_pods.py",
    "python -m jobs ": "a run on a volume and its servers: tests/integration/jobs",
    "scope index fetch ": "the network: tests/unit/downloads",
    "scope upload ": "an object store: tests/consumers/test_object_store.py",
    "scope download ": "an object store: tests/consumers/test_object_store.py",
    "scope index build wikipedia-2018.jsonl ": "the dump of Wikipedia, an encoder and a GPU",
    "scope index build wiki-18.jsonl ": "published vectors: tests/unit/retrieval/test_dense.py",
    "scope index build corpus.jsonl flat/ --profile flat --encoder minilm": "its encoder",
    "python prove.py ": "a bundle for another machine",
    "python -m benchmarks.": "minutes: tests/integration/benchmarks",
    "scope play ": "a person: tests/unit/play",
    "scope eval ": "a run of trained iterations: tests/integration/benchmarking",
    "scope tools try search_flights ": "a server of flights: tests/integration/tools",
    "scope judge exam ": "a judge that judges: tests/unit/judge/test_exam.py",
    "scope judge audit ": "a run that has paid its judge: tests/unit/judge_audit/test_audit.py",
    "scope fork ": "a run of two trained iterations",
    "scope models smollm2": "a package index: tests/vllm/test_real_loop.py",
    "scope run --config run.yaml --set model.path=smollm2 ": "the fetched model: tests/vllm/test_real_loop.py",
    "scope serve-model smollm2 ": "the fetched model: tests/vllm/test_real_loop.py",
    "scope continue runs/frozen": "the run that `scope fork` makes",
    "scope run --config k8s/runs/one-24gb/run.yaml ": "a GPU",
    "scope run --config k8s/runs/qwen3-8b/run.yaml --gpus ": "GPUs",
    "scope run --config k8s/runs/short/run.yaml ": "a GPU; without: tests/integration/serving/test_short_answers.py",
    "scope run --config examples/maths/run.yaml ": "a model that does sums: tests/integration/maths/test_training.py",
}
"""Beginnings of commands that cannot run here, with what they need or where they run."""
SMALL = ("iterations=1", "stop_after=0", "compare.tasks=2", "model.processes=1")
"""A run that checks all its settings and makes two held-out tasks."""
FIRST = {
    "docs/how/judge.md": ["scope serve-judge --rehearsal --port 8000"],
    "docs/operate/serving.md": ["scope run --name demo"],
}
"""What a page takes for granted."""
FINISHED = "docs/how/documents.md docs/how/evaluation.md docs/operate/viewer.md docs/start/laptop.md".split()
"""Pages about a finished run."""
CHECKOUT = ("docs/operate/kubernetes.md", "docs/start/cluster.md")
PROMPT_PACKS = ("docs/how/judge.md", *CHECKOUT)
PLACEHOLDERS = {"RUN": "runs/demo", "FORMAT": "trl", "FOLDER": "exported", "MODEL": "embedded"}
SERVERS = ("scope serve-", "scope view ")
_PORT = re.compile(r"\b(8000|8001|8002|8080)\b")


def reason_elsewhere(command: DocCommand) -> str | None:
    return next((why for start, why in ELSEWHERE.items() if command.text.startswith(start)), None)


def test_what_runs_elsewhere_is_still_in_the_documentation() -> None:
    gone = [start for start in ELSEWHERE if not any(each.text.startswith(start) for each in ALL)]
    assert gone == [], "remove these lines of ELSEWHERE"


def test_a_command_that_is_named_is_there() -> None:
    listed = {form for each in ALL if each.page in ("README.md", LIST) for form in each.forms}
    targets = [word for form in sorted(listed) if form.startswith("make ") for word in form.split()[1:]]
    make(targets)
    for form in sorted(each for each in listed if each.startswith("scope ")):
        words = form.split()[1:]
        done = CliRunner().invoke(cli, [*words, "--help"], catch_exceptions=False)
        assert done.exit_code == 0 and f"Usage: cli {' '.join(words)}" in done.output, form


def make(targets: Sequence[str]) -> None:
    """Whether these targets are there; nothing is made."""
    done = ran(["make", "-n", *targets], cwd=REPOSITORY, timeout=60)
    assert done.returncode == 0, f"make {shlex.join(targets)}: {done.stderr}"


def test_every_command_is_named() -> None:
    named = {form for each in ALL if each.page == LIST for form in each.forms}
    assert sorted({f"scope {each}" for each in command_names(cli)} - named) == []


def command_names(group: click.Command, before: str = "") -> Iterator[str]:
    """Those that do something: `tasks ls`, not `tasks`."""
    for name, command in getattr(group, "commands", {}).items():
        inner = list(command_names(command, f"{before}{name} "))
        yield from inner or [f"{before}{name}"]


RUN_PAGES = sorted({each.page for each in ALL} - {"README.md", LIST, OWN_PAGE})


@pytest.mark.parametrize("page", RUN_PAGES)
def test_every_command_of_a_page_runs(page: str, tmp_path: Path, forked: list[str]) -> None:
    commands = [each for each in ALL if each.page == page and reason_elsewhere(each) is None]
    lay_out(page, tmp_path)
    ports = {port: str(free_port()) for port in ("8000", "8001", "8002", "8080")}
    with ExitStack() as servers, chdir(tmp_path):
        for number, text in enumerate([*FIRST.get(page, ()), *(each.plain for each in commands)]):
            words = words_of(text, number, ports)
            if text.startswith(SERVERS):
                servers.enter_context(serving([*forked, *words]))
            else:
                run_to_its_end(words)


def lay_out(page: str, folder: Path) -> None:
    """The files that a reader of the page would have."""
    if page in FINISHED:
        write_finished_run(folder / "runs" / "demo")
    if page in PROMPT_PACKS:
        (folder / "prompts").symlink_to(REPOSITORY / "prompts")
    if page in (*CHECKOUT, "docs/start/one-machine.md"):
        shutil.copytree(REPOSITORY / "k8s", folder / "k8s")
    for name in ("task", "answer", "a", "b"):
        (folder / f"{name}.txt").write_text(f"The dam of 1936, {name}.\n")
    shutil.copy(REPOSITORY / "scope_selfplay/embedded/run.yaml", folder / "my.yaml")
    (folder / "my-run.yaml").write_text(BLOCK.findall((REPOSITORY / CHECKOUT[1]).read_text())[0][1])
    rows = [
        f'{{"id": "{n}", "title": "Dam {n}", "text": "Dam {n} was built in {1900 + n}."}}\n' for n in range(9)
    ]
    (folder / "corpus.jsonl").write_text("".join(rows))


def words_of(text: str, number: int, ports: dict[str, str]) -> list[str]:
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(text)]
    if "ID" in words:
        words[words.index("ID")] = first_task(Path(words[words.index("ID") - 1]))
    words = [word.replace("=MODEL", "=embedded") for word in words]
    if words[:2] == ["scope", "run"]:
        named = [] if "--name" in words else ["--name", f"run-{number}"]
        words += [*named, *(option for setting in SMALL for option in ("--set", setting))]
    if text.startswith(SERVERS) and "--port" not in words:
        words += ["--port", "8080" if words[1] == "view" else "8000"]
    return [_PORT.sub(lambda found: ports[found[1]], word) for word in words]


def first_task(run: Path) -> str:
    done = CliRunner().invoke(cli, ["tasks", "ls", str(run), "--json"], catch_exceptions=False)
    found = re.search(r'"id": "([^"]+)"', done.output)
    assert found is not None, done.output
    return found[1]


def run_to_its_end(words: Sequence[str]) -> None:
    program, *arguments = words
    if program == "scope":
        done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert done.exit_code == 0, f"{shlex.join(words)}: {done.output[-1000:]}"
        return
    if program == "make":
        make(arguments)
        return
    if shutil.which(program) is None and program != "python":
        pytest.skip(f"{program} is not installed")
    command = [sys.executable, *arguments] if program == "python" else [*words, "--fail"]
    ended = ran(command, env=environment(), timeout=300)
    assert ended.returncode == 0, f"{shlex.join(words)}: {ended.stderr[-1000:]}"


@contextmanager
def serving(words: Sequence[str]) -> Iterator[None]:
    """The server answers from now on, until the end of the page."""
    port = int(words[words.index("--port") + 1])
    with subprocess.Popen(
        words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as server:
        try:
            while not listens(port):
                assert server.poll() is None, (
                    f"{shlex.join(words)}: {server.communicate()[1].decode()[-1000:]}"
                )
                time.sleep(0.1)
            yield
        finally:
            server.terminate()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


BLOCK = re.compile(r"^```(sh|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def script(page: str) -> str:
    """A page as one script: files are written, commands run, servers waited for and ended."""
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


def test_every_command_of_ones_own_domain_runs_in_an_empty_folder(tmp_path: Path, forked: list[str]) -> None:
    """As a new user follows the page, with a shell."""
    shutil.copytree(REPOSITORY / "tests" / "fixtures" / "support_docs", tmp_path / "pages")
    binary = tmp_path / "bin" / "scope"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\nexec {shlex.join(forked)} scope "$@"\n')
    binary.chmod(0o755)
    page = (REPOSITORY / OWN_PAGE).read_text(encoding="utf-8")
    kinds = [kind for kind, _ in BLOCK.findall(page)]
    assert kinds.count("sh") >= 6 and kinds.count("yaml") == 3
    for port in ("8000", "8001"):
        page = page.replace(port, str(free_port()))
    env = {**environment(), "PATH": f"{binary.parent}{os.pathsep}{os.environ['PATH']}"}
    done = ran(["bash", "-c", script(page)], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "pack(s) without mistakes: helpdesk" in done.stderr
    assert "own, over support" in done.stdout and "own, instead of that of support" in done.stdout
    assert load_config(tmp_path / "real.yaml").model.dialect == "qwen3"
    run = tmp_path / "runs" / "rehearsal"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["iterations"][0]["accepted"] >= 1
    assert list(summary["held_out"]) == ["S_0", "S_1"]
    records = (run / "iteration-01" / "tasks" / "candidates.jsonl").read_text().splitlines()
    types = {task["type"] for record in records if (task := json.loads(record)["task"])}
    assert types and types <= {"diagnose", "procedure", "configure", "customer_reply", "return_a_device"}
    assert load_config(run / "run.yaml").search.url is None and "step 5" not in page.partition("## 6.")[2]
    assert "pages" not in (run / "corpus.jsonl").read_text()
    assert "Brevik Gate 4 (4.2, 4.3, 4.4): Error codes" in (run / "corpus.jsonl").read_text()
