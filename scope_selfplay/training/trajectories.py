"""Trajectories from outside as training rows: JSON lines of chat messages (docs/training.md, Warm start).

The policy's own chat template writes every conversation, so that system prompt, tools and calls look as when it is
served. Loss is on what the assistant says, the end of its turn included. Turns are one row as long as the template
continues the conversation; where it rewrites history (Qwen3 drops earlier thinking), a new row begins.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from scope_selfplay.dialects import Dialect
from scope_selfplay.errors import CorpusError
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.training.rows import TrainingRow


class _Call(BaseModel):
    name: str
    arguments: dict[str, Any] | str = {}


class _ToolCall(BaseModel):
    function: _Call


class ChatMessage(BaseModel):
    """One message; other keys than these are left out."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    reasoning_content: str | None = None
    name: str | None = None
    tool_calls: tuple[_ToolCall, ...] = ()


class Trajectory(BaseModel):
    """A conversation that ends with the assistant's answer, and the tools that it was offered."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    messages: tuple[ChatMessage, ...]
    tools: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class TrajectoryRows:
    """What gave no rows: `refused` is None of `rows_of`, `unread` its error; `too_long` exceeds the limit."""

    rows: list[TrainingRow]
    trajectories: int
    refused: int
    unread: int
    too_long: int


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


def rows_of(trajectory: Trajectory, codec: ChatCodec, family: Dialect) -> list[TrainingRow] | None:
    """None where the template does not let a turn follow its prompt or leaves a call out, or where a
    text holds a special token. Raises UnreadCallError for a call that rollouts of this family would not make.
    """
    if _has_special_tokens(trajectory, codec):
        return None
    if family.calls is None:
        trajectory = _with_tags_of(family, trajectory)
    rows: list[_Row] = []
    for place, message in enumerate(trajectory.messages):
        if message.role != "assistant":
            continue
        prompt = _render(trajectory, codec, place, begins_turn=True)
        whole = _render(trajectory, codec, place + 1, begins_turn=False)
        said = _until_end_of_turn(whole.removeprefix(prompt), codec) if whole.startswith(prompt) else None
        if said is None or not all(call.function.name in said for call in message.tool_calls):
            return None
        if message.tool_calls and not _is_one_search(prompt, said, message, codec, family):
            raise UnreadCallError
        if not rows or not rows[-1].is_continued_by(prompt):
            rows.append(_Row(prompt, codec))
        rows[-1].say(prompt, said)
    return [row.as_training_row() for row in rows]


class UnreadCallError(Exception):
    """A turn with calls that is not one search in its dialect."""


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
    if not message.tool_calls:
        return ""
    call, arguments = message.tool_calls[0].function, _arguments(message.tool_calls[0].function)
    if len(message.tool_calls) > 1 or call.name != "search" or not isinstance(arguments, dict):
        raise UnreadCallError
    if set(arguments) != {"query"} or not isinstance(arguments["query"], str):
        raise UnreadCallError
    try:
        return family.search_call(arguments["query"])
    except ValueError:
        raise UnreadCallError from None


def _is_one_search(prompt: str, said: str, message: ChatMessage, codec: ChatCodec, family: Dialect) -> bool:
    """Whether a rollout goes on behind this turn: it ends at its first call, and reads no other name than `search`."""
    opened = "<think>" if family.template_opens_thinking and prompt.rstrip().endswith("<think>") else ""
    end = str(codec.tokenizer.convert_ids_to_tokens(codec.end_of_turn))
    return len(message.tool_calls) == 1 and family.parse(opened + said.removesuffix(end)).query is not None


class _Row:
    """A conversation that grows: what was said in it is never encoded anew."""

    def __init__(self, prompt: str, codec: ChatCodec) -> None:
        self._codec = codec
        self._text = prompt
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


def _render(trajectory: Trajectory, codec: ChatCodec, end: int, *, begins_turn: bool) -> str:
    return str(
        codec.tokenizer.apply_chat_template(
            [_as_template_has_it(message) for message in trajectory.messages[:end]],
            tools=list(trajectory.tools) or None,
            tokenize=False,
            add_generation_prompt=begins_turn,
        )
    )


def _as_template_has_it(message: ChatMessage) -> Mapping[str, Any]:
    """Arguments as an object: templates write them as JSON, and would quote a text once more."""
    shown = message.model_dump(exclude_none=True, exclude={"tool_calls"})
    calls = [
        {"type": "function", "function": {"name": call.function.name, "arguments": _arguments(call.function)}}
        for call in message.tool_calls
    ]
    return {"content": "", **shown, **({"tool_calls": calls} if calls else {})}


def _arguments(call: _Call) -> object:
    if not isinstance(call.arguments, str):
        return call.arguments
    try:
        return json.loads(call.arguments)
    except ValueError:
        return call.arguments


def _until_end_of_turn(text: str, codec: ChatCodec) -> str | None:
    """What the policy samples of a rendered turn; templates add a line break after its end."""
    end = str(codec.tokenizer.convert_ids_to_tokens(codec.end_of_turn))
    said, found, _ = text.rpartition(end)
    return said + found if found else None


def _has_special_tokens(trajectory: Trajectory, codec: ChatCodec) -> bool:
    special = [str(token) for token in codec.tokenizer.all_special_tokens]
    text = trajectory.model_dump_json()
    return any(token in text for token in special)
