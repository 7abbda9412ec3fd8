"""What a warm start learns before iteration 1: rollouts that a run accepted, or trajectories of a stronger model.

The corpus keeps text, because token ids depend on the tokenizer. So `replay` runs an episode again with the recorded
texts as its samples and the recorded passages as its search results: prompts, masks and turn ends come out as in
sampling, for whatever policy is trained on it. A rollout that does not read back as it was recorded is refused.

Trajectories from outside are JSON lines of chat messages (docs/how/training.md, Warm start). The policy's own chat
template writes every conversation, so that system prompt, tools and calls look as when it is served. Loss is on what
the assistant says, the end of its turn included. Turns are one row as long as the template continues the conversation;
where it rewrites history (Qwen3 drops earlier thinking), a new row begins.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel

from scope_selfplay.base.errors import ConfigError, UserError
from scope_selfplay.base.values import Grade, Role, Rollout, RolloutStatus, Turn
from scope_selfplay.corpus.sample import TaskSource
from scope_selfplay.dialects.families import Dialect
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.net.json import given_lines
from scope_selfplay.policy.episodes import Episode, PolicyFormat, Replay, run_episode
from scope_selfplay.run.run import Run
from scope_selfplay.stages.train import lineage_of
from scope_selfplay.stages.work import accepted_in
from scope_selfplay.store.card import Lineage
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import Policy, Stage, StageFolder, weights_hash
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
        f"{found.learnt} rollouts, {len(found.rows)} rows; {found.refused} do not read back in "
        f"{run.config.model.dialect}"
    )
    lineage = lineage_of(run, "warm start", 0, "M0")
    return sft(found.rows, run.base, out, settings=settings, codec=run.codec, lineage=lineage)


@dataclass
class LearntRows:
    """Rows to learn from, and what gave none."""

    rows: list[TrainingRow] = field(default_factory=list)
    learnt: int = 0
    """Rollouts, or trajectories."""
    refused: int = 0
    """Rollouts that do not read back in this family as they were recorded; trajectories of which `rows_of` is None."""
    unread: int = 0
    """Trajectories with calls that this family does not read."""
    too_long: int = 0


def warm_start_rows(run: Run, *, min_score: float) -> LearntRows:
    """The Solver rollouts that scored at least `min_score` on accepted tasks, and the Challenger's that wrote them.
    Held-out tasks are left out.
    """
    found = LearntRows()
    for iteration in range(1, run.config.iterations + 1):
        tasks = run.folder.stage(iteration, Stage.TASKS)
        for policy_format, recorded, episode in _recorded(run, tasks, min_score):
            played = replay(recorded, episode, policy_format)
            if played is None:
                found.refused += 1
                continue
            found.learnt += 1
            found.rows += rows_from(played, per_turn=policy_format.dialect.drops_earlier_thinking)
    return found


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


def replay(recorded: Rollout, episode: Episode, policy_format: PolicyFormat) -> Rollout | None:
    """The rollout with ids, or None where this policy's family would read it otherwise than it was recorded."""
    recording = Replay(recorded.turns, policy_format.codec, index=recorded.index)
    rollout = asyncio.run(run_episode(episode, recording, recording, key=("replay", recorded.id)))
    same = (
        rollout.status is recorded.status
        and (rollout.answer, rollout.task) == (recorded.answer, recorded.task)
        and list(map(_as_read, rollout.turns)) == list(map(_as_read, recorded.turns))
    )
    return rollout if same else None


def _as_read(turn: Turn) -> tuple[object, ...]:
    return turn.text, turn.query, turn.call and (turn.call.tool, turn.call.arguments, turn.call.fault)


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

    Raises ConfigError for what is not a trajectory, CorpusError where none is left.
    """
    if out.exists():
        say(f"{out}: is there already")
        return []
    base = policy_path(str(start))
    codec = ChatCodec.load(base)
    found = trajectory_rows(files, codec, family, max_length=max_length)
    say(
        f"{found.learnt} trajectories, {len(found.rows)} rows; {found.refused} are not written as one "
        f"conversation by the chat template or hold special tokens, {found.unread} hold calls that {family.name} "
        f"does not read, {found.too_long} exceed {max_length} tokens"
    )
    lineage = Lineage(role="warm start", base_hash=weights_hash(base), start=str(start))
    return sft(found.rows, base, out, settings=settings, codec=codec, lineage=lineage)


def trajectory_rows(
    files: Sequence[Path], codec: ChatCodec, family: Dialect, *, max_length: int
) -> LearntRows:
    """The rows of all trajectories in these files, none longer than `max_length` tokens: nothing is cut."""
    found = LearntRows()
    for trajectory in read_trajectories(files):
        try:
            rows = rows_of(trajectory, codec, family)
        except UnreadCallError:
            found.unread += 1
            continue
        if rows is None:
            found.refused += 1
        elif any(row.length > max_length for row in rows):
            found.too_long += 1
        else:
            found.learnt += 1
            found.rows += rows
    return found


def _as_object(arguments: Any) -> Any:
    """Templates write arguments as JSON, and would quote a text once more."""
    with suppress(ValueError):
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    return arguments


class _Function(BaseModel):
    name: str
    arguments: Annotated[dict[str, Any] | str, AfterValidator(_as_object)] = {}


class _ToolCall(BaseModel):
    type: Literal["function"] = "function"
    function: _Function


class ChatMessage(BaseModel, frozen=True):
    """One message; other keys than these are left out."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    reasoning_content: str | None = None
    name: str | None = None
    tool_calls: tuple[_ToolCall, ...] = ()

    def as_template_has_it(self) -> Mapping[str, Any]:
        shown = self.model_dump(exclude_none=True, exclude=None if self.tool_calls else {"tool_calls"})
        return {"content": "", **shown}


class Trajectory(BaseModel, frozen=True):
    """A conversation that ends with the assistant's answer, and the tools that it was offered."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[dict[str, Any], ...] = ()


def read_trajectories(files: Sequence[Path]) -> Iterator[Trajectory]:
    """Raises ConfigError with file and line for what is not a trajectory."""
    expected = (
        "expected a JSON object with `messages`, each with a role (system, user, assistant or tool) and a content or "
        "tool_calls"
    )
    for file in files:
        for where, trajectory in given_lines(file, Trajectory, expected):
            if not trajectory.messages or trajectory.messages[-1].role != "assistant":
                raise ConfigError(
                    f"{where}: the last message is not the assistant's; a trajectory ends with its answer"
                )
            yield trajectory


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
    rows: list[TrainingRow] = []
    # Of the last row: what was said in it is never encoded anew.
    known = ""
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
        if not rows or not prompt.startswith(known):
            rows.append(TrainingRow(list(codec.encode_tag(prompt)), [], [], []))
            known = prompt
        for text, sampled in ((prompt.removeprefix(known), 0), (said + end, 1)):
            ids = codec.encode_tag(text)
            rows[-1].completion_ids.extend(ids)
            rows[-1].mask.extend([sampled] * len(ids))
            rows[-1].logprobs.extend([0.0] * len(ids))
        known = prompt + said + end
    return rows


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
    match [(call.function.name, call.function.arguments) for call in message.tool_calls]:
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
