"""Stage B: fill a quota of accepted tasks, one document after the other, many at a time.

The quota fills in document order, not in finishing order: which tasks are kept does not depend on timing, and
a resumed run keeps the same ones. What lies behind the document that filled the quota is not kept. Several
workers fill it together with `fill_share`: each has documents of its own.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

from scope_selfplay.corpus import TaskSource
from scope_selfplay.pipeline import CandidateRecords
from scope_selfplay.schemas import Candidate, CandidateStatus

Make = Callable[[TaskSource], Awaitable[CandidateRecords]]


async def fill_quota(
    sources: Sequence[TaskSource],
    make: Make,
    *,
    target: int,
    in_flight: int,
    finished: Mapping[str, Candidate],
    keep: Callable[[CandidateRecords], None],
    report: Callable[[int, int], None],
) -> list[Candidate]:
    """Candidates in document order up to the one that made `target` accepted, or all there are.

    `finished` are candidates of an earlier try by document id; they are not made again. `keep` is called with
    each new one as soon as it exists; `report` with (accepted, tried).
    """
    running: deque[asyncio.Future[Candidate]] = deque()
    waiting = iter(sources)
    candidates: list[Candidate] = []
    accepted = 0

    async def candidate_of(source: TaskSource) -> Candidate:
        if source.document.id in finished:
            return finished[source.document.id]
        assessed = await make(source)
        keep(assessed)
        return assessed.candidate

    try:
        while accepted < target:
            # Close to the target fewer are started: most of what runs behind the last accepted is not kept.
            while len(running) < min(in_flight, 2 * (target - accepted) + 8):
                source = next(waiting, None)
                if source is None:
                    break
                running.append(asyncio.ensure_future(candidate_of(source)))
            if not running:
                break
            candidates.append(await running.popleft())
            accepted += candidates[-1].status is CandidateStatus.ACCEPTED
            report(accepted, len(candidates))
    finally:
        for future in running:
            future.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return candidates


async def fill_share(
    sources: Sequence[TaskSource],
    make: Make,
    *,
    in_flight: Callable[[], int],
    is_needed: Callable[[TaskSource], bool],
    keep: Callable[[CandidateRecords], None],
    poll: float = 2.0,
) -> None:
    """Make the candidates of one worker's documents, in their order, as long as they are needed.

    `is_needed` may turn false while others work, and then stays false, for this document and all behind it; a
    candidate that is being made for nothing is given up. It is asked at least every `poll` seconds.
    """
    running: dict[asyncio.Future[CandidateRecords], TaskSource] = {}
    waiting = deque(sources)
    try:
        while True:
            while waiting and len(running) < in_flight():
                source = waiting.popleft()
                if not is_needed(source):
                    waiting.clear()
                    break
                running[asyncio.ensure_future(make(source))] = source
            if not running:
                break
            ended, _ = await asyncio.wait(running, timeout=poll, return_when=asyncio.FIRST_COMPLETED)
            for future in ended:
                del running[future]
            # What was made is kept before a fault of another ends the work.
            for future in sorted(ended, key=lambda each: each.exception() is not None):
                keep(future.result())
            for future in [each for each, source in running.items() if not is_needed(source)]:
                del running[future]
                future.cancel()
                await asyncio.gather(future, return_exceptions=True)
    finally:
        for future in running:
            future.cancel()
        await asyncio.gather(*running, return_exceptions=True)
