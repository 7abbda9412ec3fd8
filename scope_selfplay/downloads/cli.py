"""`scope corpus fetch` and `scope index fetch`: a published file brought here, with the checksum that one expects."""

import json
from pathlib import Path

import click

from scope_selfplay.terminal import shown_progress


@click.group()
def corpus() -> None:
    """Published corpora: bring one here, as runs and `scope index build` read it."""


@click.command("fetch")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--url",
    "urls",
    multiple=True,
    required=True,
    help="https://..., or hf://datasets/OWNER/NAME@REVISION/PATH; once for each part of a file, in their order.",
)
@click.option("--sha256", required=True, help="Of the file as it is published, its parts joined.")
@click.option("--json", "as_json", is_flag=True, help="Print the file as JSON.")
def fetch(file: Path, urls: tuple[str, ...], sha256: str, *, as_json: bool) -> None:
    """Bring a published file to FILE; what has come stays when it is cut off, and the same command goes on.

    DPR's .tsv[.gz] and a .jsonl.gz become JSON lines where FILE ends in .jsonl; anything else stays as it is.
    """
    from scope_selfplay.downloads.corpus import fetch_file
    from scope_selfplay.downloads.download import PublishedFile, checked_sha256

    published = PublishedFile(urls, checked_sha256(sha256))
    with shown_progress() as progress:
        fetch_file(published, file, say=progress.say)
    click.echo(json.dumps({"file": str(file), "sha256": published.sha256}) if as_json else file)


corpus.add_command(fetch)
