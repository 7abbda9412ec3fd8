"""The completions wire: what is taken, what is refused with its field, and what comes back."""

import json
from typing import Any

import pytest

from scope_selfplay.base.sampling import Sample
from scope_selfplay.base.values import Finish
from scope_selfplay.inference.served import read_sample
from scope_selfplay.inference.server import CompletionRequest, read_request, render_response

BODY = {
    "model": "m",
    "prompt": [5, 6, 7],
    "max_tokens": 10,
    "temperature": 0.7,
    "seed": 2**63 - 1,
    "stop_token_ids": [9],
    "stop": ["</x y>"],
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "return_token_ids": True,
    "logprobs": 0,
    "top_p": 1.0,
    "top_k": 0,
    "user": None,
}


def read(**changes: Any) -> CompletionRequest:
    body = json.dumps({**BODY, **changes}).encode()
    return read_request(body, vocabulary=100, max_length=32)


def test_a_request_is_read_and_what_it_leaves_out_is_as_in_vllm() -> None:
    asked = read()
    assert asked.request.prompt_ids == (5, 6, 7) and asked.request.max_tokens == 10
    assert (asked.temperature, asked.request.greedy, asked.seed) == (0.7, False, 2**63 - 1)
    assert asked.stop_token_ids == [9] and asked.stop == ["</x y>"]
    assert read(temperature=0).request.greedy
    least = read_request(b'{"prompt": [1]}', vocabulary=100, max_length=32)
    assert least.request.max_tokens == 16 and least.seed is None and least.temperature == 1.0
    assert not least.return_token_ids and least.logprobs is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"prompt": "text"}, "prompt is text: Input should be a valid list"),
        ({"prompt": [100]}, "prompt holds 100, expected token ids below 100"),
        ({"max_tokens": 30}, "with a prompt of 3 tokens it exceeds the context of 32"),
        ({"seed": 2**63}, "too large a number"),
        ({"stop": [1]}, r"stop.0 is 1: Input should be a valid string"),
        ({"stop": "x", "include_stop_str_in_output": False}, "include_stop_str_in_output"),
        ({"logprobs": 5}, "logprobs is 5: Input should be 0"),
        ({"n": 2}, "n is 2, expected 1"),
        ({"stream": True}, "stream is True, expected False"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs is .* does not know it"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_by_name(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(**changes)


def test_a_response_reads_back_as_the_sample() -> None:
    asked, sample = read(), Sample((7, 9), (-0.25, -1.5), Finish.STOP)
    response = json.loads(json.dumps(render_response(asked, sample, "x", "m")))
    assert read_sample(response, asked.request) == sample
    assert response["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    bare = render_response(
        asked.model_copy(update={"return_token_ids": False, "logprobs": None}), sample, "x", "m"
    )
    assert "token_ids" not in bare["choices"][0] and bare["choices"][0]["logprobs"] is None
