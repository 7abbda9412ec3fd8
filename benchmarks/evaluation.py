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

import asyncio
import json
import random
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.busy_slots import BusySlots, Load
from benchmarks.options import read_options
from benchmarks.skipping_loop import CpuTimeLoop
from scope_selfplay.base.terminal import Progress
from scope_selfplay.evaluation.evaluate import EvaluationRequest, open_evaluation
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.net.serve import json_response, listen, serving

MODEL = "waiting"
SEARCHES = 0.3
"""Share of turns that search."""
WAITING = 1.25
"""Turns under way for each slot: the next one waits in the engine's queue when a slot becomes free."""


class WaitingEngine:
    def __init__(self, load: Load) -> None:
        codec = ChatCodec.load(policy_path("embedded"))
        texts = ("<answer>heron</answer>", "<search>heron</search>")
        self._answer, self._search = ([*codec.encode_tag(text), codec.end_of_turn] for text in texts)
        self.slots = BusySlots(load)

    def app(self) -> Starlette:
        routes = [
            Route("/v1/completions", self._complete, methods=["POST"]),
            Route("/v1/models", self._models),
        ]
        return Starlette(routes=routes)

    async def _complete(self, request: Request) -> Response:
        rng = random.Random(json.loads(await request.body())["seed"])
        await self.slots.serve(rng)
        ids = self._search if rng.random() < SEARCHES else self._answer
        choice = {
            "token_ids": ids,
            "logprobs": {"token_logprobs": [-0.5] * len(ids)},
            "finish_reason": "stop",
        }
        return json_response({"choices": [choice]})

    async def _models(self, request: Request) -> Response:
        return json_response({"data": [{"id": MODEL, "max_model_len": 512, "root": "/nowhere"}]})


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
            *("corpus.sample=60", "model.processes=1"),
            f"partners.concurrency={round(WAITING * load.slots)}",
        ),
    )
    evaluation, cpu = open_evaluation(request, Progress()), time.process_time()
    evaluation.run()
    cpu = time.process_time() - cpu
    slots = engine.slots
    return {
        "engine used": slots.used(),
        "CPU": 1000 * cpu / slots.begun,
        "turns": slots.begun,
        "seconds": slots.seconds,
    }


def main() -> None:
    options = read_options(__doc__, items=10_000, samples=4, mean=3.0, slots=256)
    load = Load(options.mean, 0.5, options.slots)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(load, options.items, options.samples, Path(folder))
    print(json.dumps({"assumed": load._asdict(), **found}, indent=1))


if __name__ == "__main__":
    main()
