"""`scope index`: the retriever's own commands, `build` for a run's config too, and `documents` for other engines.

An index and a run cut documents alike when both are made from one config: its SOURCE is then that file, whose documents
are cut as a run of it would cut them, and written beside the index.
"""

import copy
from pathlib import Path
from typing import Any

import click

from retrieval.cli import index as of_the_retriever
from scope_selfplay.downloads.cli import fetch

CONFIGS = (".yaml", ".yml")


def documents_of(config: Path, file: Path, overrides: tuple[str, ...] = ()) -> Path:
    """Writes the documents of a run to `file`, the same as its stages search. Raises UserError."""
    from scope_selfplay.config import load_config
    from scope_selfplay.prompts import load_pack
    from scope_selfplay.prompts.folder import pack_path
    from scope_selfplay.run_directory import run_documents
    from scope_selfplay.store import write_records
    from scope_selfplay.terminal import quiet_libraries

    quiet_libraries()
    run = load_config(config, overrides)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_records(file, run_documents(run, load_pack(pack_path(run.domain))))
    return file


def _build() -> click.Command:
    plain = of_the_retriever.commands["build"]
    build = copy.copy(plain)
    again = click.Option(
        ["--set", "overrides"],
        multiple=True,
        metavar="KEY=VALUE",
        help="Change one setting of a run's config.",
    )
    build.params = [*plain.params, again]
    build.help = (
        f"{plain.help}\n\n    Or a run's config (.yaml): its documents, cut as a run of it cuts them."
    )

    def of_a_run_or_a_corpus(
        *, source: Path, folder: Path, overrides: tuple[str, ...], **options: Any
    ) -> None:
        if source.suffix in CONFIGS:
            source = documents_of(source, folder.with_name(f"{folder.name}.documents.jsonl"), overrides)
        elif overrides:
            raise click.UsageError("--set changes a run's config, and SOURCE is none")
        assert plain.callback is not None
        plain.callback(source=source, folder=folder, **options)

    build.callback = of_a_run_or_a_corpus
    return build


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting.")
def documents(config: Path, file: Path, overrides: tuple[str, ...]) -> None:
    """Write the documents of a run's CONFIG to FILE, cut as a run of it cuts them: a JSON line with id, title and text
    each, for a search engine of yours."""
    documents_of(config, file, overrides)


index = click.Group(
    "index",
    help=of_the_retriever.help,
    commands={**of_the_retriever.commands, "build": _build(), "documents": documents, "fetch": fetch},
)
