"""How full `scope eval` keeps an engine: 10,000 items with 4 samples against one that only waits (make bench-eval).

    python -m benchmarks.evaluation [--items N] [--samples K] [--mean SECONDS] [--slots N]

    engine used      share of the slots that are busy, from when all first are until the last turn begins     >= 0.95
    CPU              milliseconds of the evaluation and the engine together per turn, with records and scores
    seconds          what it takes where this process has a core to itself

The engine speaks vLLM's completions wire on loopback; the time of a turn is log-normal. Three of ten turns search and
the episode goes on; answers are scored by rules. `partners.concurrency` is a quarter above the slots: a free one finds
work in the engine's own queue.

The clock of both is this process's CPU time and what they would have waited (`skipping_loop`): the share does not
depend on what else the machine does, and all that we compute, the engine's part too, keeps slots empty as it would
on a core of its own. Only waits for the disk take no time.
"""

import argparse
import asyncio
import json
import math
import random
import tempfile
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.skipping_loop import CpuTimeLoop
from scope_selfplay.benchmarking.opening import EvaluationRequest, open_evaluation
from scope_selfplay.inference.chat_server import json_response
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.progress import Progress
from scope_selfplay.wire.serving import listen, serving

MODEL = "waiting"
SEARCHES = 0.3
"""Share of turns that search."""
WAITING = 1.25
"""Turns under way for each slot: the next one waits in the engine's queue when a slot becomes free."""


class Load(NamedTuple):
    """`mean` and `spread` of a turn's time in seconds."""

    mean: float
    spread: float
    slots: int


class WaitingEngine:
    """Serves at most `slots` turns at once and notes how many were busy, and when."""

    def __init__(self, load: Load) -> None:
        codec = ChatCodec.load(policy_path("embedded"))
        texts = ("<answer>heron</answer>", "<search>heron</search>")
        self._answer, self._search = ([*codec.encode_tag(text), codec.end_of_turn] for text in texts)
        self._load = load
        self._slots = asyncio.Semaphore(load.slots)
        self._busy = 0
        self.changes: list[tuple[float, int]] = []

    def app(self) -> Starlette:
        routes = [
            Route("/v1/completions", self._complete, methods=["POST"]),
            Route("/v1/models", self._models),
        ]
        return Starlette(routes=routes)

    async def _complete(self, request: Request) -> Response:
        rng = random.Random(json.loads(await request.body())["seed"])
        async with self._slots:
            self._change(1)
            mu = math.log(self._load.mean) - self._load.spread**2 / 2
            await asyncio.sleep(rng.lognormvariate(mu, self._load.spread))
            self._change(-1)
        ids = self._search if rng.random() < SEARCHES else self._answer
        choice = {
            "token_ids": ids,
            "logprobs": {"token_logprobs": [-0.5] * len(ids)},
            "finish_reason": "stop",
        }
        return json_response({"choices": [choice]})

    async def _models(self, request: Request) -> Response:
        return json_response({"data": [{"id": MODEL, "max_model_len": 512, "root": "/nowhere"}]})

    def _change(self, by: int) -> None:
        self._busy += by
        self.changes.append((asyncio.get_running_loop().time(), self._busy))


class WithEngine(asyncio.DefaultEventLoopPolicy):
    """Every event loop has a clock that skips waiting, and the engine at the same address."""

    def __init__(self, engine: WaitingEngine) -> None:
        super().__init__()
        self._app = engine.app()
        with listen("127.0.0.1", 0) as found:
            self.port = int(found.getsockname()[1])

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = CpuTimeLoop()
        self._serving = loop.create_task(self._serve())
        return loop

    async def _serve(self) -> None:
        with suppress(asyncio.CancelledError):
            async with serving(self._app, port=self.port):
                await asyncio.Event().wait()


def measure(load: Load, items: int, samples: int, folder: Path) -> dict[str, float]:
    questions = folder / "questions.jsonl"
    rows = ({"question": f"What is the emblem of place {row}?", "answer": "heron"} for row in range(items))
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    engine = WaitingEngine(load)
    policy = WithEngine(engine)
    asyncio.set_event_loop_policy(policy)
    request = EvaluationRequest(
        benchmark=str(questions),
        checkpoints=(f"http://127.0.0.1:{policy.port}/v1",),
        out=folder / "evaluation",
        samples=samples,
        temperature=1.0,
        overrides=(
            *("corpus.embedded_articles=60", "corpus.embedded_held_out=40", "model.processes=1"),
            f"partners.concurrency={round(WAITING * load.slots)}",
        ),
    )
    evaluation, cpu = open_evaluation(request, Progress()), time.process_time()
    evaluation.run()
    cpu = time.process_time() - cpu
    changes = engine.changes
    turns = sum(later > now for (_, now), (_, later) in pairwise([(0.0, 0), *changes]))
    return {
        "engine used": _share(changes, load.slots),
        "CPU": 1000 * cpu / turns,
        "turns": turns,
        "seconds": changes[-1][0] - changes[0][0],
    }


def _share(changes: list[tuple[float, int]], slots: int) -> float:
    """Of all slot-seconds from when all slots first were busy until the last turn began."""
    full = next((row for row, (_, busy) in enumerate(changes) if busy == slots), 0)
    rises = [row for row in range(1, len(changes)) if changes[row][1] > changes[row - 1][1]]
    window = changes[full : rises[-1] + 1]
    spans = [(later[0] - now[0], now[1]) for now, later in pairwise(window)]
    return sum(span * busy for span, busy in spans) / (slots * sum(span for span, _ in spans))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--mean", type=float, default=3.0, help="seconds of a turn, on average")
    parser.add_argument("--slots", type=int, default=256)
    options = parser.parse_args()
    load = Load(options.mean, 0.5, options.slots)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(load, options.items, options.samples, Path(folder))
    print(json.dumps({"assumed": load._asdict(), **found}, indent=1))


if __name__ == "__main__":
    main()
