"""A colocated vLLM: the loop around an engine on the CPU in the place of vLLM's.

vLLM itself needs a GPU for this (its weight reload is wrong on a CPU); what it answers to the same calls is tested
in tests/vllm.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from scope_selfplay.base.sampling import Generate, Sample
from scope_selfplay.config.run import ModelConfig
from scope_selfplay.inference.checkpoints import load_model
from scope_selfplay.inference.stepped import SteppedEngine
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.engines import Colocated, Rows, StepResult, in_groups
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.loop import TrainingLoop, load
from scope_selfplay.training.model import TrainedModel
from scope_selfplay.training.passes import RewardedRollout, TrainingRow
from tests.integration.loop.seam import GROUP, job_of, row, same


class SleepingLLM:
    """As much of vLLM's LLM as is called, on the CPU: one greedy token for every running request a step.

    What sleeps is gone, and to use it is an error.
    """

    made: "list[SleepingLLM]"

    def __init__(self, model: str, **options: Any) -> None:
        self.options, self.calls = options, list[str]()
        self.model = load_model(Path(model))
        self.asleep = set[str]()
        self.running: dict[str, tuple[list[int], list[int], list[dict[int, Any]], Any]] = {}
        self.most_at_once = 0
        runner = SimpleNamespace(model=SimpleNamespace(load_weights=self._load))
        self.llm_engine = SimpleNamespace(
            add_request=self._add,
            abort_request=lambda ids: [self.running.pop(each) for each in ids],
            step=self._step,
            model_executor=SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner)),
        )
        self.made.append(self)

    def sleep(self, level: int) -> None:
        assert not self.running
        self._called(f"sleep {level}")
        self.asleep = {"weights", "kv_cache"}
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.fill_(float("nan"))

    def wake_up(self, tags: list[str]) -> None:
        self._called("wake " + " ".join(tags))
        assert set(tags) <= self.asleep
        self.asleep -= set(tags)

    def reset_prefix_cache(self) -> None:
        self._called("reset")

    def _add(self, request_id: str, prompt: Any, params: Any) -> None:
        self.running[request_id] = (list(prompt["prompt_token_ids"]), [], [], params)

    def _load(self, weights: Iterable[tuple[str, Any]]) -> None:
        self._called("load")
        assert "weights" not in self.asleep
        with torch.no_grad():
            for name, weight in weights:
                self.model.get_parameter(name).copy_(weight)

    @torch.inference_mode()
    def _step(self) -> Sequence[Any]:
        self._called("step")
        assert not self.asleep
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

    def _called(self, call: str) -> None:
        if self.calls[-1:] != [call]:
            self.calls.append(call)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[SleepingLLM]:
    """The engines that are made, as those of a vLLM that is installed."""
    vllm = ModuleType("vllm")
    vllm.__spec__ = ModuleSpec("vllm", None)
    vllm.LLM = SleepingLLM  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setattr(SleepingLLM, "made", [], raising=False)
    monkeypatch.setattr("scope_selfplay.inference.stepped.vllm_params", lambda sampling: sampling)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        # They are set for vLLM.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return SleepingLLM.made


MODEL = ModelConfig(engine="vllm_colocated", vllm_memory=0.25)


Sampler = Callable[
    [SteppedEngine, TrainedModel, int, Callable[[Rows], None]], Awaitable[list[RewardedRollout]]
]


def train_colocated(job: GrpoJob, rollouts: Sampler) -> list[dict[str, Any]]:
    """The metrics of its steps."""
    with job.ranks:
        model = load(job)
        source = SteppedEngine(job.codec, identity="", max_length=job.max_length, temperature=1.0)
        engine = Colocated(source, job.start.weights, job.model, job.max_length, 0)

        async def sample(records: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
            return StepResult(in_groups(await rollouts(source, model, step, sampled), GROUP), {})

        TrainingLoop(job, model, engine, sample).run()
    return read_rows(job.folder.metrics)


def test_a_vllm_is_awake_with_the_weights_of_now_for_the_rollouts_of_a_step_and_sleeps_in_its_update(
    random_policy: Path, tmp_path: Path, made: list[SleepingLLM]
) -> None:
    job = job_of(random_policy, tmp_path / "stage", steps=2, model=MODEL)
    seen: list[Sample] = []

    async def episode(source: SteppedEngine, row: int) -> RewardedRollout:
        prompt = (40, 41, 42 + row)
        first = await source.generate(Generate(prompt, 4), ("first", row))
        await asyncio.sleep(0.01)  # a search
        second = await source.generate(Generate((*prompt, *first.ids, 50), 3 + row), ("second", row))
        seen.extend((first, second))
        ids = [*first.ids, 50, *second.ids]
        mask = [1] * len(first.ids) + [0] + [1] * len(second.ids)
        return RewardedRollout([TrainingRow(list(prompt), ids, mask, [-1.0] * len(ids))], float(row % 2))

    async def rollouts(source: SteppedEngine, *_: Any) -> list[RewardedRollout]:
        return await asyncio.gather(*(episode(source, row) for row in range(4)))

    assert len(train_colocated(job, rollouts)) == 2 and not same(job.folder.checkpoint, random_policy)
    (vllm,) = made
    step = ["wake weights", "load", "reset", "wake kv_cache", "step", "sleep 2"]
    assert vllm.calls == ["sleep 2", *step, *step]
    assert vllm.most_at_once == 4 and not vllm.running
    options = vllm.options
    assert options["gpu_memory_utilization"] == 0.25 and options["enable_sleep_mode"] is True
    assert options["max_model_len"] == job.max_length and options["tensor_parallel_size"] == 1
    assert len(seen) == 16 and all(each.logprobs and max(each.logprobs) <= 0 for each in seen)


def test_an_adapter_reaches_the_engine_added_to_weights_that_stay_as_they_are(
    random_policy: Path, tmp_path: Path, made: list[SleepingLLM]
) -> None:
    model = MODEL.model_copy(update={"lora_rank": 4})
    job = job_of(random_policy, tmp_path / "stage", steps=3, model=model, kl_beta=0.0, learning_rate=1e-2)
    apart: list[float] = []
    before: list[Any] = []

    async def rollouts(
        source: SteppedEngine, model: TrainedModel, step: int, _: Any
    ) -> list[RewardedRollout]:
        samples = [await source.generate(Generate((40, 41, 42 + n), 4), (n,)) for n in range(4)]
        frozen = [each for each in model.network.parameters() if not each.requires_grad]
        before.extend(each.clone() for each in frozen if step == 0)
        assert all(map(torch.equal, frozen, before))
        ids = torch.tensor([[40, 41, 42]])
        with torch.no_grad():
            wanted = model.network(input_ids=ids).logits
            apart.append(float((made[0].model(input_ids=ids).logits - wanted).abs().max()))
            with model.model.disable_adapter():
                moved = float((model.network(input_ids=ids).logits - wanted).abs().max())
        assert bool(step) is (moved > 1e-3)
        return [RewardedRollout([row(sampled=each.ids)], float(n % 2)) for n, each in enumerate(samples)]

    train_colocated(job, rollouts)
    assert len(apart) == 3 and max(apart) < 1e-4


def trained_in_three_steps(
    policy: Path, folder: Path, reads: list[bool], *, judged_late: bool
) -> list[dict[str, Any]]:
    """`judged_late`: the engine may sleep, and rewards come when the reference has read the step."""
    job = job_of(policy, folder, steps=3, model=MODEL, kl_beta=0.1, learning_rate=1e-2)

    async def rollouts(
        source: SteppedEngine, _: Any, step: int, sampled: Callable[[Rows], None]
    ) -> list[RewardedRollout]:
        samples = [await source.generate(Generate((40, 41, 42 + n), 4 + n), (n,)) for n in range(4)]
        rows = [[row(sampled=each.ids), row(7, 8, sampled=each.ids)] for each in samples]
        if judged_late:
            sampled(rows)
            async with asyncio.timeout(60):
                while len(reads) <= step:
                    await asyncio.sleep(0.01)
        # What is masked and counts for nothing is known with the rewards alone.
        rewards = [None if n == step else float(n % 2) for n in range(4)]
        return [RewardedRollout(each, reward) for each, reward in zip(rows, rewards, strict=True)]

    return train_colocated(job, rollouts)


def test_the_reference_reads_a_step_while_it_is_judged_and_says_the_same(
    random_policy: Path, tmp_path: Path, made: list[SleepingLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, refer = list[bool](), TrainedModel.refer

    def watched(model: TrainedModel, batch: Any) -> Any:
        reads.append(bool(made[-1].asleep))
        return refer(model, batch)

    monkeypatch.setattr(TrainedModel, "refer", watched)
    late = trained_in_three_steps(random_policy, tmp_path / "late", reads, judged_late=True)
    assert reads == [True] * 3
    after = trained_in_three_steps(random_policy, tmp_path / "after", reads, judged_late=False)
    assert reads == [True] * 6
    for one, two in zip(late, after, strict=True):
        for name in ("kl", "loss", "grad_norm"):
            assert one[name] == pytest.approx(two[name], rel=1e-4, abs=1e-7), name
    assert late[0]["kl"] == pytest.approx(0.0, abs=1e-6) and late[2]["kl"] > 1e-4
    assert made[0].calls.count("sleep 2") == made[1].calls.count("sleep 2") == 4
