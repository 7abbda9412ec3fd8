"""`scope play`: a person plays the Challenger, the Solver or the Judge, or compares blind."""

import asyncio
import getpass
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scope_selfplay.errors import UserError

if TYPE_CHECKING:
    from scope_selfplay.play.console import Console
    from scope_selfplay.play.session import Session
    from scope_selfplay.run import Run
    from scope_selfplay.store.reader import RunReader

_PATH = click.Path(path_type=Path)


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "person"


def _session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--answers",
            type=_PATH,
            metavar="FILE",
            help="Replies from a file, one a line, instead of the terminal.",
        ),
        click.option(
            "--person",
            default=user_name,
            show_default="your user name",
            help="Who it is; kept with verdicts.",
        ),
    ):
        command = option(command)
    return command


def _role_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--set",
            "overrides",
            multiple=True,
            metavar="KEY=VALUE",
            help="Change one setting (without --run).",
        ),
        click.option("--config", type=_PATH, help="YAML file of settings (without --run)."),
        click.option("--root", type=_PATH, default=Path("runs"), show_default=True),
        click.option("--run", "run_name", metavar="RUN", help="A run folder, or a name under runs/."),
        click.option("--domain", metavar="D", help="Prompt pack; without it the run's own."),
    ):
        command = option(command)
    return _session_options(command)


@click.group()
def play() -> None:
    """Be the Challenger, the Solver or the Judge yourself, with the run's prompts, searches and budgets.

    Without --run, a folder runs/play-DOMAIN is begun with the settings of `scope run`. All that you do is kept in
    RUN/human.
    """


@play.command("solver")
@_role_options
@click.option("--task", metavar="ID", help="A task of the run; without it one that nobody has answered.")
def play_solver(task: str | None, **options: Any) -> None:
    """Answer a task: search and answer as the Solver does, then see how the judge grades it."""
    from scope_selfplay.play.solving import answer_task

    with _session(**options) as session:
        asyncio.run(answer_task(session, task))


@play.command("challenger")
@_role_options
@click.option("--document", metavar="ID", help="A document of the run; without it one that is not used yet.")
@click.option("--type", "task_type", help="Task type; drawn without it.")
@click.option("--turns", type=click.IntRange(1), help="Search turns; drawn without it.")
@click.option(
    "--tries",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Answers of the Solver that was kept last; 0 leaves out how hard the task is.",
)
def play_challenger(
    document: str | None, task_type: str | None, turns: int | None, tries: int, **options: Any
) -> None:
    """Write a task about a document: search as the Challenger does, then see gates, rubric and the Solver's tries."""
    from scope_selfplay.play.challenging import Wish, write_task

    with _session(**options) as session:
        asyncio.run(write_task(session, Wish(document, task_type, turns, tries)))


@play.command("judge")
@click.argument("run")
@_session_options
@click.option("--task", metavar="ID", help="All questions of one task; without it a random sample.")
@click.option(
    "--n", "count", type=click.IntRange(1), default=20, show_default=True, help="Questions of the sample."
)
@click.option("--reveal", is_flag=True, help="Show what the judge said after each reply.")
def play_judge(
    run: str, task: str | None, count: int, person: str, answers: Path | None, *, reveal: bool
) -> None:
    """Answer what the judge was asked, without seeing what it said; the agreement is in `scope tasks stats RUN`.

    RUN is a run folder, or a name under runs/. The same command goes on with what you have not answered.
    """
    from scope_selfplay.config import load_config
    from scope_selfplay.judge.fences import fence_key
    from scope_selfplay.judge.prompts import JudgePrompts
    from scope_selfplay.play.judging import judge_questions
    from scope_selfplay.play.questions import questions_on, sampled_questions
    from scope_selfplay.prompts import load_pack
    from scope_selfplay.prompts.folder import pack_path
    from scope_selfplay.store.human import HumanFolder

    with _reader(run) as reader, _ended() as end:
        console, human = _console(answers), HumanFolder(reader.folder)
        config = load_config(reader.folder.config)
        kept = reader.folder.prompts
        pack = load_pack(kept if kept.is_dir() else pack_path(config.domain))
        prompts = JudgePrompts(pack, config.judge, key=fence_key(config.seed))
        questions = (
            sampled_questions(reader, count, person=person, answered=human.verdicts())
            if task is None
            else questions_on(reader, task)
        )
        if not questions:
            raise UserError(
                f"{reader.folder.path}: the judge was asked nothing that {person} has not answered"
            )
        given = asyncio.run(judge_questions(questions, prompts, human, console, person=person, reveal=reveal))
        end(f"{given} of {len(questions)} questions answered; scope tasks stats {run}")


@play.command("compare")
@click.argument("run")
@click.argument("one")
@click.argument("other")
@_session_options
@click.option(
    "--n", "count", type=click.IntRange(1), default=20, show_default=True, help="Pairs of this session."
)
def play_compare(run: str, one: str, other: str, count: int, person: str, answers: Path | None) -> None:
    """Compare the answers of two checkpoints (S_0 S_1) to held-out tasks, blind and shuffled.

    The same command goes on with the pairs that you have not compared.
    """
    from scope_selfplay.play.comparing import compare_blind, pairs_left
    from scope_selfplay.store.human import HumanFolder

    with _reader(run) as reader, _ended() as end:
        pairs = pairs_left(reader, one, other, person=person)
        if not pairs:
            raise UserError(
                f"{reader.folder.path}: {one} and {other} have no two different answers that {person} has not compared"
            )
        console, human = _console(answers), HumanFolder(reader.folder)
        given = asyncio.run(compare_blind(pairs[:count], human, console, person=person))
        end(f"{given} of {len(pairs)} pairs compared; scope tasks stats {run}")


@contextmanager
def _session(
    *,
    domain: str | None,
    run_name: str | None,
    root: Path,
    config: Path | None,
    overrides: tuple[str, ...],
    person: str,
    answers: Path | None,
) -> "Iterator[Session]":
    from scope_selfplay.play.session import Session
    from scope_selfplay.terminal import quiet_libraries

    quiet_libraries()
    console = _console(answers)
    if run_name is not None and (config or overrides):
        raise UserError("--run has settings of its own; leave out --config and --set")
    with _ended():
        run = _new_run(domain, root, config, overrides) if run_name is None else _run_named(run_name, domain)
        yield Session(run, console, person)


def _run_named(name: str, domain: str | None) -> "Run":
    from scope_selfplay.play.session import run_at
    from scope_selfplay.progress import Progress
    from scope_selfplay.prompts import load_pack
    from scope_selfplay.prompts.folder import pack_path
    from scope_selfplay.store.reader import RunReader, find_run

    with RunReader(find_run(name)) as reader:
        path = reader.folder.path
    return run_at(path, Progress(), pack=None if domain is None else load_pack(pack_path(domain)))


def _new_run(domain: str | None, root: Path, config: Path | None, overrides: tuple[str, ...]) -> "Run":
    """The folder `play-DOMAIN`, begun or entered again."""
    from scope_selfplay import DEFAULT_CONFIG
    from scope_selfplay.config import load_config
    from scope_selfplay.play.session import alone, roomy
    from scope_selfplay.run import open_run
    from scope_selfplay.terminal import shown_progress

    given = [*overrides, *([f"domain={domain}"] if domain else [])]
    settings = load_config(config or DEFAULT_CONFIG, given)
    short = Path(settings.domain).name.lower()
    with shown_progress() as progress:
        run = open_run(alone(settings.model_copy(update={"name": f"play-{short}"})), root, progress)
    if config is None and settings.domain != "embedded":
        run.config = roomy(run.config)
    return run


def _console(answers: Path | None) -> "Console":
    from scope_selfplay.play.console import TerminalConsole, replies_in

    if answers is not None:
        return replies_in(answers)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("scope play needs a terminal; give --answers FILE for a script")
    return TerminalConsole()


def _reader(run: str) -> "RunReader":
    from scope_selfplay.store.reader import RunReader, find_run

    return RunReader(find_run(run))


@contextmanager
def _ended() -> Iterator[Callable[[str], None]]:
    """A session that the person ends is a good end: what was finished is kept."""
    from scope_selfplay.play.console import PersonLeftError

    with suppress(PersonLeftError):
        yield lambda text: click.echo(text, err=True)
