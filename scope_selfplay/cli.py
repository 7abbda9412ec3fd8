"""`scope ...`: thin commands. Heavy imports stay inside them, so that help comes at once.

Stdout is data, stderr is progress. Exit codes are those of `errors.ExitCode`.
"""

import functools
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from scope_selfplay import DEFAULT_CONFIG, __version__
from scope_selfplay.base.terminal import (
    PATH,
    end_on_sigterm,
    quiet_libraries,
    run_command,
    shown_progress,
    with_options,
)

if TYPE_CHECKING:
    from scope_selfplay.config.run import RunConfig
    from scope_selfplay.store.folder import RunFolder


class LazyGroup(click.Group):
    """A group that also has the commands of other modules, each imported when it is asked for."""

    # Command -> its module, help.
    lazy_commands: ClassVar[dict[str, tuple[str, str]]] = {
        "doctor": (".plan.doctor", "Say what this machine can run, and how to get what is missing."),
        "documents": (".report.commands", "Show what a run reads from a path."),
        "download": (".store.object_store", "Bring a folder from an object store."),
        "eval": (".evaluation.commands", "Let checkpoints answer a benchmark."),
        "export": (".report.export", "Write accepted tasks in another library's shape."),
        "fork": (".run.fork", "Begin a run that shares another run's first iterations."),
        "index": (".run.commands", "Fetch corpora; build and check retrieval indexes."),
        "judge": (".play.commands", "Try a judge's prompts, and audit a run's judge."),
        "k8s": (".cluster.commands", "Run on Kubernetes: render, check, follow."),
        "lint-tokens": (".training.lint", "Compare training rows with a model's chat template."),
        "models": (".inference.models", "List and fetch small real language models, without the hub."),
        "plan": (".plan.commands", "What a run will take, before it takes it."),
        "play": (".play.commands", "Be the Challenger, the Solver or the Judge yourself."),
        "prompts": (".prompts.commands", "Check, show, compare and begin prompt packs."),
        "rehearsal-policy": (
            ".testing.random_policy",
            "Write a policy of random words, to rehearse a run with.",
        ),
        "report": (".report.commands", "Show what a run or an evaluation came to; one HTML file."),
        "serve-judge": (".judge.commands", "Serve the lexical judge over HTTP."),
        "serve-model": (".inference.commands", "Serve a policy over HTTP."),
        "serve-retriever": ("retrieval.commands", "Serve an index over HTTP."),
        "tasks": (".report.commands", "List, show and compare tasks."),
        "tools": (".run.commands", "List a config's tools, and call one by hand."),
        "upload": (".store.object_store", "Bring a file or a folder to an object store."),
        "view": (".report.commands", "Show a run in the browser."),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.lazy_commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy_commands:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(self.lazy_commands[cmd_name][0], __package__)
        named = getattr(module, cmd_name.replace("-", "_"), None)
        commands = [each for each in (named, *vars(module).values()) if isinstance(each, click.Command)]
        return next(command for command in commands if command.name == cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {name: command.get_short_help_str(80) for name, command in self.commands.items()}
        lazy = {name: text for name, (_, text) in self.lazy_commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted((own | lazy).items()))


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


@click.group(cls=LazyGroup, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="scope")
def cli() -> None:
    """Self-play data generation: a Challenger writes tasks, a Solver answers them, a frozen Judge grades both."""


def needs_settings(command: Callable[..., None], *, is_shown: bool = False) -> Callable[..., None]:
    """A command of a run's settings: it has the options that make them, and is called with `settings`, which may lack
    what a run needs where it only shows them.
    """

    @functools.wraps(command)
    def with_settings(
        config: Path | None, name: str | None, seed: int | None, overrides: tuple[str, ...], **others: Any
    ) -> None:
        from scope_selfplay.base.errors import CheckpointError, ConfigError
        from scope_selfplay.config.load import load_config

        options = {"name": name, "seed": seed}
        own = [each for each in overrides if each.startswith("corpus.path=")]
        try:
            settings = load_config(config or DEFAULT_CONFIG, overrides, options=options, is_shown=is_shown)
            command(settings=settings, **others)
        except (ConfigError, CheckpointError) as error:
            if config or not own:
                raise
            hint = "no --config was given, so all but --set is the demo's, for its own documents: give one for yours"
            raise type(error)(f"{error}; {hint}") from None

    return with_options(
        click.option("--config", type=PATH, help="YAML file of settings."),
        click.option("--name", help="Run id; results lie in ROOT/NAME."),
        click.option("--seed", type=int, help="Seed of every random draw."),
        click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting."),
    )(with_settings)


runs_root = click.option("--root", type=PATH, default=Path("runs"))


_HOW = with_options(
    click.option("--gpus", help="auto, a number, or 0,1,6: its servers and ranks on GPUs; cpu:4 without."),
    click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON."),
)


@cli.command()
@needs_settings
@runs_root
@_HOW
def run(settings: "RunConfig", root: Path, gpus: str | None, as_json: bool) -> None:
    """Run the whole loop here; run it again after anything and it goes on.

    Without --config: the embedded world on this machine's CPU, no downloads, in a few minutes. Without --gpus all of it
    is one process.
    """
    from scope_selfplay.base.errors import RunMismatchError
    from scope_selfplay.run.begin import renamed_run

    if (there := renamed_run(settings, root)) is not None:
        said = f"{there} is this run, renamed: `scope continue {there}` goes on with it"
        asked = f"{said}. Begin it a second time, in {root / settings.name}?"
        if not (sys.stdin.isatty() and click.confirm(asked, err=True)):
            raise RunMismatchError(f"{said}; another --name begins a second one")
    _run_to_its_end(settings, root, gpus, as_json)


@cli.command("continue")
@click.argument("run")
@click.option(
    "--iterations", type=click.IntRange(min=1), help="How many it has in all, where more than so far."
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting.")
@_HOW
def continue_run(
    run: str, iterations: int | None, overrides: tuple[str, ...], gpus: str | None, as_json: bool
) -> None:
    """Go on with RUN, a run folder or a name under runs/, from what is in it: wherever it lies, whatever its folder and
    its prompt pack are called now.
    """
    from scope_selfplay.base.errors import ConfigError
    from scope_selfplay.config.load import load_config
    from scope_selfplay.store.folder import RunFolder
    from scope_selfplay.store.reader import check_run, find_run

    check_run(folder := RunFolder(find_run(run)))
    changed = ("stop_after=null", *overrides)
    before = load_config(folder.config, changed).iterations
    if iterations is not None and iterations < before:
        raise ConfigError(f"--iterations: {iterations}, and the run has {before}; give as many or more")
    settings = load_config(folder.config, changed, options={"iterations": iterations})
    place = folder.path.resolve()
    if gpus is not None and place.name != settings.name:
        raise ConfigError(f"--gpus: its processes look for a folder {settings.name}; rename {place}")
    _run_to_its_end(settings, place.parent, gpus, as_json, folder)


def _run_to_its_end(
    settings: "RunConfig", root: Path, gpus: str | None, as_json: bool, folder: "RunFolder | None" = None
) -> None:
    quiet_libraries()
    end_on_sigterm()
    with shown_progress() as progress:
        if gpus is not None:
            from scope_selfplay.driver.local import run_on_node

            opened = run_on_node(settings, root, gpus, progress)
        else:
            from scope_selfplay.driver.local import run_here
            from scope_selfplay.plan.preflight import examine_before_begin
            from scope_selfplay.run.begin import open_run, say_changes

            opened = open_run(settings, root, progress, examine=examine_before_begin, folder=folder)
            say_changes(opened)
            run_here(opened)
    if as_json:
        click.echo(opened.folder.summary.read_text(), nl=False)
    else:
        from scope_selfplay.report.overview import ending_sections
        from scope_selfplay.report.sections import text_of
        from scope_selfplay.store.reader import RunReader

        with RunReader(opened.folder.path) as reader:
            click.echo("\n".join(text_of(ending_sections(opened, reader, gpus))))


@cli.command()
@needs_settings
@runs_root
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def preflight(settings: "RunConfig", root: Path, as_json: bool) -> None:
    """Hold a run against its inputs before anything is spent: documents, budgets, index, servers, disk, calls.

    `scope run` does the same before it begins. Exit code 64 or 75 where something would stop the run.
    """
    from scope_selfplay.base.errors import raise_for_stops
    from scope_selfplay.base.terminal import show_findings
    from scope_selfplay.inference.checkpoints import check_policy, policy_path
    from scope_selfplay.plan.preflight import examine
    from scope_selfplay.run.begin import check_inputs, run_documents

    quiet_libraries()
    pack = check_inputs(settings, root)
    check_policy(policy_path(settings.model.path), settings)
    checks = examine(settings, pack, run_documents(settings, pack), root)
    show_findings(checks, as_json=as_json)
    raise_for_stops(checks, are_shown=True)


_FOLLOWED = with_options(
    click.argument("run"),
    runs_root,
    click.option("--namespace", "-n", help="Of a run on a cluster; the context's own without it."),
)


@cli.command()
@_FOLLOWED
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(run: str, root: Path, namespace: str | None, as_json: bool) -> None:
    """Say where RUN is: its stage, its servers, what runs where. In ROOT, else on the cluster."""
    from scope_selfplay.driver.follow import follow, status_lines

    found = follow(run, root, namespace).status()
    click.echo(json.dumps(found, indent=1) if as_json else "\n".join(status_lines(found)))


@cli.command()
@_FOLLOWED
def stop(run: str, root: Path, namespace: str | None) -> None:
    """End everything of RUN in order; the command that began it goes on later."""
    from scope_selfplay.driver.follow import follow

    click.echo(follow(run, root, namespace).stop(), err=True)


@cli.command()
@_FOLLOWED
@click.argument("part", default="")
@click.option("--lines", type=click.IntRange(min=1), default=40, help="Of each log.")
def logs(run: str, part: str, root: Path, namespace: str | None, lines: int) -> None:
    """Print the ends of the logs of RUN, newest last; PART is in their names, such as judge or train-solver."""
    from scope_selfplay.driver.follow import follow

    click.echo(follow(run, root, namespace).logs(part, lines))


@cli.command()
@functools.partial(needs_settings, is_shown=True)
def config(settings: "RunConfig") -> None:
    """Print every setting with the value that a run would use."""
    import yaml

    click.echo(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False), nl=False)
    for lack in settings.judge.lacking():
        click.echo(f"before a run begins: {lack}", err=True)


def main() -> None:
    """Entry point of `scope`."""
    run_command(cli, "scope")


if __name__ == "__main__":
    main()
