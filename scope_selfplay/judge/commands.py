"""`scope serve-judge`, and `scope judge try`: one judgement for a person who writes prompts.

Servers, corpus readers and rich are imported when a command runs.
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from scope_selfplay.base.errors import ExitCode, imports_for
from scope_selfplay.base.text import printable
from scope_selfplay.base.values import Criterion, Document, Fault, Rollout, Rubric, Task
from scope_selfplay.config.judge import JudgeConfig
from scope_selfplay.config.load import load_config
from scope_selfplay.judge.endpoint import with_models
from scope_selfplay.judge.fences import fence_key
from scope_selfplay.judge.model import ModelJudge
from scope_selfplay.judge.protocol import Question, SelectQuestion, question_of
from scope_selfplay.judge.questions import ROLE_OF_PROMPT, JudgePrompts
from scope_selfplay.net.guard import served_key
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.roles import PromptRole


@click.command("serve-judge")
@click.option(
    "--rehearsal",
    is_flag=True,
    help="Give random verdicts instead, in the form that each prompt asks for: any domain.",
)
@click.option("--host", default="127.0.0.1")
@click.option("--port", default=8001)
@click.option("--api-key-env", help="Environment variable that holds the key that clients must send.")
def serve_judge(*, rehearsal: bool, host: str, port: int, api_key_env: str | None) -> None:
    """Serve the embedded lexical judge over the wire of an OpenAI-compatible endpoint.

    Point a run at it with two settings: judge.kind=model judge.endpoint.base_url=http://127.0.0.1:8001/v1
    """
    with imports_for("scope serve-judge", "view"):
        from scope_selfplay.judge.served import lexical_app, random_judge_app
        from scope_selfplay.net.serve import serve_until_stopped
    key = served_key(api_key_env, "--api-key-env", host, may="is judged")
    if rehearsal:
        app, what = random_judge_app(key), "answering at random; nothing is judged"
    else:
        app, what = lexical_app(key), "judging statements of the embedded world by what each prompt shows"

    def announce(url: str) -> None:
        click.echo(f"{what} at {url}", err=True)

    asyncio.run(serve_until_stopped(app, host=host, port=port, on_ready=announce))


@click.group("judge")
def judge() -> None:
    """Work with the judge."""


def _text(value: str) -> str:
    """A text, or `@file` for what the file holds."""
    try:
        return Path(value[1:]).read_text(encoding="utf-8") if value.startswith("@") else value
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{value}: cannot be read as text ({error})") from None


_TEXT: dict[str, Any] = {"type": _text, "metavar": "TEXT|@FILE"}


@judge.command("try")
@click.argument("role", type=click.Choice([*map(str, ROLE_OF_PROMPT)]), metavar="ROLE")
@click.option("--task", required=True, help="The task.", **_TEXT)
@click.option("--task-type", default="long_form_qa")
@click.option("--document", multiple=True, help="A source document; several for `rubric`.", **_TEXT)
@click.option("--answer", multiple=True, help="An answer; two or more to compare.", **_TEXT)
@click.option("--criterion", help="The one criterion.", **_TEXT)
@click.option("--reference", help="A reference answer.", **_TEXT)
@click.option("--winners", default=1, help="How many `select` chooses.")
@click.option("--domain", default="wikipedia", help="Prompt pack: a folder or a shipped name.")
@click.option(
    "--config", type=click.Path(exists=True, path_type=Path), help="Run config whose judge is asked."
)
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a setting of the config."
)
@click.option("--base-url", help="Endpoint to ask; short for judge.endpoint.base_url.")
@click.option("--seed", default=0)
@click.option("--dry", is_flag=True, help="Show the prompt and ask nobody.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def try_judge(role: str, **options: Any) -> None:
    """Ask the judge for one judgement and see prompt, completion, parsed value and tokens. ROLE is that of a prompt.

    \b
    scope judge try gate_entity --task "Why did the coach leave?" --base-url http://127.0.0.1:8000/v1
    scope judge try grade --task @task.txt --answer @answer.txt --criterion "Names the year 1936."
    """
    try:
        config, question = _config_of(options), _question_of(PromptRole(role), options)
        pack, key = load_pack(pack_path(options["domain"])), fence_key("try", options["seed"])
        prompt = JudgePrompts(pack, config, key=key).render(question).prompt
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    result = None if options["dry"] else asyncio.run(_ask(config, pack, question, key, options["seed"]))
    if options["as_json"]:
        click.echo(json.dumps({"prompt": prompt, **(result or {})}, ensure_ascii=False))
    else:
        _show(f"prompt ({question.role})", prompt, result)
    if result is not None and result["fault"] not in (None, Fault.UNREADABLE):
        click.get_current_context().exit(int(ExitCode.OUTSIDE))


def _config_of(options: Mapping[str, Any]) -> JudgeConfig:
    overrides = list(options["overrides"])
    if options["base_url"]:
        overrides += ["judge.kind=model", f"judge.endpoint.base_url={options['base_url']}"]
    config = load_config(options["config"], overrides).judge
    if config.kind != "model" and not options["dry"]:
        raise ValueError("no endpoint to ask: give --base-url, or --config with judge.kind: model, or --dry")
    return config


async def _ask(
    config: JudgeConfig, pack: Pack, question: Question[Any], key: bytes, seed: int
) -> dict[str, Any]:
    """Completion, parsed value, fault, attempts and tokens; retried and faulted as in a run, never cached."""
    judge = ModelJudge(await with_models(config), pack, seed=seed, key=key)
    reply = await judge.ask(question)
    await judge.close()
    value: Any = reply.value
    if isinstance(question, SelectQuestion) and value is not None:
        # Answers are counted from 1 at a terminal.
        value = [number + 1 for number in value]
    elif isinstance(value, Rubric):
        value = [criterion.model_dump(mode="json") for criterion in value.criteria]
    shown = ("reasoning", "fault", "attempts", "tokens_in", "tokens_out")
    said = {name: getattr(reply.verdict, name) for name in shown}
    return said | {"completion": reply.completion, "value": value, "odds": dict(reply.odds)}


def _show(title: str, prompt: str, result: dict[str, Any] | None) -> None:
    from rich.console import Console
    from rich.rule import Rule

    console = Console()

    def part(title: str, text: object) -> None:
        console.print(Rule(title, align="left", style="dim"))
        console.print(printable(str(text)), markup=False, highlight=False)

    part(title, prompt)
    if result is not None:
        part("completion", result["completion"] or result["reasoning"])
        part("read", "unreadable" if result["value"] is None else result["value"])
        part("account", ", ".join(f"{key} {result[key]}" for key in ("attempts", "tokens_in", "tokens_out")))


def _question_of(role: PromptRole, options: Mapping[str, Any]) -> Question[Any]:
    """Raises ValueError for what the role needs and has not."""
    task = Task(
        id="try",
        text=options["task"],
        type=options["task_type"],
        document_id="",
        reference=options["reference"],
    )
    documents = [Document(id=str(n), title="", text=text) for n, text in enumerate(options["document"])]
    if (role is PromptRole.RUBRIC) is not bool(documents) and role.startswith("rubric"):
        raise ValueError("rubric needs --document; rubric_dimensions writes from the task alone")
    answers = [Rollout.of_answer(answer, str(place)) for place, answer in enumerate(options["answer"], 1)]
    by = Criterion(text=options["criterion"]) if options["criterion"] else None
    return question_of(role, task, documents=documents, answers=answers, by=by, winners=options["winners"])
