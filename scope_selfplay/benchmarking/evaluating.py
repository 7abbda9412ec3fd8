"""One evaluation from its first answer to its result; the same call goes on after a kill."""

import asyncio
import gc
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from scope_selfplay import __version__
from scope_selfplay.benchmarking.answering import AnswerMaker, Judging, sampled_by, wanted_answers
from scope_selfplay.benchmarking.comparing import answers_by_contestant, judge_pairings
from scope_selfplay.benchmarking.contestants import Contestant
from scope_selfplay.benchmarking.finishing import finish
from scope_selfplay.benchmarking.given_answers import given_by, given_identity, read_given_answers
from scope_selfplay.benchmarking.records import ContestantRecord, EvaluationFolder, EvaluationSpec
from scope_selfplay.benchmarking.setting import EvaluationSetting
from scope_selfplay.evaluation.results import EvaluationResult
from scope_selfplay.evaluation.scorers import SCORERS
from scope_selfplay.evaluation.win_rates import pairs
from scope_selfplay.folder_lock import folder_lock
from scope_selfplay.judge import Judge
from scope_selfplay.store.files import disk_faults

_LOCK_TIMEOUT = 180.0
_EPISODES_A_SLOT = 2
"""An episode that searches leaves its slot to another one."""


@dataclass
class Evaluation:
    """The first contestant is compared with each other one."""

    setting: EvaluationSetting
    contestants: Sequence[Contestant]
    folder: EvaluationFolder
    pairwise: bool = False
    by_criterion: bool = False
    """Pairs are also judged by each criterion of the item's rubric alone."""

    @cached_property
    def judges(self) -> list[Judge]:
        """Opened where something is judged that no rule decides."""
        asks = any(SCORERS[name].asks_judge for name in self.setting.loaded.benchmark.scorers)
        return self.setting.judges(self.folder.judgements) if asks or self.pairwise else []

    def run(self) -> EvaluationResult:
        """Make what is missing and write the result. Raises ScopeError; what is done stays."""
        folder, progress = self.folder, self.setting.run.progress
        with disk_faults(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
        lock = folder.path / ".lock"
        with folder_lock(folder.path, lock, work="writing", say=progress.say, timeout=_LOCK_TIMEOUT):
            folder.begin(self._spec(), self.setting.loaded.items)
            for contestant in self.contestants:
                self._answers_of(contestant)
            if self.pairwise:
                self._compare()
            return finish(folder, self.setting.loaded, seed=self.setting.run.config.seed)

    def _spec(self) -> EvaluationSpec:
        setting, run = self.setting, self.setting.run
        return EvaluationSpec(
            benchmark=setting.loaded.name,
            items=setting.loaded.identity,
            count=len(setting.loaded.items),
            seed=run.config.seed,
            decoding=setting.decoding,
            budget=setting.budget,
            scorers=setting.loaded.benchmark.scorers,
            judges=tuple(judge.identity for judge in self.judges),
            dialect=run.config.model.dialect,
            prompts=run.pack.hash,
            index=run.context.searcher.identity,
            version=__version__,
        )

    def _answers_of(self, contestant: Contestant) -> None:
        setting = self.setting
        samples = setting.decoding.samples
        items = setting.loaded.items
        if contestant.answers is not None:
            identity, given = given_identity(contestant.answers), read_given_answers(contestant.answers)
            answerer, samples = given_by(given, identity), 1
            items = tuple(item for item in items if item.id in given)
        else:
            answering = setting.answering(contestant)
            identity, answerer = answering.engine.identity, sampled_by(setting, answering)
        self.folder.join(ContestantRecord(name=contestant.name, identity=identity))
        seed = setting.run.config.seed
        wanted = list(wanted_answers(items, samples, contestant.name, identity, seed))
        setting.run.progress.begin(f"{contestant.name} answers {setting.loaded.name}", len(wanted))
        run_to_end(self._maker.make(answerer, wanted))
        setting.run.progress.end(f"{len(wanted):,} answers")

    @property
    def _maker(self) -> AnswerMaker:
        judging = Judging(self.setting.loaded, self.judges)
        return AnswerMaker(self.folder, judging, self.setting.run.progress, self.in_flight)

    @property
    def in_flight(self) -> int:
        """Episodes, or comparisons, under way at the same time."""
        config = self.setting.run.config
        return _EPISODES_A_SLOT * max(config.model.slots, config.partners.concurrency)

    def _compare(self) -> None:
        names = [contestant.name for contestant in self.contestants]
        found = pairs(
            self.setting.loaded.items,
            answers_by_contestant(self.folder, names),
            by_criterion=self.by_criterion,
        )
        progress = self.setting.run.progress
        progress.begin(f"{len(names)} checkpoints beside each other", len(found) * len(self.judges))
        run_to_end(
            judge_pairings(self.folder, self.judges, found, in_flight=self.in_flight, progress=progress)
        )
        progress.end(f"{len(found) * len(self.judges):,} comparisons")


def run_to_end(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end; of several errors the first one, which ended the others."""
    # A full collection would look through everything that the libraries hold, and stop the loop while it does.
    gc.freeze()
    try:
        asyncio.run(work)
    except BaseExceptionGroup as group:
        raise _first(group) from None
    finally:
        gc.unfreeze()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
