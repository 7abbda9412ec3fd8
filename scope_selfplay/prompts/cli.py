"""`scope prompts check|show|diff|new|own`. Heavy imports wait until a command runs."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scope_selfplay.errors import CheckpointError, ExitCode

if TYPE_CHECKING:
    from scope_selfplay.prompts import Pack


@click.group()
def prompts() -> None:
    """Check, show, compare and begin prompt packs.

    DOMAIN is a folder (with a slash), or the bare name of a pack that ships, else of one below prompts/.
    """


@prompts.command("check")
@click.argument("domain", required=False)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, path_type=Path),
    help="Count budgets with this tokenizer.json, or a model's folder; without it tokens are estimated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the mistakes as a JSON list.")
def check(domain: str | None, tokenizer: Path | None, as_json: bool) -> None:
    """Report every mistake of one pack, or of all that ship, with file, line and advice."""
    from scope_selfplay.prompts import check_pack
    from scope_selfplay.prompts.folder import names_in, pack_path, shipped_prompts
    from scope_selfplay.prompts.prompt_file import quarter_of_bytes

    count = _counting(tokenizer) if tokenizer else quarter_of_bytes
    folders = [pack_path(name) for name in ([domain] if domain else names_in(shipped_prompts()))]
    problems = [problem for folder in folders for problem in check_pack(folder, count_tokens=count)]
    if as_json:
        click.echo(json.dumps([asdict(problem) for problem in problems], ensure_ascii=False, indent=1))
    for problem in problems if not as_json else ():
        click.echo(str(problem))
    if problems:
        sys.exit(ExitCode.USER)
    names = ", ".join(folder.name for folder in folders)
    click.echo(f"{len(folders)} pack(s) without mistakes: {names}", err=True)


@prompts.command("show")
@click.argument("domain")
@click.argument("role", required=False)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object, also with the hash and every key's origin.",
)
def show(domain: str, role: str | None, as_json: bool) -> None:
    """Print the resolved texts of a pack, or of one role, and where they come from."""
    from scope_selfplay.prompts.folder import pack_origins, pack_path

    pack = _pack(domain)
    files = pack.files()
    if role is not None:
        name = "domain.yaml" if role == "domain" else f"{role}.md"
        if name not in files:
            known = ", ".join(sorted(file.removesuffix(".md") for file in files))
            raise click.BadParameter(f"{domain} has no {role}; there are {known}")
        files = {name: files[name]}
    origins = {origin.what: origin for origin in pack_origins(pack_path(domain))}
    if as_json:
        rows = [asdict(origin) for origin in origins.values() if role is None or origin.what in files]
        shown = {"title": pack.domain.title, "hash": pack.hash, "origins": rows, "files": files}
        click.echo(json.dumps(shown, ensure_ascii=False, indent=1))
    else:
        for name, text in files.items():
            reason = f" ({origins[name].reason}: {origins[name].place})" if name in origins else ""
            # A single text goes to stdout unchanged, to be piped; its origin goes to stderr.
            click.echo(f"=== {name}{reason}", err=role is not None)
            click.echo(text)


@prompts.command("diff")
@click.argument("before")
@click.argument("after")
def diff(before: str, after: str) -> None:
    """Show what changes from one pack to another."""
    from scope_selfplay.prompts import diff_packs

    click.echo(diff_packs(_pack(before), _pack(after)))


@prompts.command("new")
@click.argument("domain")
@click.option("--extends", default="wikipedia", show_default=True, help="Pack to begin from.")
@click.option("--blank", is_flag=True, help="Extend nothing: begin with a blank of every file.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("prompts"), show_default=True)
def new(domain: str, extends: str, blank: bool, folder: Path) -> None:
    """Begin a pack of your own."""
    from scope_selfplay.prompts.new_pack import new_pack

    for path in new_pack(folder, domain, None if blank else extends):
        click.echo(path)


@prompts.command("own")
@click.argument("domain")
@click.argument("role")
def own(domain: str, role: str) -> None:
    """Take a copy of an inherited prompt into a pack of your own, to change it there.

    Of a pack that ships nothing is changed: `scope prompts new NAME --extends DOMAIN` begins your own.
    """
    from scope_selfplay.errors import did_you_mean
    from scope_selfplay.prompts import PromptRole
    from scope_selfplay.prompts.folder import pack_path
    from scope_selfplay.prompts.new_pack import check_is_own, own_prompt

    if role not in list(PromptRole):
        raise click.BadParameter(
            f"{role} is not a role{did_you_mean(role, PromptRole)}: {', '.join(PromptRole)}"
        )
    check_is_own(domain, PromptRole(role))
    click.echo(own_prompt(pack_path(domain), PromptRole(role)))


def _pack(domain: str) -> "Pack":
    from scope_selfplay.prompts import load_pack
    from scope_selfplay.prompts.folder import pack_path

    return load_pack(pack_path(domain))


def _counting(tokenizer: Path) -> Callable[[str], int]:
    """Counts without special tokens. Raises CheckpointError when the file is not a tokenizer."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise CheckpointError(
            "--tokenizer needs the tokenizers library: pip install 'scope-selfplay[retrieval]'"
        ) from None
    file = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
    try:
        loaded = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise CheckpointError(f"{file}: no tokenizer.json: {' '.join(str(error).split())}") from None
    loaded.no_truncation()
    loaded.no_padding()
    return lambda text: len(loaded.encode(text, add_special_tokens=False).ids)
