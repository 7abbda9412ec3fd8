"""A person is the judge: the same questions, one by one, without knowing what the judge said."""

from collections.abc import Sequence
from dataclasses import dataclass

from scope_selfplay.errors import PromptError
from scope_selfplay.judge.prompts import JudgePrompts
from scope_selfplay.play.console import Console, PersonLeftError
from scope_selfplay.play.person import new_part
from scope_selfplay.play.questions import Question
from scope_selfplay.prompts import PromptRole
from scope_selfplay.store.human import HumanFolder

REPLIES = {"y": True, "yes": True, "1": True, "n": False, "no": False, "0": False, "?": None, "skip": None}
HELP = (
    "y or 1: yes   n or 0: no   ?: cannot say   each with a reason if you like   /prompt: all of it   /quit"
)


@dataclass(frozen=True)
class GivenReply:
    value: bool | None
    reasoning: str


async def judge_questions(
    questions: Sequence[Question],
    prompts: JudgePrompts,
    human: HumanFolder,
    console: Console,
    *,
    person: str,
    reveal: bool,
) -> int:
    """Ask, and keep every reply at once; how many were given. `reveal`: show what the judge said after each."""
    seen: dict[PromptRole, str] = {}
    console.show(HELP, "dim")
    for number, question in enumerate(questions, start=1):
        prompt = _prompt_of(question, prompts)
        console.title(f"question {number} of {len(questions)}: {question.role}")
        console.show(new_part(prompt, seen.get(question.role, "")))
        seen[question.role] = prompt
        try:
            reply = await reply_of(console, prompt)
        except PersonLeftError:
            return number - 1
        human.add_verdicts([question.verdict(person, reply.value, reply.reasoning)])
        if reveal:
            said = {True: "yes", False: "no", None: "nothing"}[question.judge.value]
            console.show(f"the judge said {said}. {question.judge.reasoning}".rstrip(), "dim")
    return len(questions)


async def reply_of(console: Console, prompt: str) -> GivenReply:
    """`prompt` is what `/prompt` shows again. Raises PersonLeftError."""
    while True:
        typed = (await console.ask("y/n/?>")).strip()
        word, _, reasoning = typed.partition(" ")
        if word.lower() in REPLIES:
            return GivenReply(REPLIES[word.lower()], reasoning.strip())
        if word == "/quit":
            raise PersonLeftError
        if word == "/prompt":
            console.show(prompt, "dim")
        elif word in ("", "/help"):
            console.show(HELP, "dim")
        else:
            console.complain(f"{word!r} is no reply; {HELP}")


def _prompt_of(question: Question, prompts: JudgePrompts) -> str:
    try:
        return question.prompt(prompts)
    except PromptError:
        return question.in_short()
