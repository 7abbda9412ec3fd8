"""What a warm start learns before iteration 1: rollouts that a run accepted, or trajectories of a stronger model.

The corpus keeps text, because token ids depend on the tokenizer. So `replay` runs an episode again with the recorded
texts as its samples and the recorded passages as its search results: prompts, masks and turn ends come out as in
sampling, for whatever policy is trained on it. A rollout that does not read back as it was recorded is refused.

Trajectories from outside are JSON lines of chat messages (docs/training.md, Warm start). The policy's own chat template
writes every conversation, so that system prompt, tools and calls look as when it is served. Loss is on what the
assistant says, the end of its turn included. Turns are one row as long as the template continues the conversation;
where it rewrites history (Qwen3 drops earlier thinking), a new row begins.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from scope_selfplay.corpus import TaskSource
from scope_selfplay.dialects import Dialect
from scope_selfplay.episodes import Episode, PolicyFormat, run_episode
from scope_selfplay.errors import CorpusError, InferenceError, SearchError, UserError
from scope_selfplay.inference import Generate, Sample, ids_of_turn
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.keys import Key
from scope_selfplay.run import Run
from scope_selfplay.schemas import Finish, Grade, Role, Rollout, RolloutStatus, Turn
from scope_selfplay.stages.stage_runner import accepted_in
from scope_selfplay.stages.training import lineage_of
from scope_selfplay.store import Stage, StageFolder, read_records
from scope_selfplay.store.card import Lineage
from scope_selfplay.store.human import HumanFolder
from scope_selfplay.store.weights import Policy, weights_hash
from scope_selfplay.tools import SEARCH, ToolResult, UseTool
from scope_selfplay.tools.showing import replayed
from scope_selfplay.training.rows import TrainingRow, rows_from
from scope_selfplay.training.sft import WarmStart, sft


def warm_start(run: Run, out: Path, *, min_score: float, settings: WarmStart) -> list[float]:
    """Train M0 on the accepted rollouts of all of a run's iterations. Returns the losses.

    Raises UserError where `out` is taken, CorpusError where nothing is left to learn from.
    """
    if out.exists():
        raise UserError(f"{out}: exists already; give another --out")
    found = warm_start_rows(run, min_score=min_score)
    run.progress.say(
        f"{found.rollouts} rollouts, {len(found.rows)} rows; {found.refused} do not read back in "
        f"{run.config.model.dialect}"
    )
    lineage = lineage_of(run, "warm start", 0, "M0")
    return sft(found.rows, run.base, out, settings=settings, codec=run.codec, lineage=lineage)


@dataclass(frozen=True)
class WarmStartRows:
    """Rows to learn from; `refused` rollouts do not read back in this family as they were recorded."""

    rows: list[TrainingRow]
    rollouts: int
    refused: int


def warm_start_rows(run: Run, *, min_score: float) -> WarmStartRows:
    """The Solver rollouts that scored at least `min_score` on accepted tasks, and the Challenger's that wrote them;
    policies' and people's. Held-out tasks are left out.
    """
    rows: list[TrainingRow] = []
    rollouts = refused = 0
    human, made = HumanFolder(run.folder), range(1, run.config.iterations + 1)
    folders = [run.folder.stage(iteration, Stage.TASKS) for iteration in made]
    for tasks in [*folders, *(human.tasks(iteration) for iteration in human.iterations() if iteration)]:
        for policy_format, recorded, episode in _recorded(run, tasks, min_score):
            played = replay(recorded, episode, policy_format, end=run.codec.end_of_turn)
            if played is None:
                refused += 1
                continue
            rollouts += 1
            rows += rows_from(played, per_turn=policy_format.dialect.drops_earlier_thinking).rows
    return WarmStartRows(rows, rollouts, refused)


def _recorded(
    run: Run, folder: StageFolder, min_score: float
) -> Iterator[tuple[PolicyFormat, Rollout, Episode]]:
    recorded = read_records(folder.rollouts, Rollout)
    rollouts = {rollout.id: rollout for rollout in recorded if rollout.status is RolloutStatus.FINISHED}
    scores = {grade.rollout_id: grade.score for grade in read_records(folder.grades, Grade)}
    documents = {document.id: document for document in run.documents}
    formats = {role: run.policy_format(Policy("M0", run.base), role) for role in Role}
    for candidate in accepted_in(folder):
        task = candidate.task
        assert task is not None
        for name in candidate.rollout_ids:
            rollout, score = rollouts.get(name), scores.get(name)
            if rollout and score is not None and score >= min_score:
                episode = run.context.solver_episode(formats[Role.SOLVER], (name,), task)
                yield formats[Role.SOLVER], rollout, episode
        writer = rollouts.get(candidate.challenger_rollout_id)
        document = documents.get(candidate.provenance.document_id)
        if writer and document:
            turns = task.search_turns if task.assigned_turns is None else task.assigned_turns
            source = TaskSource(document, task.type, turns)
            episode = run.context.challenger_episode(formats[Role.CHALLENGER], (writer.id,), source)
            yield formats[Role.CHALLENGER], writer, episode


def replay(recorded: Rollout, episode: Episode, policy_format: PolicyFormat, *, end: int) -> Rollout | None:
    """The rollout with ids, or None where this policy's family would read it otherwise than it was recorded.

    `end` is the token that ends a turn where no stop text does.
    """
    recording = _RecordedTurns(recorded, policy_format, end)
    rollout = asyncio.run(run_episode(episode, recording, recording, key=("replay", recorded.id)))
    same = (
        rollout.status is recorded.status
        and (rollout.answer, rollout.task) == (recorded.answer, recorded.task)
        and list(map(_as_read, rollout.turns)) == list(map(_as_read, recorded.turns))
    )
    return rollout if same else None


def _as_read(turn: Turn) -> tuple[object, ...]:
    return turn.text, turn.query, turn.call and (turn.call.tool, turn.call.arguments, turn.call.fault)


class _RecordedTurns:
    """Engine and tools in one: gives back, turn by turn, what is recorded."""

    def __init__(self, recorded: Rollout, policy_format: PolicyFormat, end: int) -> None:
        self.identity = self.index = recorded.index
        self._turns, self._codec, self._end = recorded.turns, policy_format.codec, end
        self._turn = -1

    async def generate(self, request: Generate, key: Key) -> Sample:
        self._turn += 1
        if self._turn >= len(self._turns):
            raise InferenceError("the recording is over")
        ids = ids_of_turn(self._codec, request, self._turns[self._turn].text, end=self._end)
        finish = Finish.STOP if len(ids) <= request.max_tokens else Finish.LENGTH
        return Sample(ids[: request.max_tokens], None, finish)

    async def use(self, request: UseTool) -> ToolResult:
        turn = self._turns[self._turn]
        called = SEARCH.name if turn.query is not None else turn.call and turn.call.tool
        if called != request.tool or (turn.query is not None and turn.query != request.arguments["query"]):
            raise SearchError("the recording called for something else")
        return replayed(turn)


def learn_from_trajectories(
    files: Sequence[Path],
    start: Path,
    out: Path,
    *,
    family: Dialect,
    max_length: int,
    settings: WarmStart,
    say: Callable[[str], None],
) -> list[float]:
    """Train a model on trajectories from outside. Returns the losses; none where `out` is there already.

    Raises CorpusError for what is not a trajectory, or where none is left.
    """
    if out.exists():
        say(f"{out}: is there already")
        return []
    base = policy_path(str(start))
    codec = ChatCodec.load(base)
    found = trajectory_rows(files, codec, family, max_length=max_length)
    say(
        f"{found.trajectories} trajectories, {len(found.rows)} rows; {found.refused} are not written as one "
        f"conversation by the chat template or hold special tokens, {found.unread} hold calls that {family.name} "
        f"does not read, {found.too_long} exceed {max_length} tokens"
    )
    lineage = Lineage(role="warm start", base_hash=weights_hash(base), start=str(start))
    return sft(found.rows, base, out, settings=settings, codec=codec, lineage=lineage)


@dataclass(frozen=True)
class TrajectoryRows:
    """What gave no rows: `refused` is None of `rows_of`, `unread` its error; `too_long` exceeds the limit."""

    rows: list[TrainingRow]
    trajectories: int
    refused: int
    unread: int
    too_long: int


def trajectory_rows(
    files: Sequence[Path], codec: ChatCodec, family: Dialect, *, max_length: int
) -> TrajectoryRows:
    """The rows of all trajectories in these files, none longer than `max_length` tokens: nothing is cut."""
    rows: list[TrainingRow] = []
    learnt = refused = unread = too_long = 0
    for trajectory in read_trajectories(files):
        try:
            found = rows_of(trajectory, codec, family)
        except UnreadCallError:
            unread += 1
            continue
        if found is None:
            refused += 1
        elif any(row.length > max_length for row in found):
            too_long += 1
        else:
            learnt += 1
            rows += found
    return TrajectoryRows(rows, learnt, refused, unread, too_long)


class _Function(BaseModel):
    name: str
    arguments: dict[str, Any] | str = {}

    def read_arguments(self) -> object:
        """As an object: templates write it as JSON, and would quote a text once more."""
        if not isinstance(self.arguments, str):
            return self.arguments
        try:
            return json.loads(self.arguments)
        except ValueError:
            return self.arguments


class _ToolCall(BaseModel):
    function: _Function


class ChatMessage(BaseModel, frozen=True):
    """One message; other keys than these are left out."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    reasoning_content: str | None = None
    name: str | None = None
    tool_calls: tuple[_ToolCall, ...] = ()

    def as_template_has_it(self) -> Mapping[str, Any]:
        shown = self.model_dump(exclude_none=True, exclude={"tool_calls"})
        functions = [
            {"name": call.function.name, "arguments": call.function.read_arguments()}
            for call in self.tool_calls
        ]
        calls = {"tool_calls": [{"type": "function", "function": each} for each in functions]}
        return {"content": "", **shown, **(calls if functions else {})}


class Trajectory(BaseModel, frozen=True):
    """A conversation that ends with the assistant's answer, and the tools that it was offered."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[dict[str, Any], ...] = ()


def read_trajectories(files: Sequence[Path]) -> Iterator[Trajectory]:
    """Raises CorpusError with file and line for what is not a trajectory."""
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CorpusError(f"{file}: cannot be read ({error}); give JSON lines with `messages`") from None
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _read(line, f"{file}:{number}")


def _read(line: str, where: str) -> Trajectory:
    try:
        trajectory = Trajectory.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the line"
        raise CorpusError(
            f"{where}: {place}: {first['msg']}; expected a JSON object with `messages`, each with a role (system, "
            "user, assistant or tool) and a content or tool_calls"
        ) from None
    if not trajectory.messages or trajectory.messages[-1].role != "assistant":
        raise CorpusError(
            f"{where}: the last message is not the assistant's; a trajectory ends with its answer"
        )
    return trajectory


class UnreadCallError(Exception):
    """A turn with calls that is not one search in its dialect."""


def rows_of(trajectory: Trajectory, codec: ChatCodec, family: Dialect) -> list[TrainingRow] | None:
    """None where the template does not let a turn follow its prompt or leaves a call out, or where a
    text holds a special token. Raises UnreadCallError for a call that rollouts of this family would not make.
    """
    text = trajectory.model_dump_json()
    if any(str(token) in text for token in codec.tokenizer.all_special_tokens):
        return None
    if family.calls is None:
        trajectory = _with_tags_of(family, trajectory)
    end = str(codec.tokenizer.convert_ids_to_tokens(codec.end_of_turn))
    rows: list[_Row] = []
    for place, message in enumerate(trajectory.messages):
        if message.role != "assistant":
            continue
        prompt = _render(trajectory, codec, place, begins_turn=True)
        whole = _render(trajectory, codec, place + 1, begins_turn=False)
        # The policy samples up to the end of its turn; templates add a line break behind it.
        said, ended, _ = whole.removeprefix(prompt).rpartition(end)
        if not (whole.startswith(prompt) and ended):
            return None
        if not all(call.function.name in said for call in message.tool_calls):
            return None
        if message.tool_calls and not _is_one_search(prompt, said, message, family):
            raise UnreadCallError
        if not rows or not rows[-1].is_continued_by(prompt):
            rows.append(_Row(prompt, codec))
        rows[-1].say(prompt, said + end)
    return [row.as_training_row() for row in rows]


def _with_tags_of(family: Dialect, trajectory: Trajectory) -> Trajectory:
    """Thinking, calls and their results as an episode of a family has them whose tags no chat template writes."""
    messages = []
    for message in trajectory.messages:
        text = message.content or ""
        if message.role == "tool":
            shown = family.tool_response(text)
            messages.append(ChatMessage.model_validate({"role": family.tool_role, "content": shown}))
        elif message.role == "assistant":
            thought = f"<think>{message.reasoning_content}</think>\n" if message.reasoning_content else ""
            said = f"{thought}{text}{_search_of(message, family)}"
            messages.append(ChatMessage(role="assistant", content=said))
        else:
            messages.append(message)
    return Trajectory(messages=tuple(messages))


def _search_of(message: ChatMessage, family: Dialect) -> str:
    """The call of a turn, which must be one search, in the family's tags; empty for a turn without calls."""
    match [(call.function.name, call.function.read_arguments()) for call in message.tool_calls]:
        case []:
            return ""
        case [("search", {"query": str(query), **others})] if not others:
            with suppress(ValueError):
                return family.search_call(query)
    raise UnreadCallError


def _is_one_search(prompt: str, said: str, message: ChatMessage, family: Dialect) -> bool:
    """Whether a rollout goes on behind this turn: it ends at its first call, and reads no other name than `search`."""
    opened = "<think>" if family.template_opens_thinking and prompt.rstrip().endswith("<think>") else ""
    return len(message.tool_calls) == 1 and family.parse(opened + said).query is not None


def _render(trajectory: Trajectory, codec: ChatCodec, end: int, *, begins_turn: bool) -> str:
    return str(
        codec.tokenizer.apply_chat_template(
            [message.as_template_has_it() for message in trajectory.messages[:end]],
            tools=list(trajectory.tools) or None,
            tokenize=False,
            add_generation_prompt=begins_turn,
        )
    )


class _Row:
    """A conversation that grows: what was said in it is never encoded anew."""

    def __init__(self, prompt: str, codec: ChatCodec) -> None:
        self._codec, self._text = codec, prompt
        self._prompt_ids = list(codec.encode_tag(prompt))
        self._ids: list[int] = []
        self._mask: list[int] = []

    def is_continued_by(self, prompt: str) -> bool:
        return prompt.startswith(self._text)

    def say(self, prompt: str, said: str) -> None:
        for text, sampled in ((prompt.removeprefix(self._text), 0), (said, 1)):
            ids = self._codec.encode_tag(text)
            self._ids += ids
            self._mask += [sampled] * len(ids)
        self._text = prompt + said

    def as_training_row(self) -> TrainingRow:
        return TrainingRow(self._prompt_ids, self._ids, self._mask, [0.0] * len(self._ids))
