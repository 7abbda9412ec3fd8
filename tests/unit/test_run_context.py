"""What a policy is told before it begins."""

from pathlib import Path

import pytest

from scope_selfplay.base.sampling import Generate
from scope_selfplay.base.values import Task
from scope_selfplay.config.load import load_config
from scope_selfplay.dialects.families import dialect
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.rules import VerifierJudge
from scope_selfplay.policy.conversation import PolicyFormat, RolloutLimits
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.run.candidate import RunContext
from scope_selfplay.search.searcher import NothingToSearch
from tests.word_codec import WordCodec

PACK = load_pack(Path(__file__).parents[2] / "prompts" / "wikipedia")
TASK = Task(id="t", text="Where is it?", type="long_form_qa", document_id="d", search_turns=1)


def solver_prompt(family: str, *settings: str) -> str:
    context = RunContext(
        load_config(None, settings), PACK, NothingToSearch(), MeteredJudge(VerifierJudge()), ()
    )
    codec = WordCodec()
    policy_format = PolicyFormat(codec, dialect(family), "S_0", RolloutLimits(500))
    request = next(context.solver_episode(policy_format, ("key",), TASK))
    assert isinstance(request, Generate)
    return codec.decode(request.prompt_ids)


@pytest.mark.parametrize(
    ("family", "place", "foreign"),
    [
        ("qwen2.5", "<information>", "<tool_response>"),
        ("qwen3", "<tool_response>", "<information>"),
        ("olmo3", "from the environment", "<information>"),
    ],
)
def test_a_solver_is_told_where_its_results_come_back(family: str, place: str, foreign: str) -> None:
    prompt = solver_prompt(family)
    assert place in prompt and foreign not in prompt and "You can search up to 5 times" in prompt


def test_a_solver_is_told_its_budget_where_the_config_says_so() -> None:
    assert "8,192 tokens" in solver_prompt("qwen3", "solver.tell_budget=true")
    assert "tokens" not in solver_prompt("qwen3")
