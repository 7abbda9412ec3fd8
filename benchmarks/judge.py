"""What the judge's client costs and saves, as ratios within one run (make bench-judge).

    python -m benchmarks.judge --openai-python PYTHON     a Python that has the openai package

    engine used      share of a 256-slot engine's capacity that a wave of grades keeps busy       >= 0.95
                     (means something only where the client's longest pause is far below a second)
    client CPU       CPU seconds per call, ours over the openai client's                          <= 0.33
    prefill          prompt tokens to compute for K=4 criteria, prefix shared over unshared       <= 0.40
    verdict tokens   completion tokens per verdict, one token over written reasoning              (reported)

The engine is the shipped fake's wire in a process of its own, with log-normal service times. Lengths of
answers and of written reasoning are assumptions, printed with the result.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scope_selfplay.config import EndpointConfig, JudgeConfig
from scope_selfplay.inference.chat_server import (
    ServedReply,
    ServedRequest,
    json_response,
    reply_app,
)
from scope_selfplay.judge.cache import JudgementCache
from scope_selfplay.judge.chat_client import ChatClient, ChatRequest
from scope_selfplay.judge.fences import fence_key
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.judge.prompts import JudgePrompts
from scope_selfplay.prompts import Pack, load_pack
from scope_selfplay.prompts.folder import pack_path
from scope_selfplay.schemas import Criterion, Task
from scope_selfplay.wire.serving import serving

MODEL = "bench"
SLOTS = 256
BLOCK = 16
"""Tokens of a prefix-cache block (vLLM's default)."""
CRITERIA = 4
TASK = Task(
    id="bench", text="Explain why the dam was built and what came of it.", type="long_form_qa", document_id=""
)


class Load(NamedTuple):
    """`mean` and `spread` of the service time in seconds; `reasoning` in tokens per written verdict."""

    mean: float
    spread: float
    reasoning: int


class Engine:
    """Serves at most SLOTS requests at once and keeps account of how many slots were busy, and when."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._rng = random.Random(0)
        self._slots = asyncio.Semaphore(SLOTS)
        self._busy = 0
        self._changes: list[tuple[float, int]] = []

    def app(self) -> Starlette:
        app = reply_app(self._reply_when_free, model=MODEL)
        return Starlette(routes=[*app.routes, Route("/v1/busy", self._report)])

    async def _reply_when_free(self, served: ServedRequest) -> ServedReply:
        async with self._slots:
            self._change(1)
            if self._load.mean:
                # A log-normal with the given mean: most verdicts are quick, a few think for long.
                mu = -(self._load.spread**2) / 2
                await asyncio.sleep(self._load.mean * self._rng.lognormvariate(mu, self._load.spread))
            self._change(-1)
        return self._reply(served)

    def _reply(self, served: ServedRequest) -> ServedReply:
        if served.choices:
            return ServedReply("1", {"1": 0.9, "0": 0.1}, finish="length")
        return ServedReply(f"<think>{'so ' * (self._load.reasoning * 4 // 3)}</think><score>1</score>")

    def _change(self, by: int) -> None:
        self._busy += by
        self._changes.append((time.monotonic(), self._busy))

    async def _report(self, request: Request) -> Response:
        changes, self._changes = self._changes, []
        return json_response(changes)


def _run_engine(load: Load, pipe: Connection) -> None:
    async def serve() -> None:
        async with serving(Engine(load).app()) as url:
            pipe.send(url)
            while not pipe.poll():
                await asyncio.sleep(0.05)

    asyncio.run(serve())


@contextmanager
def engine(load: Load) -> Iterator[str]:
    """An engine in its own process; gives its base URL."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run_engine, args=(load, theirs))
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send("end")
        process.join(10)


def engine_used(load: Load, calls: int) -> dict[str, float]:
    """Share of slot-seconds that were busy, from when all slots first were until the last call began."""
    with engine(load) as url:
        pause = asyncio.run(_watched(_grade_many(url, calls)))
        changes = asyncio.run(_get(f"{url}/busy"))
    full = next(row for row, (_, busy) in enumerate(changes) if busy == SLOTS)
    rises = [row for row in range(1, len(changes)) if changes[row][1] > changes[row - 1][1]]
    window = changes[full : rises[-1] + 1]
    spans = [(later[0] - now[0], now[1]) for now, later in pairwise(window)]
    seconds = sum(span for span, _ in spans)
    used = sum(span * busy for span, busy in spans) / (SLOTS * seconds)
    return {"used": used, "seconds": seconds, "calls": calls, "longest_pause": pause}


async def _watched(work: Coroutine[Any, Any, object]) -> float:
    """The longest time for which the machine kept this process's loop from turning, after the first second."""
    longest = 0.0
    task = asyncio.ensure_future(work)
    await asyncio.sleep(1)
    while not task.done():
        began = time.monotonic()
        await asyncio.sleep(0.05)
        longest = max(longest, time.monotonic() - began - 0.05)
    await task
    return longest


async def _grade_many(url: str, calls: int, verdict: str = "written") -> dict[str, Any]:
    judge = ModelJudge(
        JudgeConfig.model_validate(
            {"kind": "model", "endpoint": EndpointConfig(base_url=url, model=MODEL), "verdict": verdict}
        ),
        _pack(),
        seed=0,
        cache=JudgementCache(None),
    )
    answers = _answers(calls // CRITERIA)
    verdicts = await asyncio.gather(
        *(judge.grade(TASK, criterion, answer, key=(0,)) for answer in answers for criterion in _criteria())
    )
    assert all(each.value is True for each in verdicts)
    return judge.account()["grade"]


async def _get(url: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.json()


def client_cpu(load: Load, calls: int, openai_python: Path) -> dict[str, float | str]:
    """CPU milliseconds per call of our client and of AsyncOpenAI, each in a process of its own."""
    with engine(load._replace(mean=0.2, spread=0.1)) as url:
        ours = _timed([sys.executable, "-m", "benchmarks.judge", "--client", url, str(calls)])
        script = Path(__file__).parent / "openai_client.py"
        probe = subprocess.run([openai_python, "-c", "import openai"], capture_output=True)
        if probe.returncode:
            return {"ours_ms": ours, "openai_ms": f"not measured: {openai_python} has no openai"}
        theirs = _timed([str(openai_python), str(script), url, str(calls), MODEL])
    return {"ours_ms": ours, "openai_ms": theirs, "ratio": ours / theirs}


def _timed(command: Sequence[str]) -> float:
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return float(done.stdout)


async def _our_client(url: str, calls: int) -> float:
    """CPU milliseconds per call, after one warm call."""
    prompt = _prompts(1)[0]
    gate = asyncio.Semaphore(SLOTS)
    async with ChatClient(url, model=MODEL, connections=SLOTS) as client:

        async def one(number: int) -> None:
            async with gate:
                await client.complete(ChatRequest(f"{prompt} {number}", 16_384, 0.6), seconds=60)

        await one(-1)
        start = time.process_time()
        await asyncio.gather(*(one(number) for number in range(calls)))
        return 1000 * (time.process_time() - start) / calls


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


def verdict_tokens(load: Load, calls: int) -> dict[str, float]:
    with engine(load._replace(mean=0.0)) as url:
        written, token = (
            asyncio.run(_grade_many(url, calls, verdict))["tokens_out"] / calls
            for verdict in ("written", "token")
        )
    return {"written": written, "token": token, "ratio": token / written}


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
        prompts.grade(TASK, criterion, answer).prompt
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=4096)
    parser.add_argument("--mean", type=float, default=1.5, help="seconds of service, on average")
    parser.add_argument("--reasoning", type=int, default=300, help="tokens of a written verdict")
    parser.add_argument("--openai-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--client", nargs=2, metavar=("URL", "CALLS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        print(asyncio.run(_our_client(options.client[0], int(options.client[1]))))
        return
    load = Load(options.mean, 0.5, options.reasoning)
    results = {
        "assumed": load._asdict(),
        "prefill": prefill(25),
        "engine used": engine_used(load, options.calls),
        "client CPU": client_cpu(load, 2000, options.openai_python),
        "verdict tokens": verdict_tokens(load, 400),
    }
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
