"""Answers of all contestants to the same items, judged beside each other in both orders by every judge."""

import asyncio
from collections.abc import Sequence

from scope_selfplay.benchmarking.answering import is_settled
from scope_selfplay.benchmarking.eta import Remaining
from scope_selfplay.benchmarking.records import Answer, EvaluationFolder, SharedAppender
from scope_selfplay.evaluation.win_rates import Pairing, PairVerdict, judge_pair
from scope_selfplay.judge import Judge
from scope_selfplay.progress import Progress
from scope_selfplay.schemas import Rollout
from scope_selfplay.store.files import stream_records


def answers_by_contestant(
    folder: EvaluationFolder, contestants: Sequence[str]
) -> dict[str, dict[str, Rollout]]:
    """The first sample of everyone's answer to every item."""
    found: dict[str, dict[str, Rollout]] = {name: {} for name in contestants}
    for answer in stream_records(folder.answers, Answer):
        if answer.checkpoint in found and answer.sample == 0:
            found[answer.checkpoint][answer.item_id] = answer.rollout
    return found


async def judge_pairings(
    folder: EvaluationFolder,
    judges: Sequence[Judge],
    pairings: Sequence[Pairing],
    *,
    in_flight: int,
    progress: Progress,
) -> None:
    """Ask for every pairing and judge that no earlier try has settled."""
    known = {
        (each.first_id, each.second_id, each.criterion, each.judge)
        for each in stream_records(folder.comparisons, PairVerdict)
        if is_settled([each.verdict])
    }
    asked = [(judge, pairing) for judge in judges for pairing in pairings]
    missing = [
        (judge, pairing)
        for judge, pairing in asked
        if (pairing.first.id, pairing.second.id, pairing.criterion, judge.identity) not in known
    ]
    remaining, left = Remaining(len(missing)), iter(missing)
    async with SharedAppender(folder.comparisons) as comparisons, asyncio.TaskGroup() as group:

        async def worker() -> None:
            for judge, pairing in left:
                await comparisons.append(await judge_pair(judge, pairing))
                note = remaining.done()
                progress.advance(len(asked) - remaining.left, note)

        for _ in range(min(in_flight, len(missing))):
            group.create_task(worker())
