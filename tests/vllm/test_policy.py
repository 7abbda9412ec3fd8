"""The shipped policy under a real vLLM: the same episodes as under the in-process engine, searches in between."""

import asyncio
import json
import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the train extra")

from scope_selfplay.base.errors import InferenceError
from scope_selfplay.base.sampling import Generate, Message
from scope_selfplay.dialects.families import dialect
from scope_selfplay.inference.checkpoints import load_model, policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.inference.served import ServedModel, ask_what_is_served
from scope_selfplay.net.client import Client, RetryPolicy
from scope_selfplay.run.run import check_served
from scope_selfplay.store.folder import Policy
from tests.commands import ran
from tests.vllm.conftest import REPOSITORY, engine_environment, engine_python, serving
from tests.vllm.episodes import MAX_LENGTH, Turns, roll_all

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]

POLICY = policy_path("embedded")
RETRY_POLICY = RetryPolicy(deadline=60.0, attempt=300.0, attempts=None)


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return ChatCodec.load(POLICY)


@pytest.fixture(scope="module")
def policy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(POLICY, tmp_path_factory.mktemp("policy"), max_length=1024) as url:
        yield url


async def _here(codec: ChatCodec) -> Turns:
    model = InProcessModel(load_model(POLICY), codec, identity="S_0", slots=4, max_length=MAX_LENGTH)
    return await roll_all(model, codec, greedy=True)


def _check_equal(found: Turns, expected: Turns) -> None:
    assert [[list(turn["ids"]) for turn in each] for each in found] == [
        [list(turn["ids"]) for turn in each] for each in expected
    ]
    pairs = [
        (ours, theirs)
        for mine, other in zip(found, expected, strict=True)
        for turn, there in zip(mine, other, strict=True)
        for ours, theirs in zip(turn["logprobs"], there["logprobs"], strict=True)
    ]
    assert len(pairs) > 100
    assert max(abs(ours - theirs) for ours, theirs in pairs) < 1e-3


async def test_a_served_vllm_speaks_like_the_in_process_engine(policy_server: str, codec: ChatCodec) -> None:
    async with Client(policy_server) as client:
        served = await ask_what_is_served(client, None)
    assert served.weights is None and served.root == str(POLICY) and served.max_length == 1024
    remark = check_served(served, Policy("S_0", POLICY), policy_server)
    assert "trusted by its model's folder" in (remark or "")

    model = ServedModel(
        lambda: Client(policy_server, retry_policy=RETRY_POLICY),
        served,
        codec,
        identity="S_0",
        max_length=MAX_LENGTH,
        temperature=1.0,
    )
    found, expected = await roll_all(model, codec, greedy=True), await _here(codec)
    assert sum(len(each) > 1 for each in expected) > 3, "episodes must search between their turns"
    _check_equal(found, expected)

    # A stop string of several tokens ends a turn and stays in it.
    prompt = tuple(expected[0][0]["prompt_ids"])
    stop = codec.decode(expected[0][0]["ids"][2:5])
    sample = await model.generate(Generate(prompt, 40, (stop,), greedy=True), ())
    assert stop in codec.decode(sample.ids) and len(sample.ids) <= 5
    with pytest.raises(InferenceError, match="does not fit"):
        await model.generate(Generate(tuple([3] * MAX_LENGTH), 5), ())


@pytest.mark.parametrize(
    ("language", "wanted"),
    [
        ("en", ("search",)),
        ("en", ("task",)),
        ("zh", ("task",)),
        ("tr", ("task",)),
        ("en", ("answer", "search")),
    ],
    ids=str,
)
async def test_a_model_that_knows_no_word_keeps_its_turns_in_form(
    engine: str, language: str, wanted: tuple[str, ...]
) -> None:
    async with Client(engine) as client:
        served = await ask_what_is_served(client, None)
    family, own = dialect("qwen2.5"), ChatCodec.load(Path(served.root or ""))
    connect = partial(Client, engine, retry_policy=RETRY_POLICY)
    model = ServedModel(connect, served, own, identity="S_0", max_length=4096, temperature=1.0)
    pattern = family.turn_pattern(*wanted, is_thinking=False, language=language)
    prompt = own.encode_prompt([Message("user", "Say something.")])
    for row in range(3):
        sample = await model.generate(Generate(prompt, 3000, family.stop, pattern=pattern), (row,))
        said = family.parse(own.decode(sample.ids))
        assert re.fullmatch(pattern, own.decode(sample.ids))
        assert sum(part is not None for part in (said.query, said.task, said.answer)) == 1, own.decode(
            sample.ids
        )


def test_an_engine_in_this_process_is_driven_request_by_request(codec: ChatCodec, tmp_path: Path) -> None:
    python = engine_python()
    if not python.exists():
        pytest.skip(f"{python} is absent: tests/vllm/setup.sh makes it")
    environment = {**engine_environment(), "PYTHONPATH": str(REPOSITORY)}
    done = ran(
        [str(python), "-m", "tests.vllm.episodes", POLICY], cwd=tmp_path, env=environment, timeout=3000
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ROLLOUTS ")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(lines[0].removeprefix("ROLLOUTS "))
    _check_equal(found["greedy"], asyncio.run(_here(codec)))

    drawn = [turn for each in found["free"] for turn in each]
    assert all(math.isfinite(value) and value <= 0 for turn in drawn for value in turn["logprobs"])
    assert [turn["ids"] for turn in drawn] != [turn["ids"] for each in found["greedy"] for turn in each]
