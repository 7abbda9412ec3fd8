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
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.markdown import markdown
from benchmarks.options import read_options
from benchmarks.scope_command import ROOT

VLLM = "vLLM, bfloat16"
ENGINES = ("in process, float32", "in process, bfloat16", VLLM, "generate, bfloat16")
STEPS = 6
ROOM = 128
"""Tokens that vLLM may give to each sequence: the first of them are sampled while the last contexts are read."""


def main() -> None:
    asked = read_options(__doc__, model="smollm2", sequences=[1, 16, 64], context=400, rounds=3, engine="")
    if asked.engine:
        print(json.dumps(_measured(asked)))
        return
    print(
        f"{asked.model} after {asked.context} tokens, one thread: tokens per second of CPU time (of generate's)\n"
    )
    found: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
    for _ in range(asked.rounds):
        for engine, results in found.items():
            results.append(_in_a_process(engine))
    rows = [["sequences", *ENGINES]]
    for count in map(str, asked.sequences):
        rates = [statistics.median(result[count] for result in results) for results in found.values()]
        rows.append([count, *(f"{rate:,.0f} ({rate / rates[-1]:.2f})" for rate in rates)])
    peaks = [max(result["GiB"] for result in results) for results in found.values()]
    print(markdown([*rows, ["peak memory, GiB", *(f"{peak:.1f}" for peak in peaks)]]))


def _in_a_process(engine: str) -> dict[str, float]:
    command = ["-m", "benchmarks.real_model_engine", *sys.argv[1:], "--engine", engine]
    python, environment = sys.executable, dict(os.environ)
    if engine == VLLM:
        python = str(Path(os.environ.get("SCOPE_VLLM_VENV", ROOT / ".venv-vllm")) / "bin" / "python")
        environment |= {"PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
        environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run([python, *command], stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measured(asked: argparse.Namespace) -> dict[str, float]:
    """By sequences, tokens per second of CPU time, and the peak of memory."""
    import torch

    from scope_selfplay.inference.checkpoints import load_model, policy_path

    torch.set_num_threads(1)
    model: Any
    if asked.engine == VLLM:
        model, begin = _vllm_engine(policy_path(asked.model), asked), _in_vllm
    else:
        generates = asked.engine.startswith("generate")
        precision, begin = ("bfloat16", _generating) if generates else ("float32", _in_process)
        model = load_model(policy_path(asked.model), precision=precision).eval().requires_grad_(False)
    found: dict[str, float] = {}
    for count in asked.sequences:
        step = begin(model, count, asked.context, packed="bfloat16" in asked.engine)
        step(1)
        began = time.process_time()
        step(STEPS)
        found[str(count)] = count * STEPS / (time.process_time() - began)
    return found | {"GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def _in_process(model: Any, count: int, context: int, *, packed: bool) -> Callable[[int], None]:
    from scope_selfplay.inference.draws import Draw, draw_tokens
    from scope_selfplay.inference.slots import SlotCache, packed_copy

    sampled = packed_copy(model) if packed else model
    cache = SlotCache(sampled, slots=count, max_length=context + 2 * STEPS)

    def step(steps: int) -> None:
        tokens = [[1]] * count
        for number in range(steps):
            logits = cache.forward(tokens, list(range(count)), [context + number] * count)
            drawn = draw_tokens(logits, [Draw(0.5, row, number) for row in range(count)])
            tokens = [[int(token)] for token in drawn.tokens]

    return step


def _vllm_engine(folder: Path, asked: argparse.Namespace) -> Any:
    from vllm import LLM

    sizes = {"max_model_len": asked.context + ROOM, "max_num_seqs": max(asked.sequences)}
    return LLM(model=str(folder), dtype="bfloat16", enforce_eager=True, **sizes).llm_engine


def _in_vllm(engine: Any, count: int, context: int, *, packed: bool) -> Callable[[int], None]:
    from vllm import SamplingParams

    draw = random.Random(count)
    sampling = SamplingParams(temperature=1.0, max_tokens=ROOM, ignore_eos=True, detokenize=False)
    for number in range(count):
        prompt = {"prompt_token_ids": [draw.randrange(1000, 40_000) for _ in range(context)]}
        engine.add_request(f"{count}-{number}", prompt, sampling)
    begun: set[str] = set()
    while len(begun) < count:
        begun.update(output.request_id for output in engine.step() if output.outputs[0].token_ids)

    def step(steps: int) -> None:
        for _ in range(steps):
            assert len(engine.step()) == count, "every sequence is given a token"
        if steps == STEPS:
            engine.abort_request(list(begun))
            assert not engine.has_unfinished_requests()

    return step


def _generating(model: Any, count: int, context: int, *, packed: bool) -> Callable[[int], None]:
    import torch
    from transformers import DynamicCache

    config, ids = model.config, torch.ones((count, context + 1), dtype=torch.int64)
    state = torch.ones((count, config.num_key_value_heads, context, config.head_dim), dtype=model.dtype)

    # One for each call, and none is made within the time.
    caches = [DynamicCache(config=config) for _ in range(2)]
    for layer, cache in product(range(config.num_hidden_layers), caches):
        cache.update(state, state, layer)

    def step(steps: int) -> None:
        length = {"max_new_tokens": steps, "min_new_tokens": steps, "pad_token_id": 0}
        with torch.inference_mode():
            model.generate(ids, past_key_values=caches.pop(), do_sample=True, top_k=0, **length)

    return step


if __name__ == "__main__":
    main()
