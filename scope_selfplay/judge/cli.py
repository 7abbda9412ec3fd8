"""`scope serve-judge` and `scope judge try`. Heavy imports wait until a command runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from scope_selfplay.judge.trying import Trial


@click.command("serve-judge")
@click.option(
    "--corpus",
    type=click.Path(exists=True, path_type=Path),
    help="Articles of the embedded world: a run's corpus.jsonl. Without it the world of --seed is made.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the run whose embedded world is judged.")
@click.option(
    "--config", type=click.Path(exists=True, path_type=Path), help="Run config with the world's size."
)
@click.option(
    "--rehearsal", is_flag=True, help="Throw dice instead, in the form that each prompt asks for: any domain."
)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8001, show_default=True)
@click.option("--api-key-env", help="Environment variable that holds the key that clients must send.")
def serve_judge(
    corpus: Path | None,
    seed: int,
    config: Path | None,
    *,
    rehearsal: bool,
    host: str,
    port: int,
    api_key_env: str | None,
) -> None:
    """Serve the embedded lexical judge over the wire of an OpenAI-compatible endpoint.

    Point a run at it with two settings: judge.kind=model judge.endpoint.base_url=http://127.0.0.1:8001/v1
    """
    import asyncio
    import contextlib

    from scope_selfplay.config import load_config
    from scope_selfplay.corpus import read_documents
    from scope_selfplay.corpus.run_corpus import embedded_documents
    from scope_selfplay.judge.server import lexical_app, serve_forever
    from scope_selfplay.wire.guarded_http import LOOPBACK, secret

    key = secret(api_key_env, "--api-key-env")
    if key is None and host not in LOOPBACK:
        click.echo(
            f"warning: {host} without --api-key-env: everyone who reaches the port is judged", err=True
        )
    if rehearsal:
        from scope_selfplay.judge.random_judge import rehearsal_app

        app, what = rehearsal_app(key), "throwing dice; nothing is judged"
    else:
        if corpus is not None:
            documents = read_documents(corpus)
        else:
            run = load_config(config, [f"seed={seed}"] if config is None else [])
            documents = embedded_documents(run.seed, run.corpus)
        app, what = lexical_app(documents, key), f"judging {len(documents)} articles of the embedded world"

    def said(url: str) -> None:
        click.echo(f"{what} at {url}", err=True)

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve_forever(app, host=host, port=port, said=said))


@click.group("judge")
def judge() -> None:
    """Work with the judge."""


ROLES = (
    *("entity", "source", "safety"),
    *("rubric", "dimensions", "grade"),
    *("scores", "preference", "select"),
    *("implicit", "explicit", "correctness"),
)


def _text(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """A text, or `@file` for what the file holds."""
    if value is None or not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{value}: cannot be read as text ({error})") from None


_TEXT: dict[str, Any] = {"callback": _text, "metavar": "TEXT|@FILE"}


@judge.command("try")
@click.argument(
    "role",
    type=click.Choice(ROLES),
)
@click.option("--task", required=True, help="The task.", **_TEXT)
@click.option("--task-type", default="long_form_qa", show_default=True)
@click.option(
    "--document", multiple=True, help="A source document; several for `rubric`.", metavar="TEXT|@FILE"
)
@click.option("--answer", multiple=True, help="An answer; two or more to compare.", metavar="TEXT|@FILE")
@click.option("--criterion", help="The one criterion.", **_TEXT)
@click.option("--reference", help="A reference answer.", **_TEXT)
@click.option("--winners", default=1, show_default=True, help="How many `select` chooses.")
@click.option(
    "--domain", default="wikipedia", show_default=True, help="Prompt pack: a folder or a shipped name."
)
@click.option(
    "--config", type=click.Path(exists=True, path_type=Path), help="Run config whose judge is asked."
)
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a setting of the config."
)
@click.option("--base-url", help="Endpoint to ask; short for judge.endpoint.base_url.")
@click.option("--seed", default=0, show_default=True)
@click.option("--dry", is_flag=True, help="Show the prompt and ask nobody.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def try_judge(context: click.Context, /, role: str, **options: Any) -> None:
    """Ask the judge for one judgement and see prompt, completion, parsed value and tokens.

    \b
    scope judge try entity --task "Why did the coach leave?" --base-url http://127.0.0.1:8000/v1
    scope judge try grade --task @task.txt --answer @answer.txt --criterion "Names the year 1936."
    """
    import asyncio
    import json

    from scope_selfplay.errors import ScopeError
    from scope_selfplay.judge.trying import make_trial, run_trial

    texts = {
        name: [_text(context, context.command.params[0], each) or "" for each in options[name]]
        for name in ("document", "answer")
    }
    try:
        trial = make_trial(role, {**options, **texts})
        result = None if options["dry"] else asyncio.run(run_trial(trial))
    except ScopeError as error:
        click.echo(f"Error: {error}", err=True)
        context.exit(int(error.exit_code))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if options["as_json"]:
        click.echo(json.dumps({"prompt": trial.asked.prompt, **(result or {})}, ensure_ascii=False))
    else:
        _show(trial, result)


def _show(trial: "Trial", result: dict[str, Any] | None) -> None:
    from rich.console import Console
    from rich.rule import Rule

    console = Console()

    def part(title: str, text: object) -> None:
        console.print(Rule(title, align="left", style="dim"))
        console.print(str(text), markup=False, highlight=False)

    part(f"prompt ({trial.asked.role})", trial.asked.prompt)
    if result is not None:
        part("completion", result["completion"] or result["reasoning"])
        part("read", "unreadable" if result["value"] is None else result["value"])
        part("account", ", ".join(f"{key} {result[key]}" for key in ("attempts", "tokens_in", "tokens_out")))
