"""The in-process engine: the same ids whatever shares the batch, and the arithmetic of a plain forward pass."""

import asyncio
import copy
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scope_selfplay.base.errors import ConfigError, InferenceError
from scope_selfplay.base.sampling import Generate, Message, Sample
from scope_selfplay.base.values import Finish
from scope_selfplay.inference import slots as slot_cache
from scope_selfplay.inference.checkpoints import load_model, sampling_device
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.inference.slots import frozen_copy

WORDS = [
    "Task: a",
    "Source: Aldmoor is a mill.",
    "one two three four",
    "x",
    "Report the river of Aldmoor Mill.",
]


@pytest.fixture(scope="module")
def model(random_policy: Path) -> Any:
    return load_model(random_policy)


def engine(model: Any, codec: ChatCodec, *, slots: int = 8, **options: Any) -> InProcessModel:
    return InProcessModel(model, codec, identity="S_0", slots=slots, max_length=160, **options)


def requests(codec: ChatCodec, count: int, *, greedy: bool = False) -> list[Generate]:
    texts = [WORDS[row % 5] * (1 + row // 5) for row in range(count)]
    prompts = [codec.encode_prompt([Message("user", text)]) for text in texts]
    return [Generate(prompt, 24 + row % 3, ("</search>",), greedy) for row, prompt in enumerate(prompts)]


def run_all(model: InProcessModel, asked: Sequence[Generate]) -> list[Any]:
    """Samples or what was raised, of requests at once."""

    async def together() -> list[Any]:
        calls = [model.generate(request, ("key", row)) for row, request in enumerate(asked)]
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(together())


def run_one(model: InProcessModel, request: Generate, row: int = 0) -> Sample:
    return asyncio.run(model.generate(request, ("key", row)))


def ids_of(samples: Sequence[Any]) -> list[tuple[int, ...]]:
    return [each.ids for each in samples]


@pytest.fixture(scope="module")
def alone(model: Any, codec: ChatCodec) -> list[Sample]:
    running = engine(model, codec)
    return [run_one(running, request, row) for row, request in enumerate(requests(codec, 8))]


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_alone_and_in_a_batch_of_any_size_the_same_ids_come_out(
    model: Any, codec: ChatCodec, alone: list[Sample], slots: int
) -> None:
    together = run_all(engine(model, codec, slots=slots), requests(codec, 8))
    assert ids_of(together) == ids_of(alone) and len(set(ids_of(alone))) == 8


@pytest.mark.parametrize(("temperature", "greedy"), [(1.0, True), (1.0, False), (0.7, False)])
def test_log_probabilities_are_those_of_a_full_forward_pass_and_greedy_takes_the_likeliest(
    model: Any, codec: ChatCodec, temperature: float, greedy: bool
) -> None:
    asked, exact = requests(codec, 5, greedy=greedy), copy.deepcopy(model).double()
    samples = run_all(engine(model, codec, temperature=temperature), asked)
    for request, sample in zip(asked, samples, strict=True):
        ids = torch.tensor([[*request.prompt_ids, *sample.ids]])
        with torch.no_grad():
            logits = exact(ids).logits[0, len(request.prompt_ids) - 1 : -1] / temperature
        if greedy:
            assert sample.ids == tuple(logits.argmax(-1).tolist())
            assert len(sample.ids) == request.max_tokens or sample.finish is Finish.STOP
        else:
            full = logits.log_softmax(-1)[torch.arange(len(sample.ids)), torch.tensor(sample.ids)]
            assert np.abs(np.array(sample.logprobs) - full.numpy()).max() < 1e-4


def test_a_sample_ends_with_its_budget_or_a_stop_text(speaking_policy: Path) -> None:
    codec = ChatCodec.load(speaking_policy)
    speaking = engine(load_model(speaking_policy), codec)
    prompt = codec.encode_prompt([Message("user", "Task: x")])
    stops = ("</search>", "</task>", "</answer>")
    samples = run_all(speaking, [Generate(prompt, 40, stops)] * 12)
    assert {each.finish for each in samples} == {Finish.STOP}
    assert all(codec.decode(each.ids).endswith(stops) for each in samples)
    # A stop text of several tokens is found in the text.
    longer = run_one(speaking, Generate(prompt, 40, ("k></th",)))
    assert codec.decode(longer.ids) == "<think></think>" and longer.finish is Finish.STOP
    cut = run_one(speaking, Generate(prompt, 3, stops))
    assert (len(cut.ids), cut.finish) == (3, Finish.LENGTH)


def test_a_prompt_that_does_not_fit_fails_alone(model: Any, codec: ChatCodec, alone: list[Sample]) -> None:
    bad, fine = run_all(engine(model, codec), [Generate((5,) * 160, 4), requests(codec, 2)[1]])
    assert isinstance(bad, InferenceError) and "does not fit a context of 160" in str(bad)
    assert fine.ids == alone[1].ids


def test_a_model_that_fails_fails_everyone_once_and_works_again(
    model: Any, codec: ChatCodec, alone: list[Sample]
) -> None:
    running = engine(model, codec, slots=2)
    running.refresh("S_0")
    cache: Any = running.cache
    forward = cache.forward

    def broken(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    cache.forward = broken
    faults = run_all(running, requests(codec, 8))
    assert all(isinstance(fault, InferenceError) and "out of memory" in str(fault) for fault in faults)
    cache.forward = forward
    assert ids_of(run_all(running, requests(codec, 8))) == ids_of(alone)


def test_a_caller_that_goes_away_frees_its_slot(model: Any, codec: ChatCodec, alone: list[Sample]) -> None:
    running = engine(model, codec, slots=1)
    asked = requests(codec, 2)

    async def leave() -> Sample:
        gone = asyncio.ensure_future(running.generate(Generate(asked[0].prompt_ids, 120), ("x",)))
        while not running.running:
            await asyncio.sleep(0)
        gone.cancel()
        cache: Any = running.cache
        forward, passes = cache.forward, list[object]()

        def counted(*given: Any) -> Any:
            passes.append(given)
            return forward(*given)

        cache.forward = counted
        sample = await running.generate(asked[1], ("key", 1))
        # The one that left takes no further steps; the other needs a prefill and a step a token.
        assert len(passes) <= len(sample.ids) + 2
        return sample

    assert asyncio.run(leave()).ids == alone[1].ids


def test_new_weights_are_taken_over_when_asked_for_once_the_old_copy_and_its_cache_are_gone(
    model: Any, codec: ChatCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = copy.deepcopy(model)
    running, (request,) = engine(learner, codec), requests(codec, 1)
    before = run_one(running, request)
    with torch.no_grad():
        learner.lm_head.weight.normal_()
    assert run_one(running, request).ids == before.ids
    old = weakref.ref(running.model), weakref.ref(running.cache)
    seen: list[list[object]] = []

    def taken(source: Any) -> Any:
        seen.append([each() for each in old])
        return frozen_copy(source)

    monkeypatch.setattr(slot_cache, "frozen_copy", taken)
    running.refresh("S_0@1")
    assert running.identity == "S_0@1" and seen == [[None, None]]
    assert run_one(running, request).ids != before.ids


def test_a_gpu_that_is_not_there_is_refused_and_auto_does_without() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert sampling_device("auto") == sampling_device("cpu") == "cpu"
    with pytest.raises(ConfigError, match="found cuda, and torch sees no GPU here; use auto or cpu"):
        sampling_device("cuda")
