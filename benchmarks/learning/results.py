"""What is read off one finished run."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ablations.measures import FinishedRun, Values, accepted_means, asked_scores, mean_of
from scope_selfplay.base.intervals import Estimate
from scope_selfplay.base.values import Candidate, CandidateStatus, Role, Rollout
from scope_selfplay.corpus.world import FactQuestion, read_article, read_question
from scope_selfplay.report.signals import needed_searches
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import Stage, read_manifest
from scope_selfplay.store.reader import RunReader

DEEP = 3
"""Links from which on a held-out task counts as deep."""
MEANS, LINKS = "mean score of the accepted tasks", "links of the accepted tasks"


@dataclass(frozen=True)
class Learnt:
    """One run: `asked` are greedy scores by held-out task, of S_0 and the Solver of each iteration; `written`, figures
    of what the Challenger wrote, by their names, from iteration 1 on.
    """

    seed: int
    asked: Sequence[Values]
    depths: Mapping[str, int]
    written: Sequence[Mapping[str, float]]
    minutes: float

    def mean(self, iteration: int, *, deep: bool = False) -> float:
        return statistics.fmean(self.asked[iteration][task] for task in self._tasks(deep))

    def above(self, scores: Values, *, deep: bool = False) -> Estimate:
        """How far the last Solver lies above other scores, paired by task."""
        found = mean_of([self.asked[-1][task] - scores[task] for task in self._tasks(deep)], self.seed)
        assert found is not None
        return found

    def _tasks(self, deep: bool) -> list[str]:
        return [task for task, depth in self.depths.items() if depth >= DEEP or not deep]


def read_learnt(folder: Path, seed: int) -> Learnt:
    run = FinishedRun(folder)
    finished = run.iterations_with(Stage.COMPARE)
    manifests = [read_manifest(path.parent) for path in folder.glob("iteration-*/*/manifest.json")]
    with RunReader(folder) as reader:
        written = [_written(run, number, reader) for number in finished if number]
    return Learnt(
        seed=seed,
        asked=[asked_scores(run, number) for number in finished],
        depths={each.task.id: asked_of(each).hops for each in run.candidates(0) if each.task},
        written=written,
        minutes=sum(manifest.seconds for manifest in manifests if manifest) / 60,
    )


def _written(run: FinishedRun, iteration: int, reader: RunReader) -> dict[str, float]:
    """A pattern is links and facts; a search is right that looks for the place to which its chain leads."""
    candidates = run.candidates(iteration)
    accepted = [asked_of(each) for each in candidates if each.status is CandidateStatus.ACCEPTED]
    right = _right_searches(run, iteration)
    return {
        MEANS: statistics.fmean(accepted_means(run, iteration).values()),
        LINKS: statistics.fmean(question.hops for question in accepted),
        "patterns of the accepted tasks": len({(asked.links, asked.nouns) for asked in accepted}),
        "candidates accepted, share": len(accepted) / len(candidates),
        "searches that an accepted task needs, share": needed_searches(reader, iteration) or 0.0,
        **{
            f"searches for link {links} that are right, share": right.get(links, math.nan)
            for links in range(1, 5)
        },
    }


def asked_of(candidate: Candidate) -> FactQuestion:
    assert candidate.task is not None
    question = read_question(candidate.task.text)
    assert question is not None, f"{candidate.task.text}: no task of the embedded world"
    return question


def _right_searches(run: FinishedRun, iteration: int) -> Mapping[int, float]:
    """By links, of all searches of the Challenger."""
    world = {entity.name: entity for each in run.documents.values() if (entity := read_article(each.text))}
    found = defaultdict(list)
    for rollout in challenger_rollouts(run, iteration).values():
        for turn in rollout.turns:
            if turn.query is None:
                continue
            place, *links = (turn.thinking or "").strip().partition(" is ")[0].split("'s ")
            for link in links:
                place = world[place].links.get(link, "") if place in world else ""
            found[len(links)].append(place == turn.query.strip())
    return {links: statistics.fmean(flags) for links, flags in found.items()}


def challenger_rollouts(run: FinishedRun, iteration: int) -> Mapping[str, Rollout]:
    rollouts = read_records(run.folder.stage(iteration, Stage.TASKS).rollouts, Rollout)
    return {rollout.id: rollout for rollout in rollouts if rollout.role is Role.CHALLENGER}
