"""`scope documents`: what a run would read from a path. Heavy imports wait until the command runs."""

import statistics
from pathlib import Path

import click

SHOWN = 12


@click.command("documents")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--domain", help="Prompt pack that says how a folder is read: a folder or a name.")
@click.option("--reader", help="Read a folder in this way instead: text_files or markdown_sections.")
@click.option("--json", "as_json", is_flag=True, help="Print every document as a line of JSON.")
def documents(path: Path, domain: str | None, reader: str | None, as_json: bool) -> None:
    """Read source documents as a run would, and show what they became.

    With --json the lines are a corpus themselves: for corpus.path of a run and for `scope index build`.
    """
    from scope_selfplay.corpus.reading import read_documents
    from scope_selfplay.prompts import load_pack
    from scope_selfplay.prompts.folder import pack_path
    from scope_selfplay.schemas import CorpusReader
    from scope_selfplay.untrusted_text import one_line

    if reader is not None and reader not in list(CorpusReader):
        raise click.BadParameter(f"--reader {reader}: expected one of {', '.join(CorpusReader)}")
    chosen = None if reader is None else CorpusReader(reader)
    if chosen is None and domain is not None:
        chosen = load_pack(pack_path(domain)).domain.corpus_reader
    skipped: dict[str, list[str]] = {}
    read = read_documents(path, chosen, lambda file, reason: skipped.setdefault(reason, []).append(str(file)))
    for reason, files in skipped.items():
        shown = ", ".join(files[:SHOWN]) + (", ..." if len(files) > SHOWN else "")
        click.echo(f"skipped: {len(files)} {reason}: {one_line(shown)}", err=True)
    if as_json:
        for document in read:
            click.echo(document.model_dump_json())
        return
    for document in read[:SHOWN]:
        click.echo(f"{one_line(document.id)}\t{len(document.text)}\t{one_line(document.title)}")
    if len(read) > SHOWN:
        click.echo(f"... and {len(read) - SHOWN} more (--json prints all)", err=True)
    lengths = sorted(len(document.text) for document in read)
    click.echo(
        f"{len(read)} documents; characters: median {statistics.median(lengths):.0f}, longest {lengths[-1]}",
        err=True,
    )
