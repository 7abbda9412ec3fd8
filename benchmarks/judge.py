"""What the judge's client costs and saves, as ratios within one run (make bench-judge).

    engine used      share of a 256-slot engine's capacity that a wave of grades keeps busy       >= 0.95
    prefill          prompt tokens to compute for K=4 criteria, prefix shared over unshared       <= 0.40

The engine is the shipped fake's wire, with log-normal service times; lengths of answers are assumptions. The share is
taken on a clock of this process's CPU time and what it would have waited (`skipping_loop`), whatever else the machine
does; what the engine computes keeps slots empty, too.
"""

import asyncio
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from benchmarks.busy_slots import BusySlots, Load
from benchmarks.options import read_options
from benchmarks.skipping_loop import CpuTimeLoop
from scope_selfplay.base.values import Criterion, Task
from scope_selfplay.config.judge import EndpointConfig, JudgeConfig
from scope_selfplay.judge.fences import fence_key
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.judge.protocol import GradeQuestion
from scope_selfplay.judge.questions import JudgePrompts
from scope_selfplay.net.serve import ServedReply, ServedRequest, chat_app, serving
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.prompts.pack import Pack

MODEL = "bench"
SLOTS = 256
BLOCK = 16
"""Tokens of a prefix-cache block (vLLM's default)."""
CRITERIA = 4
REPLY = f"<think>{'so ' * 400}</think><score>1</score>"
TASK = Task(
    id="bench", text="Explain why the dam was built and what came of it.", type="long_form_qa", document_id=""
)


def engine(slots: BusySlots) -> Starlette:
    rng = random.Random(0)

    async def reply(served: ServedRequest) -> ServedReply:
        await slots.serve(rng)
        return ServedReply(REPLY)

    return chat_app(reply, model=MODEL)


def engine_used(load: Load, calls: int) -> dict[str, float]:
    """Share of slot-seconds that were busy, from when all slots first were until the last call began."""

    async def grade_all() -> BusySlots:
        slots = BusySlots(load)
        async with serving(engine(slots)) as url:
            await _grade_many(url, calls)
        return slots

    with asyncio.Runner(loop_factory=CpuTimeLoop) as runner:
        slots = runner.run(grade_all())
    return {"used": slots.used(), "seconds": slots.seconds, "calls": slots.begun}


async def _grade_many(url: str, calls: int) -> None:
    endpoint = EndpointConfig(base_url=url, model=MODEL)
    config = JudgeConfig(kind="model", endpoint=endpoint, verdict="written")
    judge = ModelJudge(config, _pack(), seed=0)
    questions = [
        GradeQuestion(TASK, criterion, answer)
        for answer in _answers(calls // CRITERIA)
        for criterion in _criteria()
    ]
    verdicts = await asyncio.gather(*map(judge.ask, questions))
    assert all(each.value is True for each in verdicts)
    await judge.close()


def prefill(answers: int) -> dict[str, float]:
    """Prompt tokens that an engine computes with a prefix cache of whole blocks, over all prompt tokens."""
    encode = _encoder()
    shared = total = lengths = 0
    prompts = [encode(prompt) for prompt in _prompts(answers)]
    for start in range(0, len(prompts), CRITERIA):
        group = sorted(prompts[start : start + CRITERIA])
        total += sum(map(len, group))
        shared += len(group[0])
        lengths += len(group[0])
        for before, ids in pairwise(group):
            common = next((n for n, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), len(ids))
            shared += len(ids) - common // BLOCK * BLOCK
    return {"ratio": shared / total, "prompt_tokens": lengths / answers, "criteria": CRITERIA}


def _pack() -> Pack:
    return load_pack(pack_path("wikipedia"))


def _answers(count: int) -> list[str]:
    """About 700 tokens each, all different."""
    words = Path(pack_path("wikipedia") / "gate_source.md").read_text(encoding="utf-8").split()
    rng = random.Random(1)
    return [" ".join(rng.choices(words, k=500)) for _ in range(count)]


def _criteria() -> list[Criterion]:
    reasons = (
        "the floods of 1927",
        "the need for cheap power",
        "the works programme",
        "the loss of 112 lives",
    )
    return [
        Criterion(text=f"Identifies {reason} as one of the reasons, with its source.") for reason in reasons
    ]


def _prompts(answers: int) -> list[str]:
    prompts = JudgePrompts(_pack(), JudgeConfig(), key=fence_key(0))
    return [
        prompts.render(GradeQuestion(TASK, criterion, answer)).prompt
        for answer in _answers(answers)
        for criterion in _criteria()
    ]


def _encoder() -> Any:
    """A byte-level BPE trained on the prompts; no tokenizer of a real model can be had offline."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [path.read_text(encoding="utf-8") for path in sorted(pack_path("wikipedia").glob("*.md"))]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=4096, show_progress=False))
    return lambda text: tokenizer.encode(text).ids


def main() -> None:
    options = read_options(__doc__, calls=4096, mean=1.5)
    load = Load(options.mean, 0.5, SLOTS)
    found = {"prefill": prefill(25), "engine used": engine_used(load, options.calls)}
    print(json.dumps({"assumed": load._asdict(), **found}, indent=1))


if __name__ == "__main__":
    main()
