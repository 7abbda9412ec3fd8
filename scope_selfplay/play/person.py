"""A person as a policy: reads what a policy would read, and writes within its budget.

Drives nothing: the run's own episodes ask it for turns, as they ask an engine.
"""

from scope_selfplay.dialects import Dialect
from scope_selfplay.inference import Generate, Sample, TextCodec, ids_of_turn
from scope_selfplay.keys import Key
from scope_selfplay.play.console import Console, PersonLeftError
from scope_selfplay.play.writing import LAST, UnfinishedTurnError, turn_of
from scope_selfplay.schemas import Finish, Role
from scope_selfplay.store.human import HUMAN

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

    def __init__(self, console: Console, codec: TextCodec, family: Dialect, role: Role, *, end: int) -> None:
        self._console, self._codec, self._family, self._role, self._end = console, codec, family, role, end
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
        return ids_of_turn(self._codec, request, turn, end=self._end)

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
