"""`scope ...`: thin commands. Heavy imports stay inside them, so that help comes at once.

Stdout is data, stderr is progress. Exit codes are those of `errors.ExitCode`.
"""

import functools
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from scope_selfplay import DEFAULT_CONFIG, __version__
from scope_selfplay.terminal import end_on_sigterm, quiet_libraries, run_command, shown_progress

if TYPE_CHECKING:
    from scope_selfplay.config import RunConfig


class LazyGroup(click.Group):
    """A group that also has the commands of other packages, each imported when it is asked for."""

    # Command -> module and function there, help.
    lazy_commands: ClassVar[dict[str, tuple[str, str]]] = {
        "corpus": ("scope_selfplay.downloads.cli:corpus", "Bring a published corpus here."),
        "doctor": (
            "scope_selfplay.doctor:doctor",
            "Say what this machine can run, and how to get what is missing.",
        ),
        "documents": ("scope_selfplay.corpus.cli:documents", "Show what a run reads from a path."),
        "eval": ("scope_selfplay.benchmarking.cli:evaluate", "Let checkpoints answer a benchmark."),
        "export": (
            "scope_selfplay.export.writing:export",
            "Write accepted tasks in another library's shape.",
        ),
        "fork": ("scope_selfplay.forking:fork", "Begin a run that shares another run's first iterations."),
        "index": ("scope_selfplay.index_command:index", "Build and check retrieval indexes."),
        "judge": ("scope_selfplay.judge_audit.cli:judge", "Try a judge's prompts, and audit a run's judge."),
        "k8s": ("scope_selfplay.k8s.cli:k8s", "Run on Kubernetes: render, check, follow."),
        "leaderboard": (
            "scope_selfplay.inspection.leaderboard_cli:leaderboard",
            "Show what checkpoints were worth on a benchmark.",
        ),
        "lint-tokens": (
            "scope_selfplay.lint_tokens:lint_tokens_command",
            "Compare training rows with a model's chat template.",
        ),
        "math": ("scope_selfplay.maths.cli:math", "Maths problems, and a run on them."),
        "models": (
            "scope_selfplay.models.cli:models",
            "List and fetch small real language models, without the hub.",
        ),
        "plan": ("scope_selfplay.preflight.plan_cli:plan", "What a run will take, before it takes it."),
        "play": (
            "scope_selfplay.play.cli:play",
            "Be the Challenger, the Solver or the Judge yourself.",
        ),
        "prompts": ("scope_selfplay.prompts.cli:prompts", "Check, show, compare and begin prompt packs."),
        "rehearsal-policy": (
            "scope_selfplay.testing.random_policy:rehearsal_policy",
            "Write a policy of random words, to rehearse a run with.",
        ),
        "report": ("scope_selfplay.inspection.cli:report", "Write a run's report, one HTML file."),
        "serve-judge": ("scope_selfplay.judge.cli:serve_judge", "Serve the lexical judge over HTTP."),
        "serve-model": ("scope_selfplay.model_server.cli:serve_model", "Serve a policy over HTTP."),
        "serve-retriever": ("retrieval.cli:serve_retriever", "Serve an index over HTTP."),
        "tasks": ("scope_selfplay.inspection.cli:tasks", "List, show, count and compare tasks."),
        "tools": ("scope_selfplay.tool_commands:tools", "List a config's tools, and call one by hand."),
        "view": ("scope_selfplay.viewer.cli:view", "Show a run in the browser."),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.lazy_commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy_commands:
            return super().get_command(ctx, cmd_name)
        module, _, name = self.lazy_commands[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {name: command.get_short_help_str(80) for name, command in self.commands.items()}
        lazy = {name: text for name, (_, text) in self.lazy_commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted((own | lazy).items()))


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="scope")
def cli() -> None:
    """Self-play data generation: a Challenger writes tasks, a Solver answers them, a frozen Judge grades both."""


def needs_settings(command: Callable[..., None]) -> Callable[..., None]:
    """A command of a run's settings: it has the options that make them, and is called with `settings`."""

    @functools.wraps(command)
    def with_settings(
        config: Path | None, name: str | None, seed: int | None, overrides: tuple[str, ...], **others: Any
    ) -> None:
        from scope_selfplay.config import load_config

        given = {"name": name, "seed": seed}
        options = {key: value for key, value in given.items() if value is not None}
        command(settings=load_config(config or DEFAULT_CONFIG, overrides, options=options), **others)

    called: Callable[..., None] = with_settings
    for option in (
        click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting."),
        click.option("--seed", type=int, default=None, help="Seed of every random draw."),
        click.option("--name", default=None, help="Run id; results lie in ROOT/NAME."),
        click.option(
            "--config", type=click.Path(path_type=Path), default=None, help="YAML file of settings."
        ),
    ):
        called = option(called)
    return called


runs_root = click.option("--root", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)


@cli.command()
@needs_settings
@runs_root
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def run(settings: "RunConfig", root: Path, as_json: bool) -> None:
    """Run the whole loop here; run it again after anything and it goes on.

    Without --config: the embedded world on this machine's CPU, no downloads, in a few minutes.
    """
    from scope_selfplay.local import run_all
    from scope_selfplay.preflight import examine_before_begin
    from scope_selfplay.run import open_run

    quiet_libraries()
    end_on_sigterm()
    with shown_progress() as progress:
        opened = open_run(settings, root, progress, examine=examine_before_begin)
        summary = run_all(opened)
    if as_json:
        click.echo(json.dumps(summary, indent=1))
    else:
        from scope_selfplay.inspection.summary import show_summary

        show_summary(summary, opened)


@cli.command()
@needs_settings
@runs_root
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def preflight(settings: "RunConfig", root: Path, as_json: bool) -> None:
    """Hold a run against its inputs before anything is spent: documents, budgets, index, servers, disk, calls.

    `scope run` does the same before it begins. Exit code 64 or 75 where something would stop the run.
    """
    from scope_selfplay.preflight.checks import as_data, raise_for_stops
    from scope_selfplay.preflight.cli import preflight_of, show_checks

    quiet_libraries()
    checks = preflight_of(settings, root)
    if as_json:
        click.echo(json.dumps(as_data(checks), indent=1))
    else:
        show_checks(checks)
    raise_for_stops(checks)


@cli.command()
@needs_settings
def config(settings: "RunConfig") -> None:
    """Print every setting with the value that a run would use."""
    import yaml

    click.echo(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False), nl=False)


def main() -> None:
    """Entry point of `scope`."""
    run_command(cli, "scope")


if __name__ == "__main__":
    main()
