"""`scope index build|check|info` and `scope serve-retriever`; the heavy imports are inside the commands."""

import math
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from retrieval.profiles import ProfileName

if TYPE_CHECKING:
    from retrieval.build import Progress, Recipe
    from retrieval.server import SearchService
    from scope_selfplay.schemas import Document

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OF_A_FOLDER = ("workers", "cache", "verify")
"""Parameters of `serve-retriever` that mean nothing for a router."""
OF_VECTORS = ("questions", "keep_vectors", "encoded")
"""Parameters of `scope index build` that mean nothing for words."""


@click.group()
def index() -> None:
    """Build and inspect retriever indexes."""


@index.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("folder", type=FOLDER)
@click.option(
    "--profile", type=click.Choice([name.value for name in ProfileName]), default="bm25", show_default=True
)
@click.option("--encoder", default="minilm", show_default=True, help="minilm, or the folder of a model.")
@click.option(
    "--family",
    type=click.Choice(["e5", "minilm", "plain"]),
    help="Needed where the encoder's name tells none.",
)
@click.option(
    "--backend", type=click.Choice(["onnx", "sentence-transformers"]), default="onnx", show_default=True
)
@click.option(
    "--query-precision",
    type=click.Choice(["float32", "int8"]),
    default="float32",
    show_default=True,
    help="int8: most of the query encoder's weights in 8 bits, if the recall gate allows it.",
)
@click.option(
    "--chunk-tokens", type=click.IntRange(min=0), default=0, help="Cut longer texts; 0 leaves them."
)
@click.option("--chunk-overlap", type=click.IntRange(min=0), default=0)
@click.option(
    "--tokenizer", type=FILE, help="tokenizer.json that --chunk-tokens counts with; default: words."
)
@click.option("--questions", type=FILE, help="JSON lines with `question`, for the recall gate.")
@click.option("--rows", help="FIRST:END, the rows of SOURCE for one shard; default all.")
@click.option("--threads", type=click.IntRange(min=1), default=os.cpu_count(), show_default=True)
@click.option(
    "--keep-vectors", is_flag=True, help="Keep the encoded shards, to build another profile from them."
)
@click.option("--encoded", type=FOLDER, help="A finished build with kept vectors to take them from.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--estimate-only", is_flag=True, help="Print time, disk and memory, build nothing.")
@click.pass_context
def build(
    context: click.Context,
    /,
    source: Path,
    folder: Path,
    *,
    profile: str,
    encoder: str,
    family: str | None,
    backend: str,
    query_precision: str,
    chunk_tokens: int,
    chunk_overlap: int,
    tokenizer: Path | None,
    questions: Path | None,
    rows: str | None,
    threads: int,
    keep_vectors: bool,
    encoded: Path | None,
    seed: int,
    estimate_only: bool,
) -> None:
    """Build an index of SOURCE in FOLDER; the same command again resumes.

    SOURCE: .tsv[.gz] of DPR, .jsonl[.gz], .parquet, or a folder of .txt, .md and .html files.
    """
    from retrieval.build import Recipe, build_bm25, row_range
    from retrieval.readers import read_documents, read_questions
    from retrieval.sources import source_bytes

    row_range(rows or "")
    _check_chunks(chunk_tokens, chunk_overlap, tokenizer)
    asked = read_questions(questions) if questions else ()
    dense = profile != ProfileName.BM25
    if not dense:
        _refuse(context, OF_VECTORS, "belongs to the profiles that search vectors, and bm25 has none")
    recipe = Recipe(
        profile=profile,
        source=str(source.resolve()),
        source_bytes=source_bytes(source),
        chunk_tokens=chunk_tokens,
        chunk_overlap=chunk_overlap,
        encoder=encoder if dense else "",
        family=(family or _family(encoder)) if dense else "",
        backend=backend if dense else "",
        query_precision=query_precision,
        seed=seed,
        rows=rows or "",
    )
    _show_estimate(recipe, source, threads)
    if estimate_only:
        return
    recipe = recipe.model_copy(update=_hashes(source, recipe, tokenizer, questions))
    documents = _chunked(read_documents(source), recipe, tokenizer)
    progress = _progress()
    if dense:
        from retrieval.build_dense import DenseBuild, build_dense

        plan = DenseBuild(
            folder, recipe, threads=threads, keep_shards=keep_vectors, questions=asked, encoded=encoded
        )
        manifest = build_dense(documents, plan, progress)
    else:
        manifest = build_bm25(documents, folder, recipe, progress)
    click.echo(f"{manifest.identity}  {manifest.rows:,} passages  {manifest.size / 1e9:.2f} GB  {folder}")


@index.command()
@click.argument("folder", type=FOLDER)
def check(folder: Path) -> None:
    """Verify every checksum of FOLDER and search it once."""
    from retrieval.indexes import open_index
    from retrieval.manifest import Verify, read_manifest
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
    from retrieval.manifest import Verify, read_manifest

    click.echo(read_manifest(folder, Verify.SIZES).model_dump_json(indent=1))


@click.command("serve-retriever")
@click.argument("folder", type=FOLDER, required=False)
@click.option("--shard", "shards", multiple=True, help="URL of a shard, in row order, instead of FOLDER.")
@click.option("--shard-host", "hosts", multiple=True, help="A host that --shard may name besides this one.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one."
)
@click.option("--workers", type=click.IntRange(min=0), default=1, show_default=True, help="Search processes.")
@click.option("--queue", type=click.IntRange(min=1), default=4096, show_default=True, help="Waiting queries.")
@click.option("--cache", type=click.IntRange(min=0), default=100_000, show_default=True, help="Kept answers.")
@click.option("--deadline", type=float, default=60.0, show_default=True, help="Seconds for one request.")
@click.option("--tokenizer", type=FILE, help="tokenizer.json of the policy, for requests with max_tokens.")
@click.option("--token-env", help="Environment variable that holds the bearer token.")
@click.option("--drain", type=float, default=0.0, show_default=True, help="Seconds from SIGTERM to closing.")
@click.option("--verify", type=click.Choice(["auto", "full", "sizes"]), default="auto", show_default=True)
@click.pass_context
def serve_retriever(
    context: click.Context,
    /,
    folder: Path | None,
    *,
    shards: tuple[str, ...],
    hosts: tuple[str, ...],
    host: str,
    port: int,
    deadline: float,
    drain: float,
    token_env: str | None,
    **settings: object,
) -> None:
    """Serve the index of FOLDER, or merge shards, over HTTP until SIGTERM; SIGHUP opens them again."""
    import asyncio

    from retrieval.serving import ListenAddress, serve
    from scope_selfplay.errors import ConfigError
    from scope_selfplay.wire.guarded_http import secret

    if bool(shards) == (folder is not None):
        raise ConfigError("serve-retriever takes either the FOLDER of an index or --shard URLs")
    if shards:
        _refuse(context, OF_A_FOLDER, "says how a FOLDER is served, and a router of --shard URLs opens none")
    else:
        _refuse(context, ("hosts",), "names hosts of --shard URLs, and there are none")
    if not 0 < deadline < math.inf:
        raise ConfigError(f"--deadline {deadline:g}: expected seconds above 0")
    if not 0 <= drain < math.inf:
        raise ConfigError(f"--drain {drain:g}: expected seconds, 0 or more")
    token = secret(token_env, "--token-env")
    if token is None and host not in ("127.0.0.1", "localhost", "::1"):
        click.echo(f"warning: {host} without --token-env: everyone who reaches the port can search", err=True)
    address = ListenAddress(host=host, port=port, drain_seconds=drain)
    settings["deadline"] = deadline

    async def run() -> None:
        await serve(_retriever(folder, shards, hosts, token, settings), address, token)

    asyncio.run(run())


def _refuse(context: click.Context, names: Collection[str], why: str) -> None:
    """Raises ConfigError where one of these parameters was given: it would be ignored."""
    from scope_selfplay.errors import ConfigError

    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") is not ParameterSource.DEFAULT
        if parameter.name in names and given:
            raise ConfigError(f"{parameter.opts[0]} {why}; leave it out")


def _retriever(
    folder: Path | None,
    shards: tuple[str, ...],
    hosts: tuple[str, ...],
    token: str | None,
    settings: dict[str, object],
) -> "SearchService":
    if folder is None:
        from retrieval.router import ShardRouter
        from scope_selfplay.wire.guarded_http import LOOPBACK

        options = {name: settings[name] for name in ("tokenizer", "deadline", "queue")}
        return ShardRouter(
            shards, allowed_hosts={*LOOPBACK, *hosts}, token=token, **cast("dict[str, Any]", options)
        )
    from retrieval.index_service import IndexService, ServiceSettings
    from retrieval.metrics import RetrieverMetrics

    return IndexService(ServiceSettings.model_validate({"folder": folder, **settings}), RetrieverMetrics())


def _family(encoder: str) -> str:
    """By the encoder's name. Raises ConfigError where it says nothing: a wrong prefix only finds less."""
    from scope_selfplay.errors import ConfigError

    name = Path(encoder).name.lower()
    for family in ("minilm", "e5"):
        if family in name:
            return family
    raise ConfigError(
        f"--encoder {encoder}: its name tells no family; give --family e5 (`query: ` and `passage: ` before the "
        "text), minilm (no prefix, 256 tokens) or plain (no prefix, 512 tokens)"
    )


def _hashes(source: Path, recipe: "Recipe", tokenizer: Path | None, questions: Path | None) -> dict[str, str]:
    """What the files of a build hold: the same names may hold something else when it is started again."""
    from retrieval.encoder import model_hash
    from retrieval.sources import source_hash

    return {
        "source_hash": source_hash(source),
        "tokenizer_hash": source_hash(tokenizer) if tokenizer else "",
        "questions_hash": source_hash(questions) if questions else "",
        "model_hash": model_hash(recipe.encoder) if recipe.encoder else "",
    }


def _chunked(
    documents: "Iterable[Document]", recipe: "Recipe", tokenizer: Path | None
) -> "Iterable[Document]":
    from retrieval.chunking import chunk_documents, word_spans

    if not recipe.chunk_tokens:
        return documents
    spans = word_spans
    if tokenizer is not None:
        from retrieval.token_cap import TokenCap

        spans = TokenCap(tokenizer).spans
    return chunk_documents(documents, size=recipe.chunk_tokens, overlap=recipe.chunk_overlap, spans=spans)


def _check_chunks(size: int, overlap: int, tokenizer: Path | None) -> None:
    """Raises ConfigError for options that would do nothing, or never end a text."""
    from scope_selfplay.errors import ConfigError

    if not size and (overlap or tokenizer):
        name = "--chunk-overlap" if overlap else "--tokenizer"
        raise ConfigError(f"{name} says how --chunk-tokens cuts texts: give that too, or leave it out")
    if size and overlap >= size:
        raise ConfigError(f"--chunk-overlap {overlap} has to be less than --chunk-tokens {size}")


def _show_estimate(recipe: "Recipe", source: Path, threads: int) -> None:
    from retrieval.estimating import estimate_build

    click.echo(estimate_build(recipe, source, threads), err=True)


def _progress() -> "Progress":
    import time

    from rich.console import Console

    console = Console(stderr=True)
    started: dict[str, float] = {}

    def show(step: str, done: int, total: int) -> None:
        now = time.monotonic()
        begun = started.setdefault(step, now)
        left = (now - begun) / done * (total - done) if done and total else 0.0
        share = f"{done:,} of {total:,}, {left / 60:.0f} min left" if total else f"{done:,}"
        console.print(f"{step}: {share}", end="\n" if total and done >= total else "\r")

    return show
