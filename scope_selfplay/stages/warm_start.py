"""A warm start before iteration 1 (ArenaRL starts so): SFT on trajectories of a stronger model.

They are JSON lines of chat messages (docs/how/training.md, Warm start). The policy's own chat
template writes every conversation, so that system prompt, tools and calls look as when it is served. Loss is on what
the assistant says, the end of its turn included. Turns are one row as long as the template continues the conversation;
where it rewrites history (Qwen3 drops earlier thinking), a new row begins.

Training is the loop of GRPO with rows that were sampled elsewhere, all with the advantage 1: CISPO's loss is then their
negative log-likelihood. So it is sharded, saved and resumed like every training.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel

from scope_selfplay.base.errors import ConfigError, CorpusError
from scope_selfplay.base.values import rng_from
from scope_selfplay.config.training import TrainConfig
from scope_selfplay.dialects.families import Dialect
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.net.json import given_lines
from scope_selfplay.store.card import Lineage
from scope_selfplay.store.files import read_rows
from scope_selfplay.store.folder import StageFolder, weights_hash
from scope_selfplay.training.engines import Engine, Rows, StepResult
from scope_selfplay.training.job import GrpoJob, TrainingStart
from scope_selfplay.training.loop import TrainingLoop, load
from scope_selfplay.training.passes import RewardedRollout, TrainingRow
from scope_selfplay.training.ranks import ranks


@dataclass(frozen=True)
class WarmStart:
    """How long and how fast: `batch` rows a step, of all ranks; a pass has room for `micro_batch` of the longest."""

    epochs: float = 1.0
    learning_rate: float = 1e-5
    batch: int = 32
    micro_batch: int = 4
    seed: int = 0


def sft(
    rows: Sequence[TrainingRow],
    start: Path,
    out: Path,
    *,
    settings: WarmStart,
    codec: ChatCodec,
    lineage: Lineage,
) -> list[float]:
    """Train `start` on rows and write a plain model directory; returns the loss of each step.

    All ranks call it with the same rows; what a kill left in the folder `.<out>.work` is gone on with. Raises
    CorpusError without rows.
    """
    if not rows:
        raise CorpusError("nothing is left to learn from; raise --max-length, or give other trajectories")
    team, folder = ranks(), StageFolder(out.with_name(f".{out.name}.work"))
    records = _in_order(len(rows), settings)
    steps = -(-len(records) // settings.batch)
    training = TrainConfig(
        steps=steps,
        batch=settings.batch,
        micro_tokens=settings.micro_batch * max(row.length for row in rows),
        learning_rate=settings.learning_rate,
        warmup_ratio=0.0,
        kl_beta=0.0,
        loss="cispo",
        sampling_cap=0.0,
        save_every=-(-steps // 20),
        max_prompt=max(8, *(len(row.prompt_ids) for row in rows)),
    )
    m0, seed = TrainingStart(start, start, lineage), settings.seed
    job = GrpoJob(
        m0, training, records, folder, codec, temperature=1.0, seed=seed, given_advantages=True, ranks=team
    )

    async def sample(chosen: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
        return StepResult([[RewardedRollout([rows[int(each)]], 1.0)] for each in chosen], {})

    def finish() -> list[float]:
        losses = [float(line["loss"]) for line in read_rows(folder.metrics)]
        folder.checkpoint.rename(out)
        shutil.rmtree(folder.path, ignore_errors=True)
        return losses

    with team:
        folder.work.mkdir(parents=True, exist_ok=True)
        TrainingLoop(job, load(job), Engine(), sample).run()
        return team.leader("finish", finish, completing=True)


def _in_order(count: int, settings: WarmStart) -> list[str]:
    """The numbers of the rows, epoch after epoch, each in an order of its own; the last epoch may be a part of one."""
    total, order = round(settings.epochs * count), list[int]()
    while len(order) < total:
        epoch = list(range(count))
        rng_from(settings.seed, "sft", len(order)).shuffle(epoch)
        order += epoch
    return [str(number) for number in order[: max(1, total)]]


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
