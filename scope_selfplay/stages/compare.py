"""The stage `compare`: checkpoints answer the held-out tasks and are compared."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from scope_selfplay.base.intervals import estimate_mean, shown
from scope_selfplay.base.values import Candidate, Comparison, Grade, Key, Role, Rollout, Task, Turn
from scope_selfplay.evaluation.evaluate import answer_benchmarks, complete
from scope_selfplay.evaluation.pairs import Answers, Pairing, balanced_pairs, compare_pair
from scope_selfplay.evaluation.ratings import GradedAnswers, Grades, breakdown, rate, score_gains
from scope_selfplay.judge.protocol import PairQuestion, Style, grade_answer
from scope_selfplay.policy.episodes import Episode, Player, Replay, run_episode
from scope_selfplay.run.candidate import RunContext
from scope_selfplay.run.run import Run, partner_of
from scope_selfplay.stages.work import accepted_in, check_budget, run_stage
from scope_selfplay.store.columns import append_records
from scope_selfplay.store.files import point_at, read_records, write_atomic, write_records
from scope_selfplay.store.folder import Stage, StageFolder
from scope_selfplay.store.ratings import SwapRow, SwapTable, kept_solver

Sampler = Callable[[Task, Key], Awaitable[Rollout]]
"""What answers a held-out task."""


def compare(run: Run, iteration: int) -> None:
    """The stage `compare`: S_t answers the held-out tasks and is compared with every checkpoint before it."""

    def work(folder: StageFolder) -> None:
        held_out = accepted_in(run.folder.stage(0, Stage.TASKS))
        _Comparing(run, iteration, folder, run.stage_context(iteration, Stage.COMPARE), held_out).work()

    run_stage(run, iteration, Stage.COMPARE, work)
    if (kept := kept_solver(run.folder)) is not None:
        # It need not be the newest one.
        target = run.folder.path / kept.checkpoint if kept.checkpoint else run.base
        if not point_at(run.folder.best, target):
            run.progress.say(f"{run.folder.best} cannot be made a link; the Solver that was kept is {target}")


@dataclass(frozen=True)
class _Comparing:
    """What the stage works on in an iteration; what an earlier try has made without a fault is not made again."""

    run: Run
    iteration: int
    folder: StageFolder
    context: RunContext
    candidates: Sequence[Candidate]
    """The held-out tasks; one that is given twice has one answer."""

    def work(self) -> None:
        run, iteration, context = self.run, self.iteration, self.context
        policy, key = run.solver(iteration), run.key(iteration, Stage.COMPARE)
        solver = run.player(policy, Role.SOLVER, greedy=True)
        folders = [run.folder.stage(number, Stage.COMPARE) for number in range(iteration + 1)]
        title = f"iteration {iteration}: compare {policy.name} on held-out tasks"
        self.answer(title, self.folder, lambda task, key: context.answer(solver, key, task), key=key)
        contestants = {run.solver(number).name: answers_in(each) for number, each in enumerate(folders)}
        rollouts = {name: each.rollouts for name, each in contestants.items()}
        pairs = balanced_pairs(policy.name, rollouts, key=key, both_orders=run.config.compare.both_orders)
        if pairs:
            self.judge(f"iteration {iteration}: judge {policy.name} against those before", pairs)
        ratings = rate(
            self.candidates,
            contestants,
            [comparison for each in folders for comparison in read_records(each.comparisons, Comparison)],
            starts=[run.promoted_solver(number).name for number in range(iteration)],
            settings=run.config.compare,
            seed=run.config.seed,
        )
        write_atomic(self.folder.ratings, ratings.model_dump_json(indent=1) + "\n")
        run.progress.say(f"{ratings.decision.value}: {ratings.reason}")
        answer_benchmarks(run, policy)
        other = run.config.compare.swap_with
        if other is not None and other < iteration:
            self.swap(other, contestants)

    def answer(self, title: str, folder: StageFolder, sample: Sampler, *, key: Key) -> Grades:
        """A graded answer per task, recorded as they come and put in the order of the tasks in the end."""
        run, context = self.run, self.context
        tasks = {each.task.id: (each.task, each.rubric) for each in self.candidates if each.task}
        whole = {grade.rollout_id for grade in read_records(folder.grades, Grade) if grade.is_whole}
        answered = {each.subject_id for each in read_records(folder.rollouts, Rollout) if each.id in whole}

        async def answer(name: str) -> None:
            (task, rubric), own = tasks[name], (*key, name)
            assert rubric is not None
            rollout = await sample(task, own)
            grade = await grade_answer(context.judge, task, rubric, rollout, key=own)
            run.check_outages()
            append_records(folder, [rollout, grade])
            check_budget(run, context.judge)

        missing = [name for name in tasks if name not in answered]
        complete(title, missing, answer, progress=run.progress, total=len(tasks))
        made = answers_in(folder)
        write_records(folder.rollouts, [made.rollouts[name] for name in tasks])
        write_records(folder.grades, [made.grades[name] for name in tasks])
        scores = [grade.score for grade in made.grades.values() if grade.score is not None]
        run.progress.end(f"mean score {sum(scores) / len(scores):.3f}" if scores else "no answer has a score")
        return made.grades

    def judge(self, title: str, pairs: Sequence[Pairing]) -> None:
        """Judge every pairing once, in whatever order; the records are in that of the pairings."""
        by_task = {candidate.task.id: candidate for candidate in self.candidates if candidate.task}
        file = self.folder.comparisons

        def judged() -> dict[tuple[str, str], Comparison]:
            return {(each.first_id, each.second_id): each for each in read_records(file, Comparison)}

        async def judge(pairing: Pairing) -> None:
            candidate = by_task[pairing.item_id]
            assert candidate.task is not None
            pair = (pairing.first, pairing.second)
            question = PairQuestion(candidate.task, *pair, style=Style.SCORES, rubric=candidate.rubric)
            append_records(self.folder, [await compare_pair(self.context.judge, question)])
            check_budget(self.run, self.context.judge)

        paid = {ids for ids, comparison in judged().items() if comparison.outcome is not None}
        missing = [pair for pair in pairs if (pair.first.id, pair.second.id) not in paid]
        complete(title, missing, judge, progress=self.run.progress, total=len(pairs))
        self.run.progress.end(f"{len(pairs)} pairs of answers")
        found = judged()
        write_records(file, [found[pair.first.id, pair.second.id] for pair in pairs])

    def swap(self, other: int, contestants: Mapping[str, GradedAnswers]) -> None:
        """Write `swaps.json`: S_`other` and the newest, whole, and each with the other's searches."""
        run, context = self.run, self.context
        earlier, newest = run.solver(other), run.solver(self.iteration)
        pairs = [(earlier, newest), (newest, earlier)]
        if partner_of(run.config, Role.SOLVER) is not None:
            run.progress.say(
                f"{earlier.name} is not served here: only {newest.name} answers from its searches"
            )
            pairs = pairs[:1]
        found = {(each.name, each.name): contestants[each.name].grades for each in (earlier, newest)}
        for searched, policy in pairs:
            part = self.folder.path / "swapped" / f"{searched.name}-searches-{policy.name}-answers"
            part.mkdir(parents=True, exist_ok=True)
            solver = run.player(policy, Role.SOLVER, greedy=True)
            searches = contestants[searched.name].rollouts

            def sample(
                task: Task, key: Key, solver: Player = solver, searches: Answers = searches
            ) -> Awaitable[Rollout]:
                episode = context.solver_episode(solver.policy_format, key, task)
                return answered_from(searches[task.id], episode, solver, key=key)

            title = f"{policy.name} answers from the searches of {searched.name}"
            key = (*run.key(self.iteration, Stage.COMPARE), "swap", searched.name, policy.name)
            found[searched.name, policy.name] = self.answer(title, StageFolder(part), sample, key=key)
        table = self.swap_table(found, whole=earlier.name)
        write_atomic(self.folder.path / "swaps.json", table.model_dump_json(indent=1) + "\n")
        for row in table.rows:
            gain = "" if row.gain is None else f" ({shown(row.gain, sign=True)})"
            run.progress.say(f"searches {row.search}, answers {row.answer}: {row.score.value:.3f}{gain}")

    def swap_table(self, found: Mapping[tuple[str, str], Grades], *, whole: str) -> SwapTable:
        """A row per mixture, with its gain over the earlier Solver alone, paired by task."""
        estimate = partial(estimate_mean, seed=self.run.config.seed)
        gain = score_gains({"+".join(mixed): grades for mixed, grades in found.items()}, estimate)
        rows = []
        for (search, answer), grades in sorted(found.items()):
            score = breakdown(self.candidates, grades, estimate).get("all")
            if score is not None:
                alone = (search, answer) == (whole, whole)
                difference = None if alone else gain(f"{search}+{answer}", f"{whole}+{whole}")
                rows.append(SwapRow(search=search, answer=answer, score=score, gain=difference))
        return SwapTable(rows=tuple(rows))


def answers_in(folder: StageFolder) -> GradedAnswers:
    """What a checkpoint, or a mixture of two, answered."""
    rollouts = read_records(folder.rollouts, Rollout)
    grades = {grade.rollout_id: grade for grade in read_records(folder.grades, Grade)}
    return GradedAnswers(
        {rollout.subject_id: rollout for rollout in rollouts},
        {rollout.subject_id: grades[rollout.id] for rollout in rollouts},
    )


async def answered_from(searched: Rollout, episode: Episode, solver: Player, *, key: Key) -> Rollout:
    """A Solver's episode whose first turns are the searches of another rollout."""
    replay = Replay(searches_of(searched), solver.policy_format.codec, engine=solver.engine)
    rollout = await run_episode(episode, replay, replay, key=key)
    return rollout.model_copy(update={"index": searched.index})


def searches_of(rollout: Rollout) -> list[Turn]:
    """The turns before the first that called nothing, or whose call found no time to be answered."""
    turns: list[Turn] = []
    for number, turn in enumerate(rollout.turns):
        answered = number + 1 < len(rollout.turns) or bool(turn.passages) or turn.call is not None
        if (turn.query is None and turn.call is None) or not answered:
            break
        turns.append(turn)
    return turns
