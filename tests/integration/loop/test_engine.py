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
from scope_selfplay.inference import in_process
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


def requests(codec: ChatCodec, count: int, *, greedy: bool = False, tokens: int = 24) -> list[Generate]:
    prompts = [
        codec.encode_prompt([Message("user", WORDS[row % 5] * (1 + row // 5))]) for row in range(count)
    ]
    return [Generate(prompt, tokens + row % 3, ("</search>",), greedy) for row, prompt in enumerate(prompts)]


def run_all(model: InProcessModel, asked: Sequence[Generate]) -> list[Sample]:
    async def together() -> list[Sample]:
        calls = [model.generate(request, ("key", row)) for row, request in enumerate(asked)]
        return list(await asyncio.gather(*calls))

    return asyncio.run(together())


def run_alone(model: InProcessModel, asked: Sequence[Generate]) -> list[Sample]:
    return [asyncio.run(model.generate(request, ("key", row))) for row, request in enumerate(asked)]


@pytest.fixture(scope="module")
def alone(model: Any, codec: ChatCodec) -> list[Sample]:
    return run_alone(engine(model, codec), requests(codec, 8))


@pytest.mark.parametrize("slots", [1, 2, 3, 8])
def test_alone_and_in_a_batch_of_any_size_the_same_ids_come_out(
    model: Any, codec: ChatCodec, alone: list[Sample], slots: int
) -> None:
    together = run_all(engine(model, codec, slots=slots), requests(codec, 8))
    assert [each.ids for each in together] == [each.ids for each in alone]
    assert len({each.ids for each in alone}) == 8


def test_a_longer_prefix_that_a_slot_holds_is_used_and_changes_nothing(model: Any, codec: ChatCodec) -> None:
    (first,) = requests(codec, 1)
    fresh, used = engine(model, codec), engine(model, codec)
    said = asyncio.run(used.generate(first, ("a",)))
    after = first.prompt_ids + said.ids + codec.encode_next([Message("user", "go on")], sampled=said.ids)
    following = Generate(after, 20)
    computed = count_tokens(used)
    again = asyncio.run(used.generate(following, ("b",)))
    # All but the last sampled token and what was heard since lay in the cache.
    assert computed[0] <= len(after) - len(first.prompt_ids) - len(said.ids) + 1
    assert again.ids == asyncio.run(fresh.generate(following, ("b",))).ids
    assert again.logprobs == pytest.approx(asyncio.run(fresh.generate(following, ("b",))).logprobs, abs=1e-4)


def count_tokens(model: InProcessModel) -> list[int]:
    """How many tokens each later forward pass computes."""
    counts: list[int] = []
    cache: Any = model.cache
    forward = cache.forward

    def counted(rows: Sequence[Sequence[int]], *rest: Any) -> Any:
        counts.append(sum(map(len, rows)))
        return forward(rows, *rest)

    cache.forward = counted
    return counts


def test_a_prompt_that_a_whole_group_asks_at_once_is_computed_once(model: Any, codec: ChatCodec) -> None:
    request = requests(codec, 6)[5]
    other = requests(codec, 1)[0]
    fresh = engine(model, codec)
    fresh.refresh("S_0")
    counts = count_tokens(fresh)
    group = run_all(fresh, [request, other, *[request] * 5])
    # The five others compute their last prompt token alone, beside the first tokens of the two.
    assert counts[:2] == [len(request.prompt_ids) + len(other.prompt_ids), 5]
    calls = [(0, request), (1, other), *((row, request) for row in range(2, 7))]
    for row, asked in calls:
        assert group[row].ids == asyncio.run(engine(model, codec).generate(asked, ("key", row))).ids


def test_greedy_is_what_transformers_generates(model: Any, codec: ChatCodec) -> None:
    asked = requests(codec, 5, greedy=True)
    for request, sample in zip(asked, run_all(engine(model, codec), asked), strict=True):
        prompt = torch.tensor([request.prompt_ids])
        with torch.no_grad():
            whole = model.double().generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=request.max_tokens,
                do_sample=False,
                eos_token_id=sorted(codec.end_ids),
            )
        model.float()
        assert sample.ids == tuple(whole[0, len(request.prompt_ids) :].tolist())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_a_full_forward_pass(
    model: Any, codec: ChatCodec, temperature: float
) -> None:
    asked = requests(codec, 4)
    for request, sample in zip(
        asked, run_all(engine(model, codec, temperature=temperature), asked), strict=True
    ):
        ids = torch.tensor([[*request.prompt_ids, *sample.ids]])
        with torch.no_grad():
            logits = model.double()(ids).logits[0, len(request.prompt_ids) - 1 : -1] / temperature
        model.float()
        full = torch.log_softmax(logits, dim=-1)[torch.arange(len(sample.ids)), torch.tensor(sample.ids)]
        assert sample.logprobs is not None
        assert np.abs(np.array(sample.logprobs) - full.numpy()).max() < 1e-4


def test_sampling_follows_the_distribution(model: Any, codec: ChatCodec) -> None:
    (request,) = requests(codec, 1)
    one = Generate(request.prompt_ids, 1)
    sampling = engine(model, codec, slots=64)

    async def draw() -> list[Sample]:
        return list(await asyncio.gather(*(sampling.generate(one, ("draw", row)) for row in range(1500))))

    drawn = asyncio.run(draw())
    with torch.no_grad():
        logits = model(torch.tensor([request.prompt_ids])).logits[0, -1].double()
    expected = torch.softmax(logits, dim=-1)
    likeliest = int(expected.argmax())
    share = np.mean([sample.ids[0] == likeliest for sample in drawn])
    error = float(torch.sqrt(expected[likeliest] * (1 - expected[likeliest]) / 1500))
    assert abs(share - float(expected[likeliest])) < 4 * error


def test_a_sample_ends_with_its_budget_or_a_stop_text(speaking_policy: Path) -> None:
    codec = ChatCodec.load(speaking_policy)
    speaking = engine(load_model(speaking_policy), codec)
    prompt = codec.encode_prompt([Message("user", "Task: x")])
    stops = ("</search>", "</task>", "</answer>")
    samples = run_all(speaking, [Generate(prompt, 40, stops)] * 12)
    assert {each.finish for each in samples} == {Finish.STOP}
    assert all(codec.decode(each.ids).endswith(stops) for each in samples)
    # A stop text of several tokens is found in the text.
    (longer,) = run_all(speaking, [Generate(prompt, 40, ("k></th",))])
    assert codec.decode(longer.ids) == "<think></think>" and longer.finish is Finish.STOP
    (cut,) = run_all(speaking, [Generate(prompt, 3, stops)])
    assert (len(cut.ids), cut.finish) == (3, Finish.LENGTH)


def test_a_prompt_that_does_not_fit_fails_alone(model: Any, codec: ChatCodec) -> None:
    running = engine(model, codec)
    (good,) = requests(codec, 1)

    async def both() -> list[Sample | BaseException]:
        calls = [running.generate(Generate((5,) * 160, 4), ("a",)), running.generate(good, ("b",))]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    bad, fine = asyncio.run(both())
    assert isinstance(bad, InferenceError) and "does not fit a context of 160" in str(bad)
    assert isinstance(fine, Sample)


def test_a_model_that_fails_fails_everyone_once_and_works_again(
    model: Any, codec: ChatCodec, alone: list[Sample]
) -> None:
    running = engine(model, codec, slots=2)
    running.refresh("S_0")
    cache: Any = running.cache
    forward = cache.forward

    def broken(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    async def all_of_them() -> list[Sample | BaseException]:
        calls = [running.generate(each, ("key", row)) for row, each in enumerate(requests(codec, 8))]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    cache.forward = broken
    faults = asyncio.run(all_of_them())
    assert all(isinstance(fault, InferenceError) and "out of memory" in str(fault) for fault in faults)
    cache.forward = forward
    assert [each.ids for each in asyncio.run(all_of_them()) if isinstance(each, Sample)] == [
        each.ids for each in alone
    ]


def test_a_caller_that_goes_away_frees_its_slot(model: Any, codec: ChatCodec, alone: list[Sample]) -> None:
    running = engine(model, codec, slots=1)
    asked = requests(codec, 2)

    async def leave() -> Sample:
        gone = asyncio.ensure_future(running.generate(Generate(asked[0].prompt_ids, 120), ("x",)))
        while not running.running:
            await asyncio.sleep(0)
        gone.cancel()
        counts = count_tokens(running)
        sample = await running.generate(asked[1], ("key", 1))
        # The one that left takes no further steps; the other needs a prefill and a step a token.
        assert len(counts) <= len(sample.ids) + 2
        return sample

    assert asyncio.run(leave()).ids == alone[1].ids


def test_new_weights_are_taken_over_when_asked_for_and_only_then(model: Any, codec: ChatCodec) -> None:
    learner = copy.deepcopy(model)
    running = engine(learner, codec)
    (request,) = requests(codec, 1)
    before = asyncio.run(running.generate(request, ("k",)))
    with torch.no_grad():
        learner.lm_head.weight.normal_()
    assert asyncio.run(running.generate(request, ("k",))).ids == before.ids
    running.refresh("S_0@1")
    assert running.identity == "S_0@1"
    assert asyncio.run(running.generate(request, ("k",))).ids != before.ids


def test_slots_that_no_memory_holds_are_refused_before_anything_is_sampled(
    model: Any, codec: ChatCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "free_bytes", lambda device: 1 << 10)
    with pytest.raises(
        ConfigError, match=r"8 slots x 160 tokens .* 0\.0 GiB are free on cpu; lower slots to"
    ):
        engine(model, codec, frozen=True)


def test_new_weights_are_taken_over_when_the_old_copy_and_its_cache_are_gone(
    model: Any, codec: ChatCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = engine(model, codec)
    trained.refresh("S_0@0")
    old = weakref.ref(trained.model), weakref.ref(trained.cache)
    seen: list[list[object]] = []

    def taken(source: Any) -> Any:
        seen.append([each() for each in old])
        return frozen_copy(source)

    monkeypatch.setattr(slot_cache, "frozen_copy", taken)
    trained.refresh("S_0@1")
    assert seen == [[None, None]]


def test_a_frozen_policy_samples_the_same_without_a_copy_of_its_weights(model: Any, codec: ChatCodec) -> None:
    asked = requests(codec, 4)
    kept = copy.deepcopy(model)
    frozen = engine(kept, codec, frozen=True)
    assert frozen.model is kept
    assert [each.ids for each in run_all(frozen, asked)] == [
        each.ids for each in run_all(engine(model, codec), asked)
    ]


def test_a_gpu_that_is_not_there_is_refused_and_auto_does_without() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert sampling_device("auto") == sampling_device("cpu") == "cpu"
    with pytest.raises(ConfigError, match="found cuda, and torch sees no GPU here; use auto or cpu"):
        sampling_device("cuda")
