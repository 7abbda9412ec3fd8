"""A person as a policy: reads what a policy would read, and writes within its budget.

Drives nothing: the run's own episodes ask it for turns, as they ask an engine.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console as RichConsole
from rich.rule import Rule
from rich.text import Text

from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.base.errors import UserError, imports_for
from scope_selfplay.base.sampling import Generate, Sample, TextCodec, ids_of_turn
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.text import printable
from scope_selfplay.base.values import Finish, Key, Provenance, Role, Rollout
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.dialects.families import Dialect
from scope_selfplay.net.json import parse_object
from scope_selfplay.policy.episodes import Episode, PolicyFormat
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.run import Run
from scope_selfplay.store.folder import Policy, RunFolder, Stage
from scope_selfplay.store.human import HUMAN, HumanFolder

LAST = {Role.SOLVER: "answer", Role.CHALLENGER: "task"}
"""The command that ends a role's rollout."""
_RAW = "/raw"


class UnfinishedTurnError(Exception):
    """Why what was typed is no turn; one line for the person who typed it."""


class Typed(NamedTuple):
    thinking: str
    command: str
    content: str


def turn_of(typed: str, family: Dialect, role: Role, *, opened: bool) -> str:
    """The text of the turn, thinking included. `opened`: the chat template has begun the thinking.

    `/raw` gives the text after it as it is. Raises UnfinishedTurnError where there is no command, or where the
    turn would not be read as it was meant.
    """
    if typed.lstrip().startswith(_RAW):
        return typed.lstrip()[len(_RAW) :].removeprefix(" ").removeprefix("\n")
    read = _read(typed, family, role)
    if not read.content:
        raise UnfinishedTurnError(f"/{read.command} needs a text behind it")
    try:
        block, meant = _block(read, family)
    except ValueError as error:
        raise UnfinishedTurnError(str(error)) from None
    thinks = bool(read.thinking) or opened
    turn = f"<think>\n{read.thinking}\n</think>\n{block}" if thinks else block
    parts = family.parse(turn)
    found = {
        "search": parts.query,
        "answer": parts.answer,
        "task": parts.task,
        "call": parts.call and parts.call[:2],
        "thinking": parts.thinking,
    }
    if found != dict.fromkeys(found) | {read.command: meant, "thinking": read.thinking if thinks else None}:
        raise UnfinishedTurnError(
            "a tag of the protocol in it would be read as something else; write it without tags"
        )
    return turn


def _read(typed: str, family: Dialect, role: Role) -> Typed:
    commands = ["search", *(["call"] if family.tools else []), LAST[role]]
    lines = typed.splitlines()
    for number, line in enumerate(lines):
        word, _, rest = line.lstrip().partition(" ")
        if word.startswith("/") and word[1:] in commands:
            content = "\n".join([rest, *lines[number + 1 :]]).strip()
            return Typed("\n".join(lines[:number]).strip(), word[1:], content)
    known = " or ".join(f"/{name} ..." for name in commands)
    raise UnfinishedTurnError(
        f"there is no command in it; write {known}, or /raw TEXT for a turn without one"
    )


def _block(read: Typed, family: Dialect) -> tuple[str, object]:
    """The command as the family writes it, and what must be read back. Raises ValueError for what no call can carry."""
    match read.command:
        case "search":
            query = " ".join(read.content.split())
            return family.search_call(query), query
        case "call":
            tool, _, arguments = read.content.partition(" ")
            given = parse_object(arguments.strip() or "{}")
            return family.tool_call(tool, given), (tool, given)
    return f"<{read.command}>\n{read.content}\n</{read.command}>", read.content


HELP = """Write what the policy would: its reasoning, then one command at the beginning of a line.
  /search WORDS   search
  /{last} TEXT{room}   end with this {last}
  /raw TEXT       a turn exactly as written, tags and all
  /prompt         show all that the policy has been shown
  /quit           stop; an unfinished rollout is not kept
Enter sends, Alt-Enter (or Esc, then Enter) begins a new line, Ctrl-X Ctrl-E opens your editor."""


class Person:
    """A `PolicyModel` at a console. One for each rollout."""

    identity = HUMAN

    def __init__(self, console: "Console", codec: TextCodec, family: Dialect, role: Role) -> None:
        self._console, self._codec, self._family, self._role = console, codec, family, role
        self._seen = ""

    async def generate(self, request: Generate, key: Key) -> Sample:
        """Raises PersonLeftError."""
        prompt = self._codec.decode(request.prompt_ids)
        begins_inside = prompt.rstrip().endswith("<think>")
        self._console.title(f"turn {request.turn + 1}, at most {request.max_tokens:,} tokens")
        self._console.show(new_part(prompt, self._seen))
        self._seen = prompt
        typed = ""
        while True:
            typed = await self._console.ask(
                f"{self._role.value}>",
                status=lambda text: self._status(text, request, begins_inside),
                default=typed,
            )
            if self._is_remark(typed, prompt):
                typed = ""
                continue
            try:
                ids = self._ids(typed, request, begins_inside)
            except UnfinishedTurnError as reason:
                self._console.complain(str(reason))
                continue
            if len(ids) <= request.max_tokens:
                return Sample(ids, None, Finish.STOP)
            self._console.complain(
                f"that takes {len(ids):,} tokens, {request.max_tokens:,} are left; shorten it"
            )

    def _is_remark(self, typed: str, prompt: str) -> bool:
        """Whether it was for the console and not for the rollout."""
        match typed.strip():
            case "/quit":
                raise PersonLeftError
            case "/prompt":
                self._console.show(prompt, "dim")
            case "/help" | "":
                last = LAST[self._role]
                self._console.show(HELP.format(last=last, room=" " * (8 - len(last))), "dim")
                for form in self._family.tools:
                    self._console.show(
                        f"  /call {form.name} {{...}}   call this tool with a JSON object", "dim"
                    )
            case _:
                return False
        return True

    def _ids(self, typed: str, request: Generate, begins_inside: bool) -> tuple[int, ...]:
        turn = turn_of(typed, self._family, self._role, opened=begins_inside)
        return ids_of_turn(self._codec, request, turn)

    def _status(self, typed: str, request: Generate, begins_inside: bool) -> str:
        try:
            count = len(self._ids(typed, request, begins_inside))
        except UnfinishedTurnError:
            count = self._codec.count(typed)
        return f" {count:,} of {request.max_tokens:,} tokens   /help   Alt-Enter: new line   /quit "


def new_part(prompt: str, seen: str) -> str:
    """What a prompt adds to the one before it, from the beginning of a line; all of it where it adds nothing."""
    pairs = enumerate(zip(prompt, seen, strict=False))
    same = next((place for place, (one, other) in pairs if one != other), min(len(prompt), len(seen)))
    return prompt[same if same == len(seen) else prompt[:same].rfind("\n") + 1 :].strip("\n") or prompt


_NO_LIMIT = 1_000_000


@dataclass(frozen=True)
class Session:
    """One person at one console, in one run."""

    run: Run
    console: "Console"
    name: str
    """Who plays."""

    @cached_property
    def human(self) -> HumanFolder:
        return HumanFolder(self.run.folder)

    def key(self, *parts: str | int) -> Key:
        return (self.run.config.seed, HUMAN, self.name, *parts)

    def policy_format(self, role: Role) -> PolicyFormat:
        """As the policy's in every budget and tag; the checkpoint is `human`."""
        return self.run.context.policy_format(self.run.codec, role, HUMAN, greedy=False)

    async def play(self, episode: Episode, policy_format: PolicyFormat, role: Role, key: Key) -> Rollout:
        """The rollout of a person. Raises PersonLeftError; an outage of the retriever ends the session."""
        run = self.run
        tools = run.context.other_tools if role is Role.SOLVER else ()
        family = policy_format.dialect.with_tools([tool.form for tool in tools])
        person = Person(self.console, run.codec, family, role)
        rollout = await run.context.sample_rollout(episode, person, key)
        run.check_outages()
        return rollout

    def provenance(self, iteration: int, solver: Policy | None) -> Provenance:
        run = self.run
        writer = Policy(HUMAN, run.base)
        made = run.provenance(iteration, Stage.TASKS, writer, solver)
        return made.model_copy(update={"challenger": HUMAN})


def run_at(path: Path, *, pack: Pack | None = None) -> Run:
    """A run that exists, with its own prompts and documents, or another pack over its documents; nothing is changed."""
    folder = RunFolder(path)
    config = load_config(folder.config)
    return Run(_alone(config), folder, pack or load_pack(folder.prompts), Progress())


def begun_run(
    domain: str | None, root: Path, config: Path | None, overrides: Sequence[str], progress: Progress
) -> Run:
    """The folder `play-DOMAIN`, begun or entered again."""
    given = [*overrides, *([f"domain={domain}"] if domain else [])]
    settings = load_config(config or DEFAULT_CONFIG, given)
    name = f"play-{Path(settings.domain).name.lower()}"
    run = open_run(_alone(settings.model_copy(update={"name": name})), root, progress)
    if config is None and settings.domain != "embedded":
        run.config = _roomy(run.config)
    return run


def _roomy(config: RunConfig) -> RunConfig:
    """The paper's budgets, and prompts of any length: those of the laptop's run fit the embedded world alone."""
    plain = RunConfig()
    search = {"max_tokens": plain.search.max_tokens, "topk": plain.search.topk}
    challenger, solver = (
        own.model_copy(update={"max_prompt": _NO_LIMIT, "max_response": usual.max_response})
        for own, usual in ((config.challenger, plain.challenger), (config.solver, plain.solver))
    )
    changes = {"challenger": challenger, "solver": solver, "search": config.search.model_copy(update=search)}
    return config.model_copy(update=changes)


def _alone(config: RunConfig) -> RunConfig:
    """The same run in one process: a person is one rollout at a time."""
    return config.model_copy(update={"model": config.model.model_copy(update={"processes": 1})})


Status = Callable[[str], str]
"""What is shown under the line while it is typed, from what has been typed so far."""


class PersonLeftError(Exception):
    """The person ended the session; what was finished is kept."""


class Console(ABC):
    """Prints to stdout and reads replies."""

    def __init__(self) -> None:
        self._console = RichConsole(highlight=False)

    def title(self, text: str) -> None:
        self._console.print()
        self._console.print(Rule(Text(printable(text), style="bold cyan"), align="left", style="cyan"))

    def show(self, text: str, style: str = "") -> None:
        """A text, perhaps by a model: it cannot move the cursor or recolour anything."""
        self._console.print(Text(printable(text), style=style), soft_wrap=False)

    @abstractmethod
    def complain(self, text: str) -> None:
        """Say why the last reply cannot be taken; the person is asked again. Raises UserError in a script."""

    @abstractmethod
    async def ask(self, question: str, *, status: Status | None = None, default: str = "") -> str:
        """A reply, of several lines perhaps. Raises PersonLeftError."""


class TerminalConsole(Console):
    """A terminal, over ssh too: Enter sends, Alt-Enter begins a line, Ctrl-X Ctrl-E opens the editor."""

    def __init__(self) -> None:
        """Raises ConfigError without the library for line editing."""
        super().__init__()
        self._session = _prompt_session()

    def complain(self, text: str) -> None:
        self.show(text, "yellow")

    async def ask(self, question: str, *, status: Status | None = None, default: str = "") -> str:
        session = self._session
        toolbar = None if status is None else lambda: status(session.default_buffer.text)
        try:
            reply: str = await session.prompt_async(f"{question} ", bottom_toolbar=toolbar, default=default)
        except EOFError:
            raise PersonLeftError from None
        return reply


class RepliesConsole(Console):
    """Replies from a file, one a line; `\\n` in a line begins a new one, lines of `#` are remarks."""

    def __init__(self, file: Path) -> None:
        """Raises UserError for a file that cannot be read."""
        super().__init__()
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"--answers {file}: cannot be read ({error}); give a text file, one reply a line"
            ) from None
        kept = (line for line in lines if line.strip() and not line.startswith("#"))
        self._replies = [line.replace("\\n", "\n") for line in kept]
        self._source, self._used = file, 0

    def complain(self, text: str) -> None:
        raise UserError(f"{self._source}: reply {self._used} ({self._replies[self._used - 1]!r}): {text}")

    async def ask(self, question: str, *, status: Status | None = None, default: str = "") -> str:
        if self._used >= len(self._replies):
            raise UserError(
                f"{self._source}: has {len(self._replies)} replies, and one more is asked for ({question}); add it, or "
                "end with /quit"
            )
        self._used += 1
        reply = self._replies[self._used - 1]
        self.show(f"{question} {reply}", "bold")
        await asyncio.sleep(0)
        return reply


def _prompt_session() -> Any:
    with imports_for("scope play without --answers FILE", "play"):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.key_binding import KeyBindings
    keys = KeyBindings()
    keys.add("enter")(lambda event: event.current_buffer.validate_and_handle())
    keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
    return PromptSession(key_bindings=keys, multiline=True, enable_open_in_editor=True)
