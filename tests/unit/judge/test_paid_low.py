"""What a policy can write makes a low reward and not a missing one, through client, readers and rewards."""

import random
import unicodedata
from collections.abc import Mapping
from typing import Any

import pytest

from scope_selfplay.config.training import SolverConfig
from scope_selfplay.judge.fences import read_fences
from scope_selfplay.net.serve import ServedReply, ServedRequest, chat_app, serving
from scope_selfplay.testing.attacks import hostile_answers
from scope_selfplay.testing.chat_server import FAKE_MODEL, FakeServer
from tests.judges import JudgeOver
from tests.unit.reward_designs.scripted import RUBRIC, TASK, finished_group, rewards_of_step, rollout

CONTEXT = 24_000
HONEST = "It was built against the floods of {}, says the county's report."

# Every design that judges a rollout by itself, with the lowest verdict in the form that its prompt asks for.
DESIGNS: Mapping[str, tuple[object, str]] = {
    "rubric": ("rubric", "<score>0</score>"),
    "explicit": ({"design": "explicit", "rubrics": "task"}, '{"score": 0}'),
    "implicit": ({"design": "implicit", "rubrics": "task"}, '{"score": 0}'),
    "answer": ({"design": "pointwise", "prompt": "answer"}, '{"score": 0}'),
    "correctness": ({"design": "pointwise", "prompt": "correctness"}, r"\boxed{0}"),
    "proof": ({"design": "pointwise", "prompt": "proof"}, r"\boxed{0}"),
}


class Engine(FakeServer):
    """A judge with a context that quotes what it is shown and finds that it is not so.

    It counts a token per byte of the plain form, as a byte-level tokenizer with NFKC does.
    """

    def __init__(self, verdict: str, context: int = CONTEXT) -> None:
        super().__init__(self._reply)
        self.prompts: list[str] = []
        self._verdict, self._context = verdict, context

    def serving(self, *_: Any) -> Any:
        """Refuses, as an engine does, with status 400."""
        return serving(chat_app(self._reply, model=FAKE_MODEL))

    def _reply(self, request: ServedRequest) -> ServedReply:
        self.prompts.append(request.prompt)
        if len(unicodedata.normalize("NFKC", request.prompt).encode()) > self._context:
            raise ValueError(f"This model's maximum context length is {self._context} tokens")
        shown = " ".join(fence.text for fence in read_fences(request.prompt))
        return ServedReply(f"<think>It says: {shown} That is not so.</think>{self._verdict}")


@pytest.mark.parametrize("name", DESIGNS)
async def test_a_hostile_answer_is_paid_low_and_never_masked(judge_over: JudgeOver, name: str) -> None:
    design, verdict = DESIGNS[name]
    hostile = list(hostile_answers(random.Random(0), 120))
    groups = [
        [HONEST.format(row) for row in range(1927, 1935)],
        *(hostile[row : row + 8] for row in range(0, 120, 8)),
    ]
    async with judge_over(Engine(verdict), patience=100.0) as judge:
        opened = [
            finished_group(
                TASK, RUBRIC, [rollout(row, text) for row, text in enumerate(texts)], ("g", number)
            )
            for number, texts in enumerate(groups)
        ]
        found = await rewards_of_step(SolverConfig.model_validate({"reward": design}), judge, opened)
    honest, *attacks = found.rewards
    least = honest[0]
    assert least is not None and honest == [least] * 8
    paid = [each for group in attacks for each in group]
    assert len(paid) == 120 and [each for each in paid if each is None or each > least] == []
