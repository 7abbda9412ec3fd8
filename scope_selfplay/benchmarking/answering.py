"""All answers of one contestant, and what every scorer says of each, made at the same time.

Episodes are kept in flight in a number that fills the engine; an answer that is on disk is scored beside the episodes
that go on, so that neither engine nor judge waits for the other. What an earlier try has left is not made again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from scope_selfplay.benchmarking.eta import Remaining
from scope_selfplay.benchmarking.records import Answer, EvaluationFolder, SharedAppender
from scope_selfplay.benchmarking.setting import Answering, EvaluationSetting
from scope_selfplay.evaluation.benchmark import LoadedBenchmark
from scope_selfplay.evaluation.items import AnswerScore, Item
from scope_selfplay.evaluation.scoring import Scorer, score_answer
from scope_selfplay.judge import Judge
from scope_selfplay.keys import Key
from scope_selfplay.progress import Progress
from scope_selfplay.schemas import Fault, RolloutFault, Verdict
from scope_selfplay.store.files import stream_records

_PASSING = frozenset({Fault.TIMED_OUT, Fault.UNAVAILABLE})


@dataclass(frozen=True)
class Wanted:
    """One answer that a contestant is to give."""

    item: Item
    checkpoint: str
    sample: int
    key: Key


@dataclass(frozen=True)
class Scoring:
    """A scorer with the judge that it asks, if it asks one."""

    scorer: Scorer
    judge: Judge | None

    @property
    def judge_name(self) -> str:
        return self.judge.identity if self.judge is not None else ""


@dataclass(frozen=True)
class Judging:
    """Who scores what: every scorer of an item with every judge; a rule is asked once."""

    loaded: LoadedBenchmark
    judges: Sequence[Judge]

    def of(self, item: Item) -> Iterator[Scoring]:
        for scorer in self.loaded.scorers_of(item):
            for judge in self.judges if scorer.asks_judge else (None,):
                yield Scoring(scorer, judge)


def wanted_answers(
    items: Iterable[Item], samples: int, checkpoint: str, identity: str, seed: int
) -> Iterator[Wanted]:
    """Item by item, all samples of each. The key says who answers what: equal weights give equal answers."""
    for item in items:
        for sample in range(samples):
            yield Wanted(item, checkpoint, sample, (seed, "evaluation", identity, item.id, sample))


Answerer = Callable[[Wanted], Awaitable[Answer]]
"""What makes one answer: an engine, or a file in which it stands."""


def sampled_by(setting: EvaluationSetting, answering: Answering) -> Answerer:
    """Answers by episodes, as in training."""
    context, run = setting.run.context, setting.run

    async def answer(wanted: Wanted) -> Answer:
        episode = context.solver_episode(answering.policy_format, wanted.key, wanted.item.task)
        rollout = await context.sample_rollout(episode, answering.engine, wanted.key)
        # A server that was away has spoilt this rollout: it is not kept.
        run.check_outages()
        return Answer.of(rollout, wanted.item.id, wanted.checkpoint, wanted.sample)

    return answer


@dataclass(frozen=True)
class AnswerMaker:
    """Makes what is missing of answers and of their scores."""

    folder: EvaluationFolder
    judging: Judging
    progress: Progress
    in_flight: int

    async def make(self, answerer: Answerer, wanted: Sequence[Wanted]) -> None:
        """The first error ends everything; what was written by then is kept."""
        asked = {(each.checkpoint, each.item.id, each.sample): each for each in wanted}
        async with (
            SharedAppender(self.folder.answers) as answers,
            SharedAppender(self.folder.scores) as scores,
            asyncio.TaskGroup() as group,
        ):
            scorer = AnswerScorer(self.judging, scores, self.folder)
            unscored: list[Answer] = []
            for answer in stream_records(self.folder.answers, Answer):
                each = asked.get(answer.place)
                if each is not None and _is_final(answer):
                    del asked[answer.place]
                    if scorer.lacks(answer, each):
                        unscored.append(answer)
            remaining = Remaining(len(asked) + len(unscored))

            async def score(answer: Answer, each: Wanted) -> None:
                await scorer.score(answer, each)
                self.progress.advance(len(wanted) - remaining.left + 1, remaining.done())

            by_place = {(each.checkpoint, each.item.id, each.sample): each for each in wanted}
            for answer in unscored:
                group.create_task(score(answer, by_place[answer.place]))
            left = iter(asked.values())

            async def worker() -> None:
                for each in left:
                    answer = await answerer(each)
                    await answers.append(answer)
                    group.create_task(score(answer, each))

            for _ in range(min(self.in_flight, len(asked))):
                group.create_task(worker())


class AnswerScorer:
    """Scores answers by every scorer that they lack; each score is on disk when `score` returns."""

    def __init__(self, judging: Judging, scores: SharedAppender, folder: EvaluationFolder) -> None:
        self._judging, self._scores = judging, scores
        self._known = {
            (score.answer_id, score.scorer, score.judge)
            for score in stream_records(folder.scores, AnswerScore)
            if is_settled(score.verdicts)
        }

    def lacks(self, answer: Answer, wanted: Wanted) -> list[Scoring]:
        """Those that score such items and have not settled this answer."""
        return [
            scoring
            for scoring in self._judging.of(wanted.item)
            if (answer.id, scoring.scorer.name, scoring.judge_name) not in self._known
        ]

    async def score(self, answer: Answer, wanted: Wanted) -> None:
        await asyncio.gather(*(self._score(each, answer, wanted) for each in self.lacks(answer, wanted)))

    async def _score(self, scoring: Scoring, answer: Answer, wanted: Wanted) -> None:
        score = await score_answer(
            scoring.scorer,
            wanted.item,
            answer.rollout,
            judge=scoring.judge,
            key=(*wanted.key, scoring.scorer.name),
            checkpoint=wanted.checkpoint,
            sample=wanted.sample,
        )
        await self._scores.append(score)


def is_settled(verdicts: Sequence[Verdict]) -> bool:
    """Whether asking again would only be paid again: what a judge wrote and nobody could read stays so."""
    return not any(verdict.fault in _PASSING for verdict in verdicts)


def _is_final(answer: Answer) -> bool:
    """Whether making it again would give the same: engines and retrievers come back, a question stays too long."""
    return answer.rollout.fault in (None, RolloutFault.PROMPT)
