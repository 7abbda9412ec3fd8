"""`scope index build|check|info` and `scope serve-retriever`; the heavy imports are inside the commands."""

import math
from pathlib import Path
from typing import Any

import click

from retrieval.build_command import FOLDER, build
from scope_selfplay.errors import ConfigError


@click.group()
def index() -> None:
    """Build and inspect retriever indexes."""


index.add_command(build)


@index.command()
@click.argument("folder", type=FOLDER)
def check(folder: Path) -> None:
    """Verify every checksum of FOLDER and search it once."""
    from retrieval.in_process import open_index
    from retrieval.index_folder import Verify, read_manifest
    from retrieval.passages import Passages

    manifest = read_manifest(folder, Verify.FULL)
    passages = Passages.open(folder, manifest.corpus_hash)
    (hits,) = open_index(folder, manifest).search([passages.contents(0)[:200]], 3)
    for hit in hits:
        passages.document(hit.row)
    click.echo(f"{manifest.identity}: {len(manifest.files)} files intact, a search answers")


@index.command()
@click.argument("folder", type=FOLDER)
def info(folder: Path) -> None:
    """Print the manifest of FOLDER as JSON; checks sizes only."""
    from retrieval.index_folder import Verify, read_manifest

    click.echo(read_manifest(folder, Verify.SIZES).model_dump_json(indent=1))


@click.command("serve-retriever")
@click.argument("folder", type=FOLDER)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one."
)
@click.option("--workers", type=click.IntRange(min=0), default=1, show_default=True, help="Search processes.")
@click.option("--queue", type=click.IntRange(min=1), default=4096, show_default=True, help="Waiting queries.")
@click.option("--cache", type=click.IntRange(min=0), default=100_000, show_default=True, help="Kept answers.")
@click.option("--deadline", type=float, default=60.0, show_default=True, help="Seconds for one request.")
@click.option("--token-env", help="Environment variable that holds the bearer token.")
@click.option("--drain", type=float, default=0.0, show_default=True, help="Seconds from SIGTERM to closing.")
@click.option("--verify", type=click.Choice(["auto", "full", "sizes"]), default="auto", show_default=True)
def serve_retriever(
    *, host: str, port: int, deadline: float, drain: float, token_env: str | None, **settings: Any
) -> None:
    """Serve the index of FOLDER over HTTP until SIGTERM."""
    import asyncio

    from retrieval.server import ListenAddress, serve
    from retrieval.service import SearchService, ServiceSettings
    from scope_selfplay.wire.guarded_http import secret

    if not 0 < deadline < math.inf:
        raise ConfigError(f"--deadline {deadline:g}: expected seconds above 0")
    if not 0 <= drain < math.inf:
        raise ConfigError(f"--drain {drain:g}: expected seconds, 0 or more")
    token = secret(token_env, "--token-env")
    if token is None and host not in ("127.0.0.1", "localhost", "::1"):
        click.echo(f"warning: {host} without --token-env: everyone who reaches the port can search", err=True)
    service = SearchService(ServiceSettings.model_validate({"deadline": deadline, **settings}))
    asyncio.run(serve(service, ListenAddress(host=host, port=port, drain_seconds=drain), token))
