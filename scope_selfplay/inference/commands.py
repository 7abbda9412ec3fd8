"""`scope serve-model`. Heavy imports wait until the command runs."""

from typing import Any

import click


@click.command("serve-model")
@click.argument("model")
@click.option(
    "--name", help="Name of the model on the wire. Default: the folder's name and the weights' hash."
)
@click.option("--host", default="127.0.0.1")
@click.option("--port", type=click.IntRange(1, 65535), default=8002)
@click.option("--slots", type=click.IntRange(min=1), default=96, help="Sequences decoded side by side.")
@click.option(
    "--max-length",
    type=click.IntRange(min=64),
    default=16_384,
    help="Tokens of prompt and completion; the model's own limit when that is lower.",
)
@click.option("--queue", type=click.IntRange(min=1), default=4096, help="Sequences that may wait.")
@click.option(
    "--fast",
    is_flag=True,
    help="Let what shares a batch decide draws that fall within rounding of each other.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    help="Where it is decoded; auto takes a GPU where there is one.",
)
@click.option("--api-key-env", help="Environment variable that holds the key that clients must send.")
@click.option("--drain", type=float, default=0.0, help="Seconds from SIGTERM to closing.")
def serve_model(
    model: str, *, host: str, port: int, fast: bool, api_key_env: str | None, drain: float, **settings: Any
) -> None:
    """Serve the policy in the folder MODEL (or `embedded`) over the completions wire of vLLM until SIGTERM.

    For this machine's CPU or one GPU and for tests; at scale serve with vLLM, a run speaks to both alike:
    partners.solver.base_url=http://127.0.0.1:8002/v1
    """
    import asyncio

    from scope_selfplay.base.errors import imports_for

    with imports_for("scope serve-model", "local"):
        from scope_selfplay.inference.server import ModelService, model_app
        from scope_selfplay.net.serve import serve_until_stopped
    from scope_selfplay.net.guard import served_key

    key = served_key(api_key_env, "--api-key-env", host, may="can sample")
    service = ModelService(model, deterministic=not fast, api_key=key, **settings)

    def announce(url: str) -> None:
        click.echo(f"serving {service.name} (weights {service.weights}) at {url}", err=True)

    def drains() -> None:
        service.draining = True

    app = model_app(service)
    asyncio.run(
        serve_until_stopped(app, host=host, port=port, on_ready=announce, drain=drain, on_drain=drains)
    )
