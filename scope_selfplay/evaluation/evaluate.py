"""One evaluation from its first answer to its result; the same call goes on after a kill.

Episodes are kept in flight in a number that fills the engine; an answer that is on disk is scored beside the episodes
that go on, so that neither engine nor judge waits for the other. What an earlier try has left is not made again.
"""

import asyncio
import gc
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from scope_selfplay import DEFAULT_CONFIG, __version__
from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.machine import folder_lock
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Fault, Key, Role, Rollout, RolloutFault, Verdict, content_id
from scope_selfplay.config.load import load_config
from scope_selfplay.evaluation.benchmarks import Benchmark, Decoding, load_benchmark
from scope_selfplay.evaluation.contestants import (
    Contestant,
    EvaluatedRun,
    answering_as,
    placed,
    read_contestant,
)
from scope_selfplay.evaluation.folder import (
    ContestantRecord,
    EvaluationFolder,
    EvaluationSpec,
    evaluation_card,
    settle_lines,
)
from scope_selfplay.evaluation.metrics import EvaluationResult, evaluation_result
from scope_selfplay.evaluation.pairs import Pairing, PairVerdict, judge_pair, pairs
from scope_selfplay.evaluation.rows import Item, read_rows
from scope_selfplay.evaluation.scorers import SCORERS, Answer, AnswerScore, Scorer, score_answer
from scope_selfplay.judge.protocol import Judge
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.run.begin import open_run, with_judge_prompts
from scope_selfplay.run.run import Run
from scope_selfplay.store.card import CARD
from scope_selfplay.store.files import Appender, disk_faults, stream_records, write_atomic
from scope_selfplay.store.folder import Policy, RunFolder

T = TypeVar("T")
Place = tuple[str, str, int]
"""Checkpoint, item and sample of an answer."""

_LOCK_TIMEOUT = 180.0
_EPISODES_A_SLOT = 2
"""An episode that searches leaves its slot to another one."""
_PASSING = frozenset({Fault.TIMED_OUT, Fault.UNAVAILABLE})


def complete(
    title: str,
    missing: Sequence[T],
    make: Callable[[T], Awaitable[None]],
    *,
    progress: Progress,
    total: int,
    in_flight: int | None = None,
) -> None:
    """`make` what is missing of `total`, all at once or so many; it records each as it comes.

    The first error ends everything and is raised; what was recorded by then is kept.
    """
    done, left = total - len(missing), iter(missing)

    async def worker() -> None:
        nonlocal done
        for each in left:
            await make(each)
            done += 1
            progress.advance(done)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(in_flight or len(missing), len(missing))):
                group.create_task(worker())

    progress.begin(title, total, done)
    # A full collection of garbage would look through all that the libraries hold, and stop the loop while it does.
    gc.freeze()
    try:
        asyncio.run(run())
    except BaseExceptionGroup as several:
        error: BaseException = several
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
    finally:
        gc.unfreeze()


@dataclass
class Evaluation:
    """Contestants answer a benchmark where a run takes place; the first is compared with each other one."""

    place: EvaluatedRun
    asked: Benchmark
    """With the decoding and the budget as they are used."""
    contestants: Sequence[Contestant]
    folder: EvaluationFolder
    pairwise: bool = False
    by_criterion: bool = False
    """Pairs are also judged by each criterion of the item's rubric alone."""

    @cached_property
    def judges(self) -> list[Judge]:
        """Where something is judged that no rule decides: one for each endpoint of judge.evaluate, else the run's own.
        What they are paid for is kept.
        """
        if not self.pairwise and not any(SCORERS[name].asks_judge for name in self.asked.scorers):
            return []
        cache = {"cache": str(self.folder.judgements.absolute())}
        deciding = self.place.config.judge.deciding
        return [self.place.open_judge(settings.model_copy(update=cache)) for settings in deciding]

    def run(self) -> EvaluationResult:
        """Make what is missing and write the result. Raises ScopeError; what is done stays."""
        folder, progress = self.folder, self.place.progress
        with disk_faults(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
        lock = folder.path / ".lock"
        with folder_lock(folder.path, lock, work="writing", say=progress.say, timeout=_LOCK_TIMEOUT):
            folder.begin(self._spec(), self.asked.items)
            for contestant in self.contestants:
                self._answers_of(contestant)
            if self.pairwise:
                self._compare()
            return finish(folder, self.asked, seed=self.place.config.seed)

    @property
    def in_flight(self) -> int:
        """Episodes, or comparisons, under way at the same time."""
        config = self.place.config
        return _EPISODES_A_SLOT * max(config.model.slots, config.partners.concurrency)

    def _spec(self) -> EvaluationSpec:
        place, asked = self.place, self.asked
        return EvaluationSpec(
            benchmark=asked.name,
            items=self.asked.identity,
            count=len(self.asked.items),
            seed=place.config.seed,
            decoding=asked.decoding,
            budget=asked.budget,
            scorers=asked.scorers,
            judges=tuple(judge.identity for judge in self.judges),
            dialect=place.config.model.dialect,
            prompts=place.pack.hash,
            index=place.context.searcher.identity,
            version=__version__,
        )

    def _answers_of(self, contestant: Contestant) -> None:
        """Make what is missing of a contestant's answers and of their scores."""
        place, asked = self.place, self.asked
        items, samples = asked.items, asked.decoding.samples
        if contestant.answers is None:
            solver = answering_as(place, contestant, asked.decoding)
            identity = solver.engine.identity

            async def answer(item: Item, key: Key) -> Rollout:
                rollout = await place.context.answer(solver, key, item.task)
                # A server that was away has spoilt this rollout: it is not kept.
                place.check_outages()
                return rollout
        else:
            given, identity = read_given_answers(contestant.answers), given_identity(contestant.answers)
            items, samples = tuple(item for item in items if item.id in given), 1

            async def answer(item: Item, key: Key) -> Rollout:
                name = content_id(Role.SOLVER.value, *key)
                return Rollout.of_answer(given[item.id], name, checkpoint=identity, subject_id=item.id)

        self.folder.join(ContestantRecord(name=contestant.name, identity=identity))
        wanted = {
            (contestant.name, item.id, sample): (
                item,
                (place.config.seed, "evaluation", identity, item.id, sample),
            )
            for item in items
            for sample in range(samples)
        }
        self._make(f"{contestant.name} answers {asked.name}", answer, wanted)

    def _make(
        self,
        title: str,
        sample: Callable[[Item, Key], Awaitable[Rollout]],
        wanted: Mapping[Place, tuple[Item, Key]],
    ) -> None:
        """The key of an answer says who gives it: equal weights give equal ones."""
        settled = {
            score.place
            for score in stream_records(self.folder.scores, AnswerScore)
            if is_settled(score.verdicts)
        }

        def lacking(answer: Answer, item: Item) -> list[tuple[Scorer, Judge | None]]:
            """Every scorer of an item with every judge, a rule alone, that has not settled this answer."""
            return [
                (scorer, judge)
                for scorer in self.asked.scorers_of(item)
                for judge in (self.judges if scorer.asks_judge else [None])
                if (answer.id, scorer.name, "" if judge is None else judge.identity) not in settled
            ]

        # Only answers that lack a score are held: whole episodes are long.
        answered: dict[Place, Answer | None] = {
            answer.place: answer if lacking(answer, wanted[answer.place][0]) else None
            for answer in stream_records(self.folder.answers, Answer)
            # Making another one again would give the same: engines come back, a question stays too long.
            if answer.place in wanted and answer.rollout.fault in (None, RolloutFault.PROMPT)
        }
        missing = [each for each in wanted if answered.get(each, each) is not None]
        episodes = asyncio.Semaphore(self.in_flight)
        with Appender(self.folder.answers) as answers, Appender(self.folder.scores) as scores:

            async def make(place: Place) -> None:
                (item, key), answer = wanted[place], answered.get(place)
                if answer is None:
                    async with episodes:
                        answer = Answer.of(await sample(item, key), *place)
                        await asyncio.to_thread(answers.append, answer)
                asked = lacking(answer, item)
                await asyncio.gather(*(score(item, answer, key, *each) for each in asked))

            async def score(
                item: Item, answer: Answer, key: Key, scorer: Scorer, judge: Judge | None
            ) -> None:
                made = await score_answer(scorer, item, answer, judge=judge, key=(*key, scorer.name))
                await asyncio.to_thread(scores.append, made)

            complete(title, missing, make, progress=self.place.progress, total=len(wanted))
        self.place.progress.end(f"{len(wanted):,} answers")

    def _compare(self) -> None:
        """Judge the first sample of all answers to every item beside those of the others, unless that is settled."""
        names = [contestant.name for contestant in self.contestants]
        answers: dict[str, dict[str, Rollout]] = {name: {} for name in names}
        for answer in stream_records(self.folder.answers, Answer):
            if answer.checkpoint in answers and answer.sample == 0:
                answers[answer.checkpoint][answer.item_id] = answer.rollout
        found = pairs(self.asked.items, answers, by_criterion=self.by_criterion)
        asked = [(judge, pair) for judge in self.judges for pair in found]
        items, progress = {item.id: item for item in self.asked.items}, self.place.progress
        known = {
            each.place
            for each in stream_records(self.folder.comparisons, PairVerdict)
            if is_settled([each.verdict])
        }
        missing = [(judge, pair) for judge, pair in asked if (*pair.place, judge.identity) not in known]
        title, total = f"{len(names)} checkpoints beside each other", len(asked)
        with Appender(self.folder.comparisons) as comparisons:

            async def ask(each: tuple[Judge, Pairing]) -> None:
                judge, pairing = each
                made = await judge_pair(judge, items[pairing.item_id], pairing)
                await asyncio.to_thread(comparisons.append, made)

            complete(title, missing, ask, progress=progress, total=total, in_flight=self.in_flight)
        progress.end(f"{total:,} comparisons")


def is_settled(verdicts: Sequence[Verdict]) -> bool:
    """Whether asking again would only be paid again: what a judge wrote and nobody could read stays so."""
    return not any(verdict.fault in _PASSING for verdict in verdicts)


def given_identity(path: Path) -> str:
    """Names the answers by what is in their file."""
    return f"{path.stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


def read_given_answers(path: Path) -> dict[str, str]:
    """The answers by item id. Raises ConfigError with file, line and field."""
    found: dict[str, str] = {}
    for row in read_rows(path):
        item = row.text("id")
        if item in found:
            raise row.wrong("id", f"{item} occurs twice; an item has one given answer")
        found[item] = "" if row.values.get("answer") == "" else row.text("answer")
    return found


def finish(folder: EvaluationFolder, loaded: Benchmark, *, seed: int) -> EvaluationResult:
    """Put everything in order and write what readers need; `result.json` last.

    Contestant by contestant, item by item, sample by sample; of a record that was made twice the last one stays.
    """
    contestants = [each.name for each in stream_records(folder.contestants, ContestantRecord)]
    items = {item.id: number for number, item in enumerate(loaded.items)}
    settle_lines(
        folder.answers,
        Answer,
        lambda each: (contestants.index(each.checkpoint), items[each.item_id], each.sample),
        ("id", "item_id"),
    )
    row = {answer.id: number for number, answer in enumerate(stream_records(folder.answers, Answer))}
    settle_lines(
        folder.scores,
        AnswerScore,
        lambda each: (row.get(each.answer_id, -1), each.place),
        ("answer_id", "item_id"),
    )
    settle_lines(
        folder.comparisons,
        PairVerdict,
        lambda each: (row.get(each.first_id, -1), row.get(each.second_id, -1), each.place),
        ("item_id",),
    )
    result = evaluation_result(
        loaded,
        contestants,
        stream_records(folder.answers, Answer),
        stream_records(folder.scores, AnswerScore),
        stream_records(folder.comparisons, PairVerdict),
        seed=seed,
    )
    spec = folder.read_spec()
    assert spec is not None
    write_atomic(folder.path / CARD, evaluation_card(folder.path, spec, result))
    write_atomic(folder.result, result.model_dump_json(indent=1) + "\n")
    return result


@dataclass(frozen=True)
class EvaluationRequest:
    """What `scope eval` is asked for; None is what the benchmark, or the run, says by itself."""

    benchmark: str
    checkpoints: tuple[str, ...]
    root: Path = Path("evaluations")
    out: Path | None = None
    items: int | None = None
    samples: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    thinking: bool | None = None
    pairwise: bool = False
    by_criterion: bool = False
    config: Path | None = None
    overrides: tuple[str, ...] = ()
    seed: int | None = None

    @property
    def folder(self) -> Path:
        """Where it is written: a folder of the benchmark's name, in which a leaderboard grows."""
        name = self.benchmark.partition("=")[0]
        return self.out or self.root / (Path(name).stem or name)


def open_evaluation(request: EvaluationRequest, progress: Progress) -> Evaluation:
    """Raises UserError, OutsideError."""
    contestants = list({each.name: each for each in map(read_contestant, request.checkpoints)}.values())
    if (request.pairwise or request.by_criterion) and len(contestants) < 2:
        raise ConfigError("--pairwise compares answers: name another checkpoint with --against")
    evaluation = evaluation_at(_run_of(request, contestants, progress), request, contestants)
    if request.by_criterion:
        _check_criteria(evaluation)
    return evaluation


def answer_benchmarks(run: Run, policy: Policy) -> None:
    """The benchmarks of a run (`compare.benchmarks`): a Solver of it answers them in the stage `compare`, one more line
    on each leaderboard below the run's `benchmarks/`. Raises as `Evaluation.run`.
    """
    for asked in run.config.compare.benchmarks:
        request = EvaluationRequest(asked, checkpoints=(), root=run.folder.path / "benchmarks")
        contestant = Contestant(f"{run.config.name}:{policy.name}", policy, run=run.folder.path)
        result = evaluation_at(run, request, [contestant]).run()
        headline = result.headline(contestant.name)
        if headline is not None:
            run.progress.say(
                f"{result.title}: {policy.name} {headline.value:.3f} over {headline.items} items"
            )


def evaluation_at(run: Run, request: EvaluationRequest, contestants: Sequence[Contestant]) -> Evaluation:
    """The benchmark where a run takes place."""
    loaded = load_benchmark(request.benchmark, run.documents, most=request.items, seed=run.config.seed)
    given = {name: getattr(request, name) for name in Decoding.model_fields}
    changes = {name: value for name, value in given.items() if value is not None}
    decoding = Decoding.model_validate(loaded.decoding.model_dump() | changes)
    return Evaluation(
        *placed(run, loaded, decoding),
        contestants,
        EvaluationFolder(request.folder),
        pairwise=request.pairwise or request.by_criterion,
        by_criterion=request.by_criterion,
    )


def _check_criteria(evaluation: Evaluation) -> None:
    """Raises ConfigError where nothing could be compared by one criterion alone."""
    if not any(item.criteria for item in evaluation.asked.items):
        raise ConfigError(
            f"--by-criterion: no item of {evaluation.asked.name} has a rubric; use --pairwise, or another benchmark"
        )
    for prompt in evaluation.place.pack.prompts:
        if prompt.role is PromptRole.COMPARE_ANSWERS and "criterion" not in prompt.uses:
            raise ConfigError(
                f"--by-criterion: {prompt.role}.md of the pack {evaluation.place.pack.domain.name} does not show the "
                "judge {{ criterion }}; add it (see prompts/wikipedia), or use --pairwise"
            )


def _run_of(request: EvaluationRequest, contestants: Sequence[Contestant], progress: Progress) -> Run:
    """The run whose documents, retriever and settings are used: that of the first checkpoint that has one."""
    options = {"seed": request.seed}
    home = next((each.run for each in contestants if each.run is not None), None)
    if home is None:
        config = load_config(request.config or DEFAULT_CONFIG, request.overrides, options=options)
        # Documents are cut by the tokenizer of the first model directory, if there is one.
        path = next((str(each.policy.path) for each in contestants if each.policy), config.model.path)
        model = config.model.model_copy(update={"path": path})
        return open_run(config.model_copy(update={"model": model}), request.folder / ".run", progress)
    if request.config is not None:
        raise ConfigError(f"--config: {home} has settings of its own; change them with --set")
    folder = RunFolder(home)
    config = load_config(folder.config, request.overrides, options=options)
    return Run(config, folder, with_judge_prompts(load_pack(folder.prompts), config.judge), progress)
