"""`scope index build`: the recipe of an index out of the command's options, and the build."""

import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from retrieval.profiles import ProfileName
from scope_selfplay.container import available_cpus
from scope_selfplay.errors import ConfigError

if TYPE_CHECKING:
    from retrieval.build import Progress, Recipe
    from scope_selfplay.schemas import Document

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OF_VECTORS = ("questions", "vectors", "device")
"""Parameters that mean nothing for words."""


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("folder", type=FOLDER)
@click.option(
    "--profile", type=click.Choice([name.value for name in ProfileName]), default="bm25", show_default=True
)
@click.option("--encoder", default="minilm", show_default=True, help="minilm, or the folder of a model.")
@click.option(
    "--family",
    type=click.Choice(["e5", "minilm", "plain"]),
    help="Needed where the encoder's name holds none.",
)
@click.option(
    "--backend", type=click.Choice(["onnx", "sentence-transformers"]), default="onnx", show_default=True
)
@click.option(
    "--chunk-tokens", type=click.IntRange(min=0), default=0, help="Cut longer texts; 0 leaves them."
)
@click.option("--chunk-overlap", type=click.IntRange(min=0), default=0)
@click.option(
    "--tokenizer", type=FILE, help="tokenizer.json that --chunk-tokens counts with; default: words."
)
@click.option("--questions", type=FILE, help="JSON lines with `question`, for the recall gate.")
@click.option("--threads", type=click.IntRange(min=1), default=available_cpus, show_default="all it may use")
@click.option(
    "--vectors", type=FILE, help="A flat FAISS index of these passages, in their order: nothing is encoded."
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda: torch encodes the passages, on a GPU; queries are encoded on the CPU all the same.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--estimate-only", is_flag=True, help="Print time, disk and memory, build nothing.")
@click.pass_context
def build(
    context: click.Context,
    /,
    source: Path,
    folder: Path,
    *,
    tokenizer: Path | None,
    questions: Path | None,
    threads: int,
    vectors: Path | None,
    estimate_only: bool,
    **options: Any,
) -> None:
    """Build an index of SOURCE in FOLDER; the same command again resumes.

    SOURCE: .tsv[.gz] of DPR, .jsonl[.gz], .parquet, or a folder of .txt, .md and .html files.
    """
    from retrieval.build import build_bm25
    from retrieval.corpus import read_documents, read_questions
    from retrieval.profiles import estimate_build

    _check_chunks(options["chunk_tokens"], options["chunk_overlap"], tokenizer)
    asked = read_questions(questions) if questions else ()
    is_dense = options["profile"] != ProfileName.BM25
    _refuse_ignored(context, is_dense=is_dense, has_vectors=vectors is not None)
    recipe = _recipe(source, options)
    click.echo(estimate_build(recipe, source, threads, is_encoded=vectors is not None), err=True)
    if estimate_only:
        return
    recipe = _with_hashes(recipe, source, tokenizer=tokenizer, questions=questions, vectors=vectors)
    documents = _chunked(read_documents(source), recipe, tokenizer)
    if is_dense:
        from retrieval.build_dense import DenseBuild, build_dense

        plan = DenseBuild(folder, recipe, threads, questions=asked, vectors=vectors)
        manifest = build_dense(documents, plan, _progress())
    else:
        manifest = build_bm25(documents, folder, recipe, _progress())
    click.echo(f"{manifest.identity}  {manifest.rows:,} passages  {manifest.size / 1e9:.2f} GB  {folder}")


def _refuse_ignored(context: click.Context, *, is_dense: bool, has_vectors: bool) -> None:
    if not is_dense:
        _refuse(context, OF_VECTORS, "belongs to the profiles that search vectors, and bm25 has none")
    if has_vectors:
        _refuse(context, ("device",), "says how to encode, and --vectors are there already")


def _refuse(context: click.Context, names: Collection[str], why: str) -> None:
    """Raises ConfigError where one of these parameters was given: it would be ignored."""
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") is not ParameterSource.DEFAULT
        if parameter.name in names and given:
            raise ConfigError(f"{parameter.opts[0]} {why}; leave it out")


def _check_chunks(size: int, overlap: int, tokenizer: Path | None) -> None:
    """Raises ConfigError for options that would do nothing, or never end a text."""
    if not size and (overlap or tokenizer):
        name = "--chunk-overlap" if overlap else "--tokenizer"
        raise ConfigError(f"{name} says how --chunk-tokens cuts texts: give that too, or leave it out")
    if size and overlap >= size:
        raise ConfigError(f"--chunk-overlap {overlap} has to be less than --chunk-tokens {size}")


def _recipe(source: Path, options: dict[str, Any]) -> "Recipe":
    """The recipe without the hashes of its files. Raises ConfigError for an encoder whose name holds no family."""
    from retrieval.build import Recipe
    from retrieval.corpus import source_bytes
    from retrieval.encoder import family_of

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
    origin = {"source": str(source.resolve()), "source_bytes": source_bytes(source)}
    return Recipe(**{**options, **chosen, **origin})


def _with_hashes(recipe: "Recipe", source: Path, **files: Path | None) -> "Recipe":
    """With what the files of a build hold: the same names may hold something else when it is started again."""
    from retrieval.corpus import source_hash
    from retrieval.encoder import model_hash

    hashes = {
        "source_hash": source_hash(source),
        **{f"{name}_hash": source_hash(file) if file else "" for name, file in files.items()},
        "model_hash": model_hash(recipe.encoder) if recipe.encoder else "",
    }
    return recipe.model_copy(update=hashes)


def _chunked(
    documents: "Iterable[Document]", recipe: "Recipe", tokenizer: Path | None
) -> "Iterable[Document]":
    from retrieval.corpus import chunk_documents, token_spans, word_spans

    if not recipe.chunk_tokens:
        return documents
    spans = token_spans(tokenizer) if tokenizer else word_spans
    return chunk_documents(documents, size=recipe.chunk_tokens, overlap=recipe.chunk_overlap, spans=spans)


def _progress() -> "Progress":
    from rich.console import Console

    console = Console(stderr=True)
    starts: dict[str, float] = {}

    def show(step: str, done: int, total: int) -> None:
        now = time.monotonic()
        start = starts.setdefault(step, now)
        left = (now - start) / done * (total - done) if done and total else 0.0
        share = f"{done:,} of {total:,}, {left / 60:.0f} min left" if total else f"{done:,}"
        console.print(f"{step}: {share}", end="\n" if total and done >= total else "\r")

    return show
