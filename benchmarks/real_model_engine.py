"""Decoding of a real model on a CPU: the in-process engine, vLLM and transformers' `generate`, side by side.

    python -m benchmarks.real_model_engine [--model smollm2] [--sequences 1 16 64] [--context 400] [--rounds 3]

Every engine has a process of its own and one thread; rounds go through all of them in turn, so that what else the
machine does falls on all. A rate is tokens per second of CPU time after a context of so many tokens. Contexts are
random states, so nothing is prefilled and no token means anything; only vLLM reads random tokens first, which do not
count. It runs in the environment of its tests (tests/vllm/setup.sh).
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.options import read_options

ENGINES = ("in process, float32", "in process, bfloat16", "vLLM, bfloat16", "generate, bfloat16")
_VLLM = "vLLM, bfloat16"
_STEPS = 6
_ROOM = 128
"""Tokens that vLLM may give to each sequence: the first of them are sampled while the last contexts are read."""


def main() -> None:
    asked = read_options(__doc__, model="smollm2", sequences=[1, 16, 64], context=400, rounds=3, engine="")
    if asked.engine:
        _measure(asked)
        return
    print(
        f"{asked.model} after {asked.context} tokens, one thread: tokens per second of CPU time (of generate's)"
    )
    print(f"{'sequences':>9}" + "".join(f"{engine:>24}" for engine in ENGINES))
    found: dict[str, dict[str, Any]] = {engine: {} for engine in ENGINES}
    for _ in range(asked.rounds):
        for engine in ENGINES:
            for key, value in _measured(engine).items():
                found[engine].setdefault(key, []).append(value)
    for count in map(str, asked.sequences):
        rates = [statistics.median(found[engine][count]) for engine in ENGINES]
        cells = "".join(f"{f'{rate:,.0f} ({rate / rates[-1]:.2f})':>24}" for rate in rates)
        print(f"{count:>9}{cells}")
    memory = "".join(f"{max(found[engine]['GiB']):>20.1f} GiB" for engine in ENGINES)
    print(f"{'peak':>9}{memory}")


def _measured(engine: str) -> dict[str, float]:
    """What `_measure` found in a process of its own."""
    command = ["-m", "benchmarks.real_model_engine", *sys.argv[1:], "--engine", engine]
    python, environment = sys.executable, dict(os.environ)
    if engine == _VLLM:
        root = Path(__file__).resolve().parents[1]
        python = str(Path(os.environ.get("SCOPE_VLLM_VENV", root / ".venv-vllm")) / "bin" / "python")
        environment |= {
            "PYTHONPATH": str(root),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
    done = subprocess.run([python, *command], stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measure(asked: argparse.Namespace) -> None:
    """Prints one object: sequences -> tokens per second of CPU time, and the peak of memory."""
    import torch

    from scope_selfplay.inference.checkpoints import load_model, policy_path

    torch.set_num_threads(1)
    model: Any
    if asked.engine == _VLLM:
        model, begin = _vllm_engine(policy_path(asked.model), asked), _in_vllm
    else:
        precision = "bfloat16" if asked.engine.startswith("generate") else "float32"
        model = load_model(policy_path(asked.model), precision=precision).eval().requires_grad_(False)
        begin = _generating if asked.engine.startswith("generate") else _in_process
    found: dict[str, float] = {}
    for count in asked.sequences:
        step = begin(model, count, asked.context, packed="bfloat16" in asked.engine)
        step(1)
        began = time.process_time()
        step(_STEPS)
        found[str(count)] = count * _STEPS / (time.process_time() - began)
    found["GiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(found))


def _in_process(model: Any, count: int, context: int, *, packed: bool) -> Callable[[int], None]:
    from scope_selfplay.inference.draws import Draw, draw_tokens
    from scope_selfplay.inference.slots import SlotCache, packed_copy

    sampled = packed_copy(model) if packed else model
    cache = SlotCache(sampled, slots=count, max_length=context + 2 * _STEPS)

    def step(steps: int) -> None:
        tokens = [[1]] * count
        for number in range(steps):
            logits = cache.forward(tokens, list(range(count)), [context + number] * count)
            drawn = draw_tokens(logits, [Draw(0.5, row, number) for row in range(count)])
            tokens = [[int(token)] for token in drawn.tokens]

    return step


def _vllm_engine(folder: Path, asked: argparse.Namespace) -> Any:
    from vllm import LLM

    return LLM(
        model=str(folder),
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=asked.context + _ROOM,
        max_num_seqs=max(asked.sequences),
    ).llm_engine


def _in_vllm(engine: Any, count: int, context: int, *, packed: bool) -> Callable[[int], None]:
    from vllm import SamplingParams

    draw = random.Random(count)
    sampling = SamplingParams(temperature=1.0, max_tokens=_ROOM, ignore_eos=True, detokenize=False)
    for number in range(count):
        prompt = {"prompt_token_ids": [draw.randrange(1000, 40_000) for _ in range(context)]}
        engine.add_request(f"{count}-{number}", prompt, sampling)
    begun: set[str] = set()
    while len(begun) < count:
        begun.update(output.request_id for output in engine.step() if output.outputs[0].token_ids)

    def step(steps: int) -> None:
        for _ in range(steps):
            assert len(engine.step()) == count, "every sequence is given a token"
        if steps == _STEPS:
            engine.abort_request(list(begun))
            assert not engine.has_unfinished_requests()

    return step


def _generating(model: Any, count: int, context: int, *, packed: bool) -> Callable[[int], None]:
    import torch
    from transformers import DynamicCache

    config = model.config
    shape = (count, config.num_key_value_heads, context, config.head_dim)

    def held() -> Any:
        cache = DynamicCache(config=config)
        for layer in range(config.num_hidden_layers):
            cache.update(torch.ones(shape, dtype=model.dtype), torch.ones(shape, dtype=model.dtype), layer)
        return cache

    caches = [held(), held()]
    ids = torch.ones((count, context + 1), dtype=torch.int64)

    def step(steps: int) -> None:
        cache = caches.pop()
        length = {"max_new_tokens": steps, "min_new_tokens": steps, "pad_token_id": 0}
        with torch.inference_mode():
            model.generate(ids, past_key_values=cache, do_sample=True, top_k=0, **length)

    return step


if __name__ == "__main__":
    main()
