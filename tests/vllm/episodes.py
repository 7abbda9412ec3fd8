"""Episodes of the shipped policy that search between their turns, the same under every engine.

Runs in the tests' environment and, as `python -m tests.vllm.episodes FOLDER`, in vLLM's own: there it drives an
engine of this process request by request, as a trainer does, and prints what came out as JSON.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scope_selfplay.base.sampling import Generate, PolicyModel, Sample
from scope_selfplay.base.values import Document, Key, Passage, Role, Turn
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import CorpusConfig, RunConfig
from scope_selfplay.corpus.screen import TaskSource
from scope_selfplay.corpus.world import embedded_documents
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.rules import LexicalJudge
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.run.candidate import RunContext

REPOSITORY = Path(__file__).resolve().parents[2]
EMBEDDED = REPOSITORY / "scope_selfplay" / "embedded"
MAX_LENGTH = 352
COUNT = 12


class Titles:
    """Finds the articles whose title stands in the query; no index, so that any environment can search."""

    identity = "titles"

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents

    async def search(self, query: str, topk: int) -> list[Passage]:
        await asyncio.sleep(0.01)
        found = [each for each in self._documents if each.title in query]
        return [Passage(id=each.id, title=each.title, text=each.text) for each in found[:topk]]


def make_context() -> tuple[RunContext, list[TaskSource]]:
    config: RunConfig = load_config(EMBEDDED / "run.yaml")
    documents = embedded_documents(0, CorpusConfig(sample=80))
    sources = [
        TaskSource(document=document, task_type="long_form_qa", search_turns=1 + row % 3)
        for row, document in enumerate(documents[:COUNT])
    ]
    pack = load_pack(REPOSITORY / "prompts" / "embedded")
    return RunContext(config, pack, Titles(documents), MeteredJudge(LexicalJudge()), ()), sources


Turns = list[list[dict[str, Any]]]
"""Rollouts, each a list of its turns: `prompt_ids`, `ids` and the engine's `logprobs`."""


class _Recorder:
    """A model that keeps what it samples: a greedy turn does not store its log-probabilities."""

    def __init__(self, model: PolicyModel) -> None:
        self._model = model
        self.identity = model.identity
        self.logprobs: dict[tuple[tuple[int, ...], tuple[int, ...]], Any] = {}

    async def generate(self, request: Generate, key: Key) -> Sample:
        sample = await self._model.generate(request, key)
        self.logprobs[tuple(request.prompt_ids), tuple(sample.ids)] = sample.logprobs
        return sample


async def roll_all(model: PolicyModel, codec: ChatCodec, *, greedy: bool) -> Turns:
    """What is sampled in one Challenger rollout for every source, all at once."""
    context, sources = make_context()
    recorder = _Recorder(model)
    policy_format = context.policy_format(codec, Role.CHALLENGER, model.identity, greedy=greedy)
    episodes = [
        context.challenger_episode(policy_format, (row,), source) for row, source in enumerate(sources)
    ]
    calls = (context.sample_rollout(each, recorder, (row,)) for row, each in enumerate(episodes))

    def told(turn: Turn) -> dict[str, Any]:
        logprobs = recorder.logprobs[tuple(turn.prompt_ids), tuple(turn.ids)]
        return {"prompt_ids": turn.prompt_ids, "ids": turn.ids, "logprobs": logprobs}

    return [list(map(told, rollout.turns)) for rollout in await asyncio.gather(*calls)]


def main(folder: Path) -> None:
    from vllm import LLM

    from scope_selfplay.inference.stepped import SteppedEngine

    llm = LLM(
        model=str(folder),
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=16,
        enable_chunked_prefill=False,
        max_num_batched_tokens=4096,
        logprobs_mode="processed_logprobs",
    )
    codec = ChatCodec.load(folder)
    engine = SteppedEngine(codec, identity="S_0", max_length=MAX_LENGTH, temperature=1.0)
    found = {}
    with ThreadPoolExecutor(1) as thread:
        for name in ("greedy", "free"):
            rolled = thread.submit(asyncio.run, roll_all(engine, codec, greedy=name == "greedy"))
            engine.serve(llm.llm_engine, rolled)
            found[name] = rolled.result()
    print(f"\nROLLOUTS {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
