"""The index that the retriever serves, on the volume; a finished one is left alone, a killed build goes on.

python -m jobs.build_index --config FILE --index FOLDER                       the run's own documents, BM25
python -m jobs.build_index --index FOLDER --source FILE [-- OPTION ...]       any corpus, as `scope index build`

Corpus, encoder and vectors may still be on their way when it starts: it waits for them a while, then gives its place to
others and ends with 75.
"""

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import click

from jobs.stage_job import CONFIG, PACKS, run_job
from scope_selfplay.base.errors import OutsideError
from scope_selfplay.base.terminal import quiet_libraries

_FETCHED = ("--encoder", "--vectors")
"""Options whose file or folder another Job brings."""


@click.command()
@click.option("--config", type=click.Path(path_type=Path), default=CONFIG, show_default=True)
@click.option("--prompts", type=click.Path(path_type=Path), default=PACKS, show_default=True)
@click.option("--index", type=click.Path(path_type=Path), required=True, help="Folder of the index.")
@click.option("--source", type=click.Path(path_type=Path), help="Corpus; the config's documents without it.")
@click.option("--patience", type=float, default=600.0, show_default=True, help="Seconds for what is fetched.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(
    config: Path,
    prompts: Path,
    index: Path,
    source: Path | None,
    *,
    patience: float,
    options: tuple[str, ...],
) -> None:
    """Build the retriever's index; OPTIONS are those of `scope index build`."""
    quiet_libraries()
    from retrieval.commands import build

    if source is not None:
        named = [Path(value) for name, value in pairwise(options) if name in _FETCHED]
        _wait_for([source, *(path for path in named if path.is_absolute())], patience)
    index.parent.mkdir(parents=True, exist_ok=True)
    given = source or _documents_of(config, index, prompts)
    build.main([str(given), str(index), *options], standalone_mode=False)


def _wait_for(inputs: Sequence[Path], patience: float) -> None:
    """Each is there when it is whole. Raises OutsideError for what is not there in time."""
    end = time.monotonic() + patience
    while missing := [str(path) for path in inputs if not path.exists()]:
        if time.monotonic() >= end:
            raise OutsideError(
                f"{', '.join(missing)}: not there yet; the other Jobs of prepare bring what "
                "cluster.prepare names, anything else is to be copied there; this goes on by itself"
            )
        time.sleep(min(10.0, max(0.1, end - time.monotonic())))


def _documents_of(config: Path, index: Path, packs: Path) -> Path:
    """The documents of a run as one file beside its index, the same as its stages search."""
    from scope_selfplay.config.load import load_config
    from scope_selfplay.prompts.folder import load_pack, pack_path
    from scope_selfplay.run.begin import run_documents
    from scope_selfplay.store.files import write_records

    file = index.with_name(f"{index.name}.documents.jsonl")
    if not file.exists():
        run = load_config(config)
        write_records(file, run_documents(run, load_pack(pack_path(run.domain, packs))))
    return file


if __name__ == "__main__":
    run_job(main, "build_index")
