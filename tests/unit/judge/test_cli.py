"""`scope judge try` and `scope serve-judge`, run as a person runs them."""

import json

import pytest
from click.testing import CliRunner, Result

from scope_selfplay.judge.commands import judge
from scope_selfplay.judge.questions import ROLE_OF_PROMPT
from scope_selfplay.testing.chat_server import FakeServer
from tests.integration.serving.threads import in_thread
from tests.judges import always

TASK = ["--task", "Why was the dam built?"]
TWO = ["--answer", "One.", "--answer", "Two."]


def tried(*arguments: str) -> Result:
    return CliRunner().invoke(judge, ["try", *arguments, *TASK])


def tried_at(completion: str, *arguments: str) -> str:
    """What is said of this completion; the fake judge has a thread of its own, since the command runs an event loop."""
    with in_thread(FakeServer(always(completion)).serving()) as url:
        result = tried(*arguments, "--base-url", url)
    assert result.exit_code == 0, result.output
    return result.output


def test_prompt_completion_value_and_tokens_are_shown_and_what_cannot_be_read_as_such() -> None:
    found = tried_at("<think>named</think><score>1</score>", "gate_entity")
    for shown in ("Why was the dam built?", "<score>1</score>", "True", "attempts 1", "tokens_in"):
        assert shown in found
    shown = json.loads(tried_at('{"winners": ["nobody"]}', "select", *TWO, "--json"))
    assert (shown["value"], shown["fault"], shown["attempts"]) == (None, "unreadable", 3)
    assert shown["completion"] == '{"winners": ["nobody"]}'


@pytest.mark.parametrize("role", sorted(map(str, ROLE_OF_PROMPT)))
def test_every_role_can_be_looked_at_without_a_judge(role: str) -> None:
    documents = ["--document", "The dam."] if role in ("rubric", "gate_source") else []
    answers = TWO if role.startswith(("compare", "select")) else TWO[:2]
    criterion = ["--criterion", "Names floods."] if role in ("grade", "score_explicit") else []
    result = tried(role, *documents, *answers, *criterion, "--reference", "One.", "--dry")
    shown = "answer" if role == "guard" else "task"
    assert result.exit_code == 0 and f"<<<{shown} " in result.output, result.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["grade", "--answer", "x", "--dry"], "needs a criterion"),
        (["compare_scores", "--answer", "x", "--dry"], "found 1 answers, expected 2"),
        (["select", "--answer", "x", "--dry"], "expected two or more"),
        (["rubric", "--dry"], "rubric needs --document"),
        (["gate_source", "--dry"], "needs the source document"),
        (["gate_source", "--document", "@/nowhere.txt", "--dry"], "cannot be read"),
        (["gate_entity"], "no endpoint to ask"),
        (["gate_entity", "--dry", "--domain", "nowhere"], "no such prompt pack; there are"),
        (["gate_entity", "--base-url", "http://127.0.0.1:9/v1"], "does not answer"),
    ],
)
def test_a_mistake_says_what_to_do(arguments: list[str], complaint: str) -> None:
    result = tried(*arguments)
    assert result.exit_code != 0 and complaint in f"{result.output}{result.exception}"
