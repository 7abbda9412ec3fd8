"""What is read off one finished run."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ablations.arms import CO_EVOLVING, FROZEN_AFTER_1, FROZEN_FROM_START
from benchmarks.ablations.measures import FinishedRun, Values, accepted_means, asked_scores, mean_of, sampled
from scope_selfplay.base.intervals import Estimate
from scope_selfplay.base.values import Candidate, CandidateStatus, Rollout
from scope_selfplay.corpus.world import read_question
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import Stage, read_manifest

ARMS = (CO_EVOLVING, FROZEN_AFTER_1, FROZEN_FROM_START)
"""At equal Solver steps: a Challenger that goes on learning, and two that do not."""
DEEP = 3
"""Links from which on a held-out task counts as deep."""


@dataclass(frozen=True)
class Learnt:
    """One run. By iteration, S_0 first: `asked` are greedy scores by held-out task, `sampled` those at temperature 1.

    By iteration from 1 on: `means` of the accepted tasks' scores, `links` of the accepted tasks, the share of them that
    has the `commonest` chain of links, and the share of the candidates that was `accepted`.
    """

    seed: int
    asked: Sequence[Values]
    sampled: Sequence[Values]
    depths: Mapping[str, int]
    means: Sequence[float]
    links: Sequence[float]
    commonest: Sequence[float]
    accepted: Sequence[float]
    minutes: float

    def mean(self, iteration: int, *, deep: bool = False, sampled: bool = False) -> float:
        scores = (self.sampled if sampled else self.asked)[iteration]
        return statistics.fmean(scores[task] for task in self.tasks(deep))

    def tasks(self, deep: bool = False) -> list[str]:
        return [task for task, depth in self.depths.items() if depth >= DEEP or not deep]

    def gain(self, new: int, old: int) -> Estimate:
        return self.difference([self.asked[new][task] - self.asked[old][task] for task in self.tasks()])

    def above(self, other: "Learnt", *, deep: bool) -> Estimate:
        """How far the last Solver lies above that of another run of the seed, paired by task."""
        return self.difference([self.asked[-1][task] - other.asked[-1][task] for task in self.tasks(deep)])

    def difference(self, values: Sequence[float]) -> Estimate:
        found = mean_of(values, self.seed)
        assert found is not None
        return found


def read_learnt(folder: Path, seed: int) -> Learnt:
    run = FinishedRun(folder)
    finished = run.iterations_with(Stage.COMPARE)
    depths = {each.task.id: links_of(each) for each in run.candidates(0) if each.task}
    trained = [number for number in finished if number]
    accepted = [
        [each for each in run.candidates(number) if each.status is CandidateStatus.ACCEPTED]
        for number in trained
    ]
    manifests = [read_manifest(path.parent) for path in folder.glob("iteration-*/*/manifest.json")]
    return Learnt(
        seed=seed,
        asked=[asked_scores(run, number) for number in finished],
        sampled=[sampled(run, number) for number in finished],
        depths=depths,
        means=[statistics.fmean(accepted_means(run, number).values()) for number in trained],
        links=[statistics.fmean(map(links_of, tasks)) for tasks in accepted],
        commonest=[share_of_commonest([chain_of(task) for task in tasks]) for tasks in accepted],
        accepted=[
            len(tasks) / len(run.candidates(number)) for number, tasks in zip(trained, accepted, strict=True)
        ],
        minutes=sum(manifest.seconds for manifest in manifests if manifest) / 60,
    )


def links_of(candidate: Candidate) -> int:
    return len(chain_of(candidate))


def chain_of(candidate: Candidate) -> tuple[str, ...]:
    """The links that a task follows, in their order, wherever it begins."""
    assert candidate.task is not None
    question = read_question(candidate.task.text)
    assert question is not None, f"{candidate.task.text}: no task of the embedded world"
    return question.links


def share_of_commonest(chains: Sequence[tuple[str, ...]]) -> float:
    return max(Counter(chains).values()) / len(chains)


def answers(folder: Path, iteration: int) -> Mapping[str, str]:
    """S_t's greedy answers to the held-out tasks."""
    run = FinishedRun(folder)
    rollouts = read_records(run.folder.stage(iteration, Stage.COMPARE).rollouts, Rollout)
    return {rollout.subject_id: (rollout.answer or "").strip() for rollout in rollouts}
