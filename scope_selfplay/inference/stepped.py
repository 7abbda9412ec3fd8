"""A synchronous engine (vLLM's `LLMEngine`) driven request by request, for a policy in training.

    sample = await engine.generate(request, key)     # in the rollouts, as with every PolicyModel
    engine.serve(llm_engine, until)                  # meanwhile, on the thread that owns the GPU

The rollouts run on a thread of their own, so searches and judgements go on while the GPU works. The thread that serves
takes what they ask for before every step: the next turn of an episode joins the batch as soon as its search is back,
and no rollout waits for another. (TRL's own tool loop generates turn by turn and waits for the slowest each time.)

The engine is given as many turns as its cache holds, and turns of episodes that are under way before new episodes
(`admission`): vLLM's own queue is first come, first served.
"""

import asyncio
import math
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from scope_selfplay.base.errors import InferenceError
from scope_selfplay.base.sampling import Generate, Sample, settle_from_thread
from scope_selfplay.base.values import Finish, Key, seed_from
from scope_selfplay.inference.codec import ChatCodec, Sampling, SamplingEngine
from scope_selfplay.net.admission import TokenRoom


class Steppable(Protocol):
    """What is used of vLLM's `LLMEngine`. An output has `request_id`, `finished` and `outputs[0]`."""

    def add_request(self, request_id: str, prompt: Any, params: Any) -> Any: ...

    def abort_request(self, request_ids: list[str]) -> Any: ...

    def step(self) -> Sequence[Any]: ...


@dataclass(eq=False)
class _Call:
    request: Generate
    sampling: Sampling
    future: "asyncio.Future[Sample]"

    def settle(self, result: Sample | InferenceError) -> None:
        settle_from_thread(self.future, result)


class SteppedEngine(SamplingEngine):
    """A `PolicyModel` for as long as `serve` lasts. `make_params` turns a Sampling into the engine's own."""

    def __init__(
        self, codec: ChatCodec, *, make_params: Callable[[Sampling], Any] | None = None, **common: Any
    ) -> None:
        """`common`: as of SamplingEngine."""
        super().__init__(codec, **common)
        self._make_params = make_params or vllm_params
        # None wakes the engine's thread when no more turns will be asked for.
        self._inbox: SimpleQueue[_Call | None] = SimpleQueue()
        self._waiting: list[_Call] = []
        self._room = TokenRoom()
        self._number = 0

    async def generate(self, request: Generate, key: Key) -> Sample:
        sampling = self.sampling(request, seed_from(*key))
        call = _Call(request, sampling, asyncio.get_running_loop().create_future())
        self._inbox.put(call)
        return await call.future

    def serve(self, engine: Steppable, until: "Future[Any]") -> None:
        """Step `engine` on this thread until `until` is done and no turn is under way.

        What the engine raises fails every turn that is asked for from then on, and is raised at the end.
        """
        self._room.clear()
        self._room.capacity = cache_tokens(engine)
        until.add_done_callback(lambda _: self._inbox.put(None))
        running: dict[str, _Call] = {}
        fault: Exception | None = None
        while running or not until.done():
            try:
                for call in self._arrived(wait=not running and not self._waiting):
                    if fault is not None:
                        call.settle(InferenceError(f"the engine failed before: {fault}"))
                    else:
                        insort(self._waiting, call, key=lambda each: not each.request.turn)
                self._drop_cancelled(engine, running)
                self._admit(engine, running)
                for output in engine.step() if running else ():
                    if output.finished and output.request_id in running:
                        self._settle(running.pop(output.request_id), output)
            except Exception as error:  # noqa: BLE001 - the wall to the engine; raised again at the end
                fault = error
                for call in (*running.values(), *self._waiting):
                    call.settle(InferenceError(f"the engine failed: {type(error).__name__}: {error}"))
                running.clear()
                self._waiting.clear()
        if fault is not None:
            raise fault

    def _admit(self, engine: Steppable, running: dict[str, _Call]) -> None:
        """Give the engine what waits, as far as its cache holds it."""
        while self._waiting:
            call = self._waiting[0]
            prompt, most = list(call.request.prompt_ids), call.sampling.max_tokens
            if not self._room.fits(len(prompt), most):
                return
            self._number += 1
            name = str(self._number)
            engine.add_request(name, {"prompt_token_ids": prompt}, self._make_params(call.sampling))
            self._room.enter(name, len(prompt), most)
            running[name] = self._waiting.pop(0)

    def _settle(self, call: _Call, output: Any) -> None:
        sample = _sample(output.outputs[0])
        sampled = len(sample.ids) if isinstance(sample, Sample) else None
        self._room.leave(output.request_id, sampled)
        self.on_tokens(sampled or 0)
        call.settle(sample)

    def _arrived(self, *, wait: bool) -> list[_Call]:
        """What was asked for meanwhile; with `wait`, at least one call or the end of the rollouts."""
        calls: list[_Call | None] = [self._inbox.get()] if wait else []
        while True:
            try:
                calls.append(self._inbox.get_nowait())
            except Empty:
                return [call for call in calls if call is not None]

    def _drop_cancelled(self, engine: Steppable, running: dict[str, _Call]) -> None:
        gone = [name for name, call in running.items() if call.future.cancelled()]
        if gone:
            engine.abort_request(gone)
        for name in gone:
            del running[name]
            self._room.leave(name)
        self._waiting = [call for call in self._waiting if not call.future.cancelled()]


def cache_tokens(engine: Any) -> int | None:
    """How many tokens vLLM's key-value cache holds; None where the engine does not say."""
    cache = getattr(getattr(engine, "vllm_config", None), "cache_config", None)
    blocks, size = getattr(cache, "num_gpu_blocks", None), getattr(cache, "block_size", None)
    # vLLM 0.31 and later know better than blocks * size, which is wrong for hybrid models.
    known = getattr(cache, "kv_cache_size_tokens", None)
    return known or (blocks * size if blocks and size else None)


def vllm_params(sampling: Sampling) -> Any:
    """vLLM's own; everything that its defaults could take from a model's generation_config is set."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        n=1,
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        seed=sampling.seed,
        top_p=sampling.top_p,
        top_k=0,
        min_p=0.0,
        repetition_penalty=1.0,
        stop_token_ids=sorted(sampling.stops.ids),
        stop=list(sampling.stops.texts),
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        logprobs=0,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _sample(completion: Any) -> Sample | InferenceError:
    if completion.finish_reason not in ("stop", "length"):
        return InferenceError(f"the engine ended a turn with {completion.finish_reason}")
    ids = tuple(int(token) for token in completion.token_ids)
    entries: Sequence[Mapping[int, Any]] = completion.logprobs or ()
    if len(entries) != len(ids):
        return InferenceError(f"the engine gave {len(entries)} log-probabilities for {len(ids)} tokens")
    logprobs = tuple(float(entry[token].logprob) for token, entry in zip(ids, entries, strict=True))
    if any(map(math.isnan, logprobs)):
        return InferenceError("the engine gave a log-probability that is not a number")
    return Sample(ids, logprobs, Finish(completion.finish_reason))
