"""Every command of the documentation runs: page by page, in the page's order, in a folder of its own.

A run is shrunken (`SMALL`); what needs something that is not here is in `ELSEWHERE`,
with the reason. Servers run until the end of their page.
"""

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

from scope_selfplay.cli import cli
from tests.doc_commands import ALL, PAGES, REPOSITORY, DocCommand, environment
from tests.exported_run import write_finished_run
from tests.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

for library in ("trl", "bm25s", "starlette", "math_verify"):
    pytest.importorskip(library, reason="needs the local extra")

OWN_PAGE = "docs/your-own-domain.md"
ELSEWHERE = {
    "kubectl ": "a cluster: make test-cluster and make test-pods",
    "docker build ": "images: make test-images builds them",
    "vllm serve ": "vLLM: make test-vllm",
    "pip install ": "a package index",
    "scope k8s doctor": "a cluster: tests/unit/k8s/test_doctor.py",
    "scope k8s check --cluster ": "a cluster: tests/unit/k8s/test_check_cluster.py",
    "scope k8s status ": "a cluster: tests/unit/k8s/test_kubectl.py",
    "scope k8s fetch ": "a cluster: tests/unit/k8s/test_fetch.py, tests/cluster/test_pods.py",
    "python -m jobs ": "a run on a volume and its servers: tests/integration/jobs",
    "scope index fetch ": "the network: tests/unit/downloads",
    "scope index build wikipedia-2018.jsonl ": "the dump of Wikipedia, an encoder and a GPU",
    "scope index build wiki-18.jsonl ": "published vectors: tests/unit/retrieval/test_published_vectors.py",
    "scope index build corpus.jsonl index/ --profile flat --encoder minilm": "its encoder",
    "python prove.py ": "a bundle for another machine",
    "python -m benchmarks.": "minutes: tests/integration/benchmarks",
    "scope play ": "a person: tests/integration/loop/test_play.py, tests/unit/play",
    "scope eval ": "a run of trained iterations: tests/integration/benchmarking",
    "scope tools try search_flights ": "a server of flights: tests/integration/tools",
    "scope judge audit ": "a run that has paid its judge: tests/unit/judge_audit/test_audit.py",
    "scope fork ": "a run of two trained iterations",
    "scope models smollm2": "a package index: tests/vllm/test_real_model.py",
    "scope run --config run.yaml --set model.path=smollm2 ": "the fetched model: tests/vllm/test_real_model.py",
    "scope serve-model smollm2 ": "the fetched model: tests/vllm/test_real_model.py",
    "scope run --config runs/frozen/run.yaml ": "the run that `scope fork` makes",
}
"""Beginnings of commands that cannot run here, with what they need or where they run."""
SMALL = ("iterations=1", "stop_after=0", "compare.tasks=2")
"""A run that checks all its settings and makes two held-out tasks."""
FIRST = {
    "docs/judge.md": ["scope serve-judge --rehearsal --port 8000"],
    "docs/serving.md": ["scope run --name demo", "scope index build runs/demo/corpus.jsonl index/"],
}
"""What a page takes for granted."""
FINISHED = ("docs/corpus.md", "docs/tools.md", "docs/viewer.md")
"""Pages about a finished run."""
PROMPT_PACKS = ("docs/judge.md", "docs/kubernetes.md")
PLACEHOLDERS = {"RUN": "runs/demo", "FORMAT": "trl", "FOLDER": "exported", "MODEL": "embedded"}
SERVERS = ("scope serve-", "scope view ")
_PORT = re.compile(r"\b(8000|8001|8002|8080)\b")


def reason_elsewhere(command: DocCommand) -> str | None:
    return next((why for start, why in ELSEWHERE.items() if command.text.startswith(start)), None)


@pytest.mark.parametrize("start", ELSEWHERE)
def test_what_runs_elsewhere_is_still_in_the_documentation(start: str) -> None:
    assert [each for each in ALL if each.text.startswith(start)], "remove this line of ELSEWHERE"


@pytest.mark.parametrize("name", [form for each in ALL if each.page == "README.md" for form in each.forms])
def test_a_command_of_the_readme_is_there(name: str) -> None:
    words = name.split()
    if words[0] == "make":
        subprocess.run([*words, "-n"], cwd=REPOSITORY, check=True, capture_output=True, timeout=60)
        return
    done = CliRunner().invoke(cli, [*words[1:], "--help"], catch_exceptions=False)
    assert done.exit_code == 0 and f"Usage: cli {' '.join(words[1:])}" in done.output


def test_the_readme_names_every_command_and_every_page() -> None:
    named = {form for each in ALL if each.page == "README.md" for form in each.forms}
    assert sorted({f"scope {each}" for each in command_names(cli)} - named) == []
    text = (REPOSITORY / "README.md").read_text()
    assert [page.name for page in PAGES if f"(docs/{page.name})" not in text][1:] == []


def command_names(group: click.Command, before: str = "") -> Iterator[str]:
    """Those that do something: `tasks ls`, not `tasks`."""
    for name, command in getattr(group, "commands", {}).items():
        inner = list(command_names(command, f"{before}{name} "))
        yield from inner or [f"{before}{name}"]


RUN_PAGES = sorted({each.page for each in ALL} - {"README.md", OWN_PAGE})


@pytest.mark.parametrize("page", RUN_PAGES)
def test_every_command_of_a_page_runs(page: str, tmp_path: Path) -> None:
    commands = [each for each in ALL if each.page == page and reason_elsewhere(each) is None]
    lay_out(page, tmp_path)
    ports = {port: str(free_port()) for port in ("8000", "8001", "8002", "8080")}
    with ExitStack() as servers, chdir(tmp_path):
        for number, text in enumerate([*FIRST.get(page, ()), *(each.plain for each in commands)]):
            words = words_of(text, number, ports)
            if text.startswith(SERVERS):
                servers.enter_context(serving(words))
            else:
                run_to_its_end(words)


def lay_out(page: str, folder: Path) -> None:
    """The files that a reader of the page would have."""
    if page in FINISHED:
        write_finished_run(folder / "runs" / "demo")
    if page in PROMPT_PACKS:
        (folder / "prompts").symlink_to(REPOSITORY / "prompts")
    if page == "docs/kubernetes.md":
        shutil.copytree(REPOSITORY / "k8s", folder / "k8s")
    for name in ("task", "answer", "a", "b"):
        (folder / f"{name}.txt").write_text(f"The dam of 1936, {name}.\n")
    shutil.copy(REPOSITORY / "scope_selfplay/embedded/run.yaml", folder / "my.yaml")
    tiny = (REPOSITORY / "k8s/runs/tiny/run.yaml").read_text()
    (folder / "my-run.yaml").write_text(re.sub(r"\btiny\b(?!:)", "my-run", tiny))
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
        subprocess.run([*words, "-n"], cwd=REPOSITORY, check=True, capture_output=True, timeout=60)
        return
    if shutil.which(program) is None and program != "python":
        pytest.skip(f"{program} is not installed")
    command = [sys.executable, *arguments] if program == "python" else [*words, "--fail"]
    ended = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, f"{shlex.join(words)}: {ended.stderr[-1000:]}"


@contextmanager
def serving(words: Sequence[str]) -> Iterator[None]:
    """The server answers from now on, until the end of the page."""
    port = int(words[words.index("--port") + 1])
    command = [sys.executable, "-m", "scope_selfplay.cli", *words[1:]]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
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
