"""Partners that are served elsewhere: which checkpoint they must serve, and which responses are not samples."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.base.errors import ConfigError, InferenceError, RunMismatchError
from scope_selfplay.base.sampling import Generate, Sample
from scope_selfplay.base.values import Finish
from scope_selfplay.config.load import load_config
from scope_selfplay.inference.served import Served, ServedModel, read_sample
from scope_selfplay.net.client import Client, RetryPolicy
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.run.run import Run, check_served, samples_exactly
from scope_selfplay.store.folder import Policy, RunFolder

REQUEST = Generate((1, 2, 3), max_tokens=4)


def test_several_sampling_processes_are_refused_in_one_of_several_ranks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    opened = partial(Run, folder=RunFolder(tmp_path), pack=load_pack(pack_path("embedded")))
    with pytest.raises(ConfigError, match=r"model.processes \(2\) .* and 4 processes train here"):
        _ = opened(load_config(None, ["model.processes=2"])).sampling
    assert opened(load_config(None)).sampling is None


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return Policy("S_1", tmp_path)


def test_equal_weights_are_accepted_and_a_name_or_folder_is_trusted_with_a_remark(policy: Policy) -> None:
    assert policy.identity == f"S_1-{policy.weights}" and len(policy.weights) == 12
    assert check_served(Served("any", None, policy.weights, 512), policy, "there") is None
    by_name = Served(policy.identity, "/models/x", None, 512)
    assert "trusted by its model's name" in (check_served(by_name, policy, "there") or "")
    by_folder = Served("solver", str(policy.path), None, 512)
    assert "trusted by its model's folder" in (check_served(by_folder, policy, "there") or "")


@pytest.mark.parametrize(
    ("served", "advice"),
    [
        (Served("S_1-abcdef123456", None, "000000000000", 512), "serves weights 000000000000"),
        (Served("S_0-000000000000", "/runs/demo/other", None, 512), "--served-model-name"),
        (Served("solver", None, None, None), "--served-model-name"),
    ],
)
def test_other_weights_are_refused_with_the_expected_checkpoint(
    served: Served, advice: str, policy: Policy
) -> None:
    with pytest.raises(RunMismatchError, match=advice) as caught:
        check_served(served, policy, "partners.solver: http://there/v1")
    assert policy.identity in str(caught.value) and "\n" not in str(caught.value)


def _answer(**changes: Any) -> dict[str, Any]:
    choice = {
        "token_ids": [7, 8],
        "logprobs": {"token_logprobs": [-0.5, 0.0]},
        "finish_reason": "stop",
        "prompt_token_ids": [1, 2, 3],
    }
    return {"choices": [{**choice, **changes}]}


def test_a_sample_is_read_as_it_was_made() -> None:
    assert read_sample(_answer(), REQUEST) == Sample((7, 8), (-0.5, 0.0), Finish.STOP)
    cut = read_sample(_answer(finish_reason="length", prompt_token_ids=None), REQUEST)
    assert cut.finish is Finish.LENGTH


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ({}, "no completion"),
        (_answer(token_ids=None), "return_token_ids"),
        (_answer(token_ids=[7, "8"]), "token_ids.1: Input should be a valid integer"),
        (_answer(token_ids=[7, -1]), "token_ids.1: Input should be greater than or equal to 0"),
        (_answer(logprobs=None), "no completion"),
        (_answer(logprobs={"token_logprobs": [-0.5, float("nan")]}), r"token_logprobs\.1.*: Input should be"),
        (_answer(logprobs={"token_logprobs": [-0.5]}), "2 tokens with 1 log-probabilities"),
        (_answer(token_ids=[1] * 5, logprobs={"token_logprobs": [-1.0] * 5}), "4 asked"),
        (_answer(finish_reason="abort"), "no completion"),
        (_answer(prompt_token_ids=[2, 3]), "another prompt"),
    ],
)
def test_what_is_no_sample_is_a_fault_and_never_half_a_turn(answer: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InferenceError, match=complaint):
        read_sample(answer, REQUEST)


@pytest.mark.parametrize(
    ("said", "finish", "kept"),
    [
        ("a <search>dams", "stop", "a <search>dams</search>"),
        ("a <search>dams", "length", "a <search>dams"),
        ("<search>dams</search>", "stop", "<search>dams</search>"),
        ("<search>x</search> <answer>dams", "stop", "<search>x</search> <answer>dams</answer>"),
    ],
)
def test_of_a_policy_that_nobody_trains_the_text_is_enough(said: str, finish: str, kept: str) -> None:
    request, encoded = REQUEST._replace(stop=("</search>", "</answer>")), list[str]()
    answer = {"choices": [{"text": said, "finish_reason": finish, "index": 0}]}
    sample = read_sample(answer, request, lambda text: (len(encoded.append(text) or encoded),))  # type: ignore[func-returns-value]
    assert (sample, encoded) == (Sample((1,), None, Finish(finish)), [kept])
    with pytest.raises(InferenceError, match="token_ids"):
        read_sample(answer, request)


class _Asked(Client):
    """A client that keeps what it was asked for, one call at once, in the place of one that sends it."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9/v1", retry_policy=RetryPolicy(connections=1))
        self.bodies: list[dict[str, Any]] = []
        self.servers[0].ask = self.keep  # type: ignore[method-assign,assignment]

    async def keep(self, method: str, path: str, body: bytes, **options: Any) -> dict[str, Any]:
        self.bodies.append(json.loads(body))
        await asyncio.sleep(0.001)
        return _answer(prompt_token_ids=None)


class _Codec:
    end_ids = frozenset({2})


async def test_later_turns_are_sent_first_and_what_an_engine_keeps_in_form_with_its_pattern() -> None:
    asked, counted = _Asked(), list[int]()
    model = ServedModel(
        lambda: asked,
        Served("solver", None, None, 512),
        _Codec(),  # type: ignore[arg-type]
        identity="S_1",
        max_length=100,
        temperature=1.0,
        on_tokens=counted.append,
    )
    turns = [REQUEST._replace(turn=turn, max_tokens=10 + turn) for turn in (0, 0, 2)]
    turns[2] = turns[2]._replace(pattern="<task>.{30,}</task>")
    await asyncio.gather(*(model.generate(request, (row,)) for row, request in enumerate(turns)))
    assert [body["max_tokens"] for body in asked.bodies] == [12, 10, 10] and counted == [2, 2, 2]
    kept = {"regex": "<task>.{30,}</task>"}
    assert [body.get("structured_outputs") for body in asked.bodies] == [kept, None, None]


def test_a_large_vocabulary_is_sampled_exactly_only_where_that_is_asked_for() -> None:
    for setting, vocabulary, expected in (
        ("model.processes=1", 16_384, True),
        ("model.processes=1", 49_152, False),
        ("model.processes=2", 49_152, True),
        ("model.deterministic=true", 49_152, True),
        ("model.deterministic=false", 300, False),
    ):
        assert samples_exactly(load_config(None, [setting]).model, vocabulary) is expected
