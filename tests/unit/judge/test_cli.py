"""`scope judge try` and `scope serve-judge`, run as a person runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.judge.commands import judge
from scope_selfplay.net.serve import serving
from scope_selfplay.testing.chat_server import FakeServer
from tests.integration.serving.threads import in_thread
from tests.judges import always

TASK = ["--task", "Why was the dam built?"]


def tried(*arguments: str) -> Result:
    return CliRunner().invoke(judge, ["try", *arguments, *TASK])


def tried_at(completion: str, *arguments: str) -> str:
    """What is said of this completion; the fake judge has a thread of its own, since the command runs an event loop."""
    with in_thread(FakeServer(always(completion)).serving()) as url:
        result = tried(*arguments, "--base-url", url)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_gate_shows_prompt_completion_value_and_tokens() -> None:
    found = tried_at("<think>named</think><score>1</score>", "gate_entity")
    for shown in ("Why was the dam built?", "<score>1</score>", "True", "attempts 1", "tokens_in"):
        assert shown in found


def test_what_cannot_be_read_is_shown_as_such() -> None:
    answers = ["--answer", "One.", "--answer", "Two."]
    shown = json.loads(tried_at('{"winners": ["nobody"]}', "select", *answers, "--json"))
    assert (shown["value"], shown["fault"], shown["attempts"]) == (None, "unreadable", 3)
    assert shown["completion"] == '{"winners": ["nobody"]}'


@pytest.mark.parametrize(
    "arguments",
    [
        ["gate_entity"],
        ["gate_source", "--document", "The dam."],
        ["gate_safety"],
        ["rubric", "--document", "One.", "--document", "Two."],
        ["rubric_dimensions"],
        ["grade", "--answer", "Floods.", "--criterion", "Names floods."],
        ["compare_scores", "--answer", "One.", "--answer", "Two."],
        ["compare_preference", "--answer", "One.", "--answer", "Two.", "--reference", "One."],
        ["select", "--answer", "One.", "--answer", "Two."],
        ["score_implicit", "--answer", "One."],
        ["score_explicit", "--answer", "One.", "--criterion", "Names floods."],
        ["score_correctness", "--answer", "One.", "--reference", "One."],
        ["score_proof", "--answer", "One.", "--reference", "One."],
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_role_can_be_looked_at_without_a_judge(arguments: list[str]) -> None:
    result = tried(*arguments, "--dry")

    assert result.exit_code == 0 and "<<<task " in result.output, result.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["grade", "--answer", "x", "--dry"], "needs a criterion"),
        (["compare_scores", "--answer", "x", "--dry"], "found 1 answers, expected 2"),
        (["select", "--answer", "x", "--dry"], "expected two or more"),
        (["rubric", "--dry"], "rubric needs --document"),
        (["gate_source", "--dry"], "needs the source document"),
        (["gate_entity"], "no endpoint to ask"),
        (["gate_entity", "--dry", "--domain", "nowhere"], "no such prompt pack; there are"),
        (["gate_entity", "--base-url", "http://127.0.0.1:9/v1"], "does not answer"),
    ],
)
def test_a_mistake_says_what_to_do(arguments: list[str], complaint: str) -> None:
    result = tried(*arguments)

    assert result.exit_code != 0 and complaint in f"{result.output}{result.exception}"


def test_a_text_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "answer.txt"
    file.write_text("Who built the harbour?")

    both = tried("compare_scores", "--answer", f"@{file}", "--answer", "Nobody knows.", "--dry").output
    assert "Who built the harbour?" in both and "Nobody knows." in both
    one = tried("grade", "--answer", "Floods.", "--criterion", f"@{file}", "--dry")
    assert "Who built the harbour?" in one.output
    task = CliRunner().invoke(judge, ["try", "gate_entity", "--task", f"@{file}", "--dry"])
    assert "Who built the harbour?" in task.output
    missing = tried("gate_source", "--document", "@/nowhere.txt", "--dry")
    assert missing.exit_code == 2 and "cannot be read" in missing.output


def test_without_a_server_library_one_line_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['uvicorn'] = None; sys.argv = ['scope', 'serve-judge', '--rehearsal']; "
        "from scope_selfplay.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert done.returncode == ExitCode.USER, done.stderr
    assert done.stderr.splitlines() == [
        "scope: scope serve-judge needs uvicorn: pip install 'scope-selfplay[view]'"
    ]


def test_a_key_that_the_endpoint_refuses_ends_with_its_exit_code() -> None:
    """As a person runs it: by the command itself, whose end click gives back as a number."""

    async def models(request: Request) -> Response:
        return JSONResponse({"data": [{"id": "m"}]})

    async def refuse(request: Request) -> Response:
        return JSONResponse({"error": "\x1b[2J\u202eno"}, 401)

    routes = [Route("/v1/models", models), Route("/v1/chat/completions", refuse, methods=["POST"])]
    tried = [sys.executable, "-m", "scope_selfplay.cli", "judge", "try", "gate_entity", *TASK, "--base-url"]
    with in_thread(serving(Starlette(routes=routes))) as url:
        ended = subprocess.run([*tried, url], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == ExitCode.USER, ended.stderr
    assert "status 401" in ended.stderr and "\x1b" not in ended.stderr and "\u202e" not in ended.stderr
