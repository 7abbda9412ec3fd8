"""What a warm start learns before iteration 1: trajectories of a stronger model.

They are JSON lines of chat messages (docs/how/training.md, Warm start). The policy's own chat
template writes every conversation, so that system prompt, tools and calls look as when it is served. Loss is on what
the assistant says, the end of its turn included. Turns are one row as long as the template continues the conversation;
where it rewrites history (Qwen3 drops earlier thinking), a new row begins.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.dialects.families import Dialect
from scope_selfplay.inference.checkpoints import ChatCodec, policy_path
from scope_selfplay.net.json import given_lines
from scope_selfplay.store.card import Lineage
from scope_selfplay.store.folder import weights_hash
from scope_selfplay.training.passes import TrainingRow
from scope_selfplay.training.sft import WarmStart, sft


@dataclass
class LearntRows:
    """Rows to learn from, and trajectories: those that gave some, and those that gave none."""

    rows: list[TrainingRow] = field(default_factory=list)
    learnt: int = 0
    refused: int = 0
    """Those of which `rows_of` is None."""
    unread: int = 0
    """Those with calls that this family does not read."""
    too_long: int = 0


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
