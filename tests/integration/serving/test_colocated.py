"""The seam of a colocated vLLM: real TRL with `use_vllm`, and an engine on the CPU in the place of vLLM's.

vLLM itself needs a GPU for this (its weight reload is wrong on a CPU); what it answers to the same calls is tested
in tests/vllm.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the train extra")

import torch

from scope_selfplay.config import ModelConfig
from scope_selfplay.inference import Generate, Sample
from scope_selfplay.inference.stepped_engine import SteppedEngine
from scope_selfplay.store.files import read_rows
from scope_selfplay.training import generation
from scope_selfplay.training.grpo import train_grpo
from scope_selfplay.training.job import StepResult
from scope_selfplay.training.rows import RewardedRollout, TrainingRow
from tests.integration.loop.seam import job_of, same, with_model

pytestmark = pytest.mark.integration


class PlainEngine:
    """As much of vLLM's LLMEngine as is called: one greedy token for every running request a step."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.running: dict[str, tuple[list[int], list[int], list[dict[int, Any]], Any]] = {}
        self.most_at_once = 0

    def add_request(self, request_id: str, prompt: Any, params: Any) -> None:
        self.running[request_id] = (list(prompt["prompt_token_ids"]), [], [], params)

    def abort_request(self, request_ids: list[str]) -> None:
        for each in request_ids:
            self.running.pop(each)

    @torch.inference_mode()
    def step(self) -> Sequence[Any]:
        self.most_at_once = max(self.most_at_once, len(self.running))
        finished = []
        for name, (prompt, ids, logprobs, params) in list(self.running.items()):
            logits = self.model(input_ids=torch.tensor([prompt + ids])).logits[0, -1]
            token = int(logits.argmax())
            ids.append(token)
            logprobs.append({token: SimpleNamespace(logprob=float(logits.log_softmax(-1)[token]))})
            if token in params.stops.ids or len(ids) == params.max_tokens:
                reason = "stop" if token in params.stops.ids else "length"
                completion = SimpleNamespace(token_ids=ids, logprobs=logprobs, finish_reason=reason)
                finished.append(SimpleNamespace(request_id=name, finished=True, outputs=[completion]))
                del self.running[name]
        return finished


class Brought:
    """TRL's VLLMGeneration, without vLLM: the weights are those of the model itself."""

    made: "list[Brought]"

    def __init__(self, model: Any, accelerator: Any, **options: Any) -> None:
        self.options = options
        self.syncs = 0
        self.llm = SimpleNamespace(llm_engine=PlainEngine(model))
        self.made.append(self)

    def sync_weights(self) -> None:
        self.syncs += 1


def test_trl_brings_the_weights_once_a_step_and_episodes_drive_the_engine(
    random_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Brought, "made", [], raising=False)
    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", Brought)
    monkeypatch.setattr(generation, "find_spec", lambda name: object())
    monkeypatch.setattr("scope_selfplay.inference.stepped_engine.vllm_params", lambda sampling: sampling)
    model = ModelConfig(engine="vllm_colocated", vllm_memory=0.25)
    job = with_model(job_of(random_policy, tmp_path / "stage", steps=2), model)
    seen: list[Sample] = []

    def make_sampler(source: Any) -> Any:
        assert isinstance(source, SteppedEngine)

        async def episode(row: int) -> RewardedRollout:
            prompt = (40, 41, 42 + row)
            first = await source.generate(Generate(prompt, 4), ("first", row))
            await asyncio.sleep(0.01)  # a search
            second = await source.generate(Generate((*prompt, *first.ids, 50), 3 + row), ("second", row))
            seen.extend((first, second))
            ids = [*first.ids, 50, *second.ids]
            mask = [1] * len(first.ids) + [0] + [1] * len(second.ids)
            return RewardedRollout([TrainingRow(list(prompt), ids, mask, [-1.0] * len(ids))], float(row % 2))

        async def sample_step(records: Sequence[str], step: int) -> StepResult:
            return StepResult(await asyncio.gather(*map(episode, range(len(records)))), {"rubric": 0.5})

        return sample_step

    train_grpo(job, make_sampler)
    (vllm,) = Brought.made
    assert vllm.syncs == 2
    assert vllm.llm.llm_engine.most_at_once == 4 and not vllm.llm.llm_engine.running
    assert (vllm.options["mode"], vllm.options["gpu_memory_utilization"]) == ("colocate", 0.25)
    assert vllm.options["max_model_length"] == job.max_length and vllm.options["tensor_parallel_size"] == 1
    assert len(seen) == 16 and all(each.logprobs and max(each.logprobs) <= 0 for each in seen)
    assert len(read_rows(job.folder.metrics)) == 2 and not same(job.folder.checkpoint, random_policy)
