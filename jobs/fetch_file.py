"""A published file on the volume: a corpus, made JSON lines where its name says so, or the vectors of an index.

    python -m jobs.fetch_file --file /data/corpus/wikipedia-2018.jsonl --url https://... --sha256 HEX

One that is there and whole is left alone; a download that was cut off goes on. Every other pod is offline.
"""

from functools import partial
from pathlib import Path

import click

from jobs.fetch_model import TOKEN
from jobs.stage_job import run_job
from scope_selfplay.corpus.published import fetch_file
from scope_selfplay.store.fetch import PublishedFile, checked_sha256


@click.command()
@click.option("--file", type=click.Path(path_type=Path), required=True, help="Where it goes on the volume.")
@click.option("--url", "urls", multiple=True, required=True, help="Of each of its parts, in their order.")
@click.option("--sha256", required=True, help="Of the file as it is published, its parts joined.")
@click.option("--token-file", type=click.Path(path_type=Path), default=TOKEN, show_default=True)
def main(file: Path, urls: tuple[str, ...], sha256: str, token_file: Path) -> None:
    """Bring one published file to the volume."""
    token = token_file.read_text().strip() if token_file.is_file() else None
    say = partial(click.echo, err=True)
    fetch_file(PublishedFile(urls, checked_sha256(sha256)), file, say=say, token=token)


if __name__ == "__main__":
    run_job(main, "fetch_file")
