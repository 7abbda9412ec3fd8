"""SCOPE's Table 4: one Solver answers from another's searches, which tells retrieval and synthesis apart.

The turns that searched are replayed with what they found; the Solver that answers goes on from there. Further searches
of its own find nothing, so that the evidence is fixed.
"""

import asyncio
from collections.abc import Mapping, Sequence

from scope_selfplay.corpus import task_family
from scope_selfplay.engines import partner_of
from scope_selfplay.episodes import Episode, PolicyFormat, run_episode
from scope_selfplay.evaluation.held_out import breakdown, score_gains
from scope_selfplay.evaluation.pairings import CheckpointAnswers
from scope_selfplay.inference import Generate, PolicyModel, Sample
from scope_selfplay.keys import Key
from scope_selfplay.run import Run
from scope_selfplay.run_context import RunContext
from scope_selfplay.schemas import Candidate, Finish, Role, Rollout, Task, Turn
from scope_selfplay.stages.held_out import answer_tasks, answers_in, greedy_solver
from scope_selfplay.store import Stage, StageFolder, write_atomic
from scope_selfplay.store.ratings import CheckpointDifference, SwapRow, SwapTable
from scope_selfplay.store.weights import Policy
from scope_selfplay.tools import ToolResult, UseTool
from scope_selfplay.tools.showing import replayed

_NOTHING_MORE = ToolResult("Nothing more was found.", passages=())


def swap_answers(
    run: Run,
    iteration: int,
    context: RunContext,
    candidates: Sequence[Candidate],
    solvers: tuple[CheckpointAnswers, CheckpointAnswers],
) -> None:
    """Write `swaps.json`: an earlier Solver and the newest, whole, and each with the other's searches."""
    other = run.config.compare.swap_with
    assert other is not None
    folder = run.folder.stage(iteration, Stage.COMPARE)
    earlier, newest = solvers
    pairs = [(earlier, run.solver(iteration), newest.name), (newest, run.solver(other), earlier.name)]
    if partner_of(run.config, Role.SOLVER) is not None:
        run.progress.say(f"{earlier.name} is not served here: only {newest.name} answers from its searches")
        pairs = pairs[:1]
    found: dict[tuple[str, str], CheckpointAnswers] = {(each.name, each.name): each for each in solvers}
    for searched, policy, name in pairs:
        part = StageFolder(folder.path / "swapped" / f"{searched.name}-searches-{name}-answers")
        part.path.mkdir(parents=True, exist_ok=True)
        run.progress.begin(f"{name} answers from the searches of {searched.name}", len(candidates))
        key = (*run.key(iteration, Stage.COMPARE), "swap", searched.name, name)
        asyncio.run(_answer(run, context, candidates, part, policy, searched.rollouts, key))
        found[searched.name, name] = answers_in(part, f"{searched.name}+{name}")
        run.progress.end("")
    table = swap_table(run, candidates, found, whole=earlier.name)
    write_atomic(folder.path / "swaps.json", table.model_dump_json(indent=1) + "\n")
    for row in table.rows:
        gain = "" if row.gain is None else f" ({row.gain.value:+.3f}{_interval(row.gain)})"
        run.progress.say(f"searches {row.search}, answers {row.answer}: {row.score.mean_score:.3f}{gain}")


def _interval(gain: CheckpointDifference) -> str:
    return "" if gain.low is None or gain.high is None else f" [{gain.low:+.3f}, {gain.high:+.3f}]"


def swap_table(
    run: Run,
    candidates: Sequence[Candidate],
    found: Mapping[tuple[str, str], CheckpointAnswers],
    *,
    whole: str,
) -> SwapTable:
    """A row per mixture, with its gain over the earlier Solver alone, paired by task."""
    settings = {"seed": run.config.seed, "resamples": run.config.compare.resamples}
    gain = score_gains(list(found.values()), **settings)
    rows = []
    for (search, answer), answers in found.items():
        score = breakdown(candidates, answers.grades, family=task_family, **settings).get("all")
        if score is not None:
            alone = (search, answer) == (whole, whole)
            difference = None if alone else gain(answers.name, whole)
            rows.append(SwapRow(search=search, answer=answer, score=score, gain=difference))
    return SwapTable(rows=tuple(sorted(rows, key=lambda row: (row.search, row.answer))))


async def _answer(
    run: Run,
    context: RunContext,
    candidates: Sequence[Candidate],
    folder: StageFolder,
    policy: Policy,
    searched: Mapping[str, Rollout],
    key: Key,
) -> None:
    engine, policy_format = greedy_solver(run, policy)

    async def sample(task: Task, key: Key) -> Rollout:
        episode = context.solver_episode(policy_format, key, task)
        return await answered_from(searched[task.id], episode, engine, policy_format, key=key)

    await answer_tasks(run, context, candidates, folder, sample, key=key)


async def answered_from(
    searched: Rollout, episode: Episode, engine: PolicyModel, policy_format: PolicyFormat, *, key: Key
) -> Rollout:
    """A Solver's episode whose first turns are the searches of another rollout."""
    replay = Replay(searched, engine, policy_format)
    rollout = await run_episode(episode, replay, replay, key=key)
    return rollout.model_copy(update={"index": searched.index})


class Replay:
    """An engine and tools in one: the calls of a rollout again, then the engine, for which nothing more is found."""

    def __init__(self, rollout: Rollout, engine: PolicyModel, policy_format: PolicyFormat) -> None:
        self._turns = searches_of(rollout)
        self._engine = engine
        self._format = policy_format
        self._sampled = self._called = 0

    index = ""

    @property
    def identity(self) -> str:
        return self._engine.identity

    async def generate(self, request: Generate, key: Key) -> Sample:
        if self._sampled == len(self._turns):
            return await self._engine.generate(request, key)
        text = self._turns[self._sampled].text
        self._sampled += 1
        codec = self._format.codec
        if codec.decode(request.prompt_ids[-4:]).rstrip().endswith("<think>"):
            # The template has opened the thinking, which the recorded text begins with.
            text = text.removeprefix("<think>")
        ids = codec.encode_tag(text)
        return Sample(ids, (0.0,) * len(ids), Finish.STOP)

    async def use(self, request: UseTool) -> ToolResult:
        self._called += 1
        called = [turn for turn in self._turns if turn.uses_tool]
        return replayed(called[self._called - 1]) if self._called <= len(called) else _NOTHING_MORE


def searches_of(rollout: Rollout) -> list[Turn]:
    """The turns before the first that called nothing, or whose call found no time to be answered."""
    turns: list[Turn] = []
    for number, turn in enumerate(rollout.turns):
        answered = number + 1 < len(rollout.turns) or bool(turn.passages) or turn.call is not None
        if (turn.query is None and turn.call is None) or not answered:
            break
        turns.append(turn)
    return turns
