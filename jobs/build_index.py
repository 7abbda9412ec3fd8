"""The index that the retriever serves, on the volume; a finished one is left alone, a killed build goes on.

python -m jobs.build_index --config FILE --index FOLDER                       the run's own documents, BM25
python -m jobs.build_index --index FOLDER --source FILE [-- OPTION ...]       any corpus, as `scope index build`
"""

from pathlib import Path

import click

from jobs.stage_job import CONFIG, PACKS, run_job
from scope_selfplay.terminal import quiet_libraries


@click.command()
@click.option("--config", type=click.Path(path_type=Path), default=CONFIG, show_default=True)
@click.option("--prompts", type=click.Path(path_type=Path), default=PACKS, show_default=True)
@click.option("--index", type=click.Path(path_type=Path), required=True, help="Folder of the index.")
@click.option("--source", type=click.Path(path_type=Path), help="Corpus; the config's documents without it.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(config: Path, prompts: Path, index: Path, source: Path | None, options: tuple[str, ...]) -> None:
    """Build the retriever's index; OPTIONS are those of `scope index build`."""
    quiet_libraries()
    from retrieval.build_command import build

    index.parent.mkdir(parents=True, exist_ok=True)
    given = source or _documents_of(config, index, prompts)
    build.main([str(given), str(index), *options], standalone_mode=False)


def _documents_of(config: Path, index: Path, packs: Path) -> Path:
    """The documents of a run as one file beside its index, the same as its stages search."""
    from scope_selfplay.config import load_config
    from scope_selfplay.prompts import load_pack
    from scope_selfplay.prompts.folder import pack_path
    from scope_selfplay.run_directory import run_documents
    from scope_selfplay.store import write_records

    file = index.with_name(f"{index.name}.documents.jsonl")
    if not file.exists():
        run = load_config(config)
        write_records(file, run_documents(run, load_pack(pack_path(run.domain, packs))))
    return file


if __name__ == "__main__":
    run_job(main, "build_index")
