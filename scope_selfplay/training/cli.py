"""`scope lint-tokens` and `scope rehearsal-policy`: a model's chat template, and a model of dice."""

import json
import sys
from pathlib import Path

import click

from scope_selfplay.dialects import DIALECTS, dialect
from scope_selfplay.errors import ExitCode

_NAMES = tuple(each.name for each in DIALECTS)


@click.command("lint-tokens")
@click.argument("model")
@click.option("--dialect", "names", type=click.Choice(_NAMES), multiple=True, help="Only these families.")
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
def lint_tokens_command(model: str, names: tuple[str, ...], as_json: bool) -> None:
    """Compare training rows with the chat template of MODEL, a Hugging Face directory.

    Scripted episodes are rendered again as a whole conversation; every stretch of tokens that differs is
    reported. Exit 64 when there is one, 0 when there is none.
    """
    from scope_selfplay.inference.codec import ChatCodec
    from scope_selfplay.training.policy import policy_path
    from scope_selfplay.training.token_lint import lint_tokens

    folder = policy_path(model) if model == "embedded" else Path(model)
    codec = ChatCodec.load(folder)
    found = {name: lint_tokens(codec, dialect(name)) for name in names or _NAMES}
    if as_json:
        lines = {name: [each._asdict() for each in differences] for name, differences in found.items()}
        click.echo(json.dumps(lines, indent=1, ensure_ascii=False))
    else:
        for name, differences in found.items():
            click.echo(f"{name}: {len(differences)} difference(s)")
            for each in differences:
                place = "completion" if each.in_completion else "prompt"
                click.echo(
                    f"  {each.episode}, row {each.row}, {place} token {each.position} ({each.kind}): "
                    f"{list(each.ours)} {each.ours_text!r}, template {list(each.template)} {each.template_text!r}"
                )
    if any(found.values()):
        sys.exit(ExitCode.USER)


@click.command("rehearsal-policy")
@click.argument("documents", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--domain", required=True, help="Prompt pack of the run: a folder or a name.")
def rehearsal_policy(documents: Path, folder: Path, domain: str) -> None:
    """Write a model directory whose policy throws dice in the words of DOCUMENTS; it has learnt nothing.

    With `scope serve-judge --rehearsal` a whole run is tried in minutes, before a real model is paid for.
    """
    from transformers.utils.logging import disable_progress_bar

    from scope_selfplay.corpus import read_documents
    from scope_selfplay.errors import CheckpointError
    from scope_selfplay.prompts import load_pack
    from scope_selfplay.prompts.folder import pack_path
    from scope_selfplay.testing.random_policy import write_random_policy

    if folder.exists() and any(folder.iterdir()):
        raise CheckpointError(f"{folder}: has files already; give a folder that is empty or not there")
    pack = load_pack(pack_path(domain))
    read = read_documents(documents, pack.domain.corpus_reader)
    disable_progress_bar()
    write_random_policy(folder, read, [prompt.body for prompt in pack.prompts])
    click.echo(folder)
