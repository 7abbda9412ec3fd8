"""`scope index build`: the recipe of an index out of the command's options, and the build."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from retrieval.profiles import ProfileName
from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.machine import available_cpus
from scope_selfplay.base.terminal import FOLDER, shown_progress

if TYPE_CHECKING:
    from retrieval.build import Recipe

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OF_VECTORS = ("vectors", "device")
"""Parameters that mean nothing for words."""


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("folder", type=FOLDER)
@click.option("--profile", type=click.Choice([name.value for name in ProfileName]), default="bm25")
@click.option("--encoder", default="minilm", help="minilm, or the folder of a model.")
@click.option(
    "--family",
    type=click.Choice(["e5", "minilm", "plain"]),
    help="Needed where the encoder's name holds none.",
)
@click.option("--backend", type=click.Choice(["onnx", "sentence-transformers"]), default="onnx")
@click.option(
    "--chunk-words", "chunk_tokens", type=click.IntRange(min=0), default=0, help="Cut longer texts."
)
@click.option("--threads", type=click.IntRange(min=1), default=available_cpus, show_default="all it may use")
@click.option(
    "--vectors", type=FILE, help="A flat FAISS index of these passages, in their order: nothing is encoded."
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    help="cuda: torch encodes the passages, on a GPU; queries are encoded on the CPU all the same.",
)
@click.option("--seed", type=int, default=0)
@click.pass_context
def build(
    context: click.Context,
    /,
    source: Path,
    folder: Path,
    *,
    threads: int,
    vectors: Path | None,
    **options: Any,
) -> None:
    """Build an index of SOURCE in FOLDER; the same command again resumes.

    SOURCE: .tsv[.gz] of DPR, .jsonl[.gz], .parquet, or a folder of texts, read as a run reads it.
    """
    from retrieval.build import build_bm25
    from retrieval.corpus import chunked, read_documents
    from scope_selfplay.corpus.read import listed

    is_dense = options["profile"] != ProfileName.BM25
    _refuse_ignored(context, is_dense=is_dense, has_vectors=vectors is not None)
    # What holds no document is told at once, and a pipe before it is hashed.
    next(read_documents(source))
    recipe = _recipe(source, options, vectors)
    skipped: dict[Path, str] = {}
    documents = read_documents(source, skipped)
    if recipe.chunk_tokens:
        documents = chunked(documents, recipe.chunk_tokens)
    with shown_progress() as progress:
        if is_dense:
            from retrieval.build_dense import DenseBuild, build_dense

            plan = DenseBuild(folder, recipe, threads, vectors=vectors)
            manifest = build_dense(documents, plan, progress)
        else:
            manifest = build_bm25(documents, folder, recipe, progress)
    if skipped:
        click.echo(f"{source}: {listed(skipped)}", err=True)
    click.echo(f"{manifest.identity}  {manifest.rows:,} passages  {manifest.size / 1e9:.2f} GB  {folder}")


def _refuse_ignored(context: click.Context, *, is_dense: bool, has_vectors: bool) -> None:
    """Raises ConfigError where an option was given that would be ignored."""
    why = "belongs to the profiles that search vectors, and bm25 has none"
    ignored = {} if is_dense else dict.fromkeys(OF_VECTORS, why)
    if has_vectors:
        ignored["device"] = "says how to encode, and --vectors are there already"
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in ignored and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise ConfigError(f"{parameter.opts[0]} {ignored[name]}; leave it out")


def _recipe(source: Path, options: dict[str, Any], vectors: Path | None) -> "Recipe":
    """With what the files of a build hold: the same names may hold something else when it is started again.

    Raises ConfigError for an encoder whose name holds no family.
    """
    from retrieval.build import Recipe
    from retrieval.corpus import source_hash
    from retrieval.encoder import family_of, model_hash

    encoder, family, backend = options["encoder"], options["family"], options["backend"]
    if options["profile"] == ProfileName.BM25:
        encoder = family = backend = ""
    elif not family:
        family = family_of(encoder)
        if family is None:
            raise ConfigError(
                f"--encoder {encoder}: its name holds no family; give --family e5 (`query: ` and `passage: ` before "
                "the text), minilm (no prefix, 256 tokens) or plain (no prefix, 512 tokens)"
            )
    chosen = {"encoder": encoder, "family": family, "backend": backend}
    files = {
        "source": str(source.resolve()),
        "source_hash": source_hash(source),
        "vectors_hash": source_hash(vectors) if vectors else "",
        "model_hash": model_hash(encoder) if encoder else "",
    }
    return Recipe(**{**options, **chosen, **files})


@click.group()
def index() -> None:
    """Fetch, build and check retriever indexes."""


index.add_command(build)


@index.command()
@click.argument("folder", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print its manifest.")
def check(folder: Path, as_json: bool) -> None:
    """Verify every checksum of FOLDER and search it once."""
    from retrieval.client import open_index
    from retrieval.folder import Passages, Verify, read_manifest

    manifest = read_manifest(folder, Verify.FULL)
    passages = Passages.open(folder)
    (hits,) = open_index(folder, manifest).search([passages.contents(0)[:200]], 3)
    for hit in hits:
        passages.document(hit.row)
    told = f"{manifest.identity}: {len(manifest.files)} files intact, a search answers"
    click.echo(manifest.model_dump_json(indent=1) if as_json else told)


@click.command("serve-retriever")
@click.argument("folder", type=FOLDER)
@click.option("--host", default="127.0.0.1")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="0 takes a free one.")
@click.option("--workers", type=click.IntRange(min=0), default=1, help="Search processes.")
@click.option("--queue", type=click.IntRange(min=1), default=4096, help="Waiting queries.")
@click.option("--cache", type=click.IntRange(min=0), default=100_000, help="Kept answers.")
@click.option("--deadline", type=float, default=60.0, help="Seconds for one request.")
@click.option("--token-env", help="Environment variable that holds the bearer token.")
@click.option("--drain", type=float, default=0.0, help="Seconds from SIGTERM to closing.")
@click.option("--verify", type=click.Choice(["auto", "full", "sizes"]), default="auto")
def serve_retriever(
    *, host: str, port: int, deadline: float, drain: float, token_env: str | None, **settings: Any
) -> None:
    """Serve the index of FOLDER over HTTP until SIGTERM."""
    import asyncio

    from retrieval.server import serve
    from retrieval.service import SearchService, ServiceSettings
    from scope_selfplay.net.guard import served_key

    if not 0 < deadline < math.inf:
        raise ConfigError(f"--deadline {deadline:g}: expected seconds above 0")
    if not 0 <= drain < math.inf:
        raise ConfigError(f"--drain {drain:g}: expected seconds, 0 or more")
    token = served_key(token_env, "--token-env", host, may="can search")
    service = SearchService(ServiceSettings.model_validate({"deadline": deadline, **settings}))
    asyncio.run(serve(service, host, port, drain=drain, token=token))
