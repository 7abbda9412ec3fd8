"""`scope prompts`: check, show and compare packs; begin one of one's own, with copies of inherited prompts."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from scope_selfplay.base.errors import ExitCode, PromptError, did_you_mean
from scope_selfplay.base.terminal import PATH
from scope_selfplay.base.values import Gate
from scope_selfplay.prompts.folder import (
    KUSTOMIZATION_FILE,
    OWN_PACKS,
    SHIPPED,
    check_pack,
    extendable_names,
    extended_folder,
    load_pack,
    names_in,
    pack_origins,
    pack_path,
    shipped_prompts,
)
from scope_selfplay.prompts.pack import DOMAIN_FILE, NAME, diff_packs
from scope_selfplay.prompts.roles import PromptRole, YamlMapping, listed, read_mapping


@click.group()
def prompts() -> None:
    """Check, show, compare and begin prompt packs.

    DOMAIN is a folder (with a slash), or the bare name of a pack that ships, else of one below prompts/.
    """


@prompts.command("check")
@click.argument("domain", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the mistakes as a JSON list.")
def check(domain: str | None, as_json: bool) -> None:
    """Report every mistake of one pack, or of all that ship and yours in prompts/, with file, line and advice."""
    names = [domain] if domain else sorted({*names_in(shipped_prompts()), *names_in(OWN_PACKS)})
    folders = [pack_path(name) for name in names]
    problems = [problem for folder in folders for problem in check_pack(folder)]
    if as_json:
        click.echo(json.dumps([asdict(problem) for problem in problems], ensure_ascii=False, indent=1))
    for problem in () if as_json else problems:
        click.echo(str(problem))
    if problems:
        sys.exit(ExitCode.USER)
    found = ", ".join(folder.name for folder in folders)
    click.echo(f"{len(folders)} pack(s) without mistakes: {found}", err=True)


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
    pack = load_pack(pack_path(domain))
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
    click.echo(diff_packs(load_pack(pack_path(before)), load_pack(pack_path(after))))


@prompts.command("new")
@click.argument("domain")
@click.argument("roles", nargs=-1)
@click.option("--extends", default="wikipedia", help="Pack to begin from.")
@click.option("--folder", type=PATH, default=Path("prompts"))
def new(domain: str, roles: tuple[str, ...], extends: str, folder: Path) -> None:
    """Begin a pack of your own. With ROLES take copies of these inherited prompts into it, to change them there: into
    a pack that you have begun before, too.
    """
    for path in new_pack(folder, domain, extends, roles):
        click.echo(path)


def new_pack(
    folder: Path | str, domain: str, extends: str = "wikipedia", roles: Sequence[str] = ()
) -> list[Path]:
    """Begin `folder`/`domain`, which extends another domain, and copy inherited prompts of `roles` into it; one that is
    there, named by its folder too, gets the copies alone. Returns the files.

    Raises PromptError for a name that is not valid or that a shipped pack has, a folder that exists, an `extends` that
    does not, and as `_own`.
    """
    target = Path(domain) if "/" in domain else Path(folder) / domain
    for role in roles:
        if role not in list(PromptRole):
            raise PromptError(f"{role} is not a role{did_you_mean(role, PromptRole)}: {listed(PromptRole)}")
    if domain in SHIPPED:
        wanted = " ".join((f"my-{domain}", *roles))
        raise PromptError(
            f"{domain} is the name of a pack that ships and stays as it is; begin a pack of your own from it, and "
            f"change the prompts there: scope prompts new {wanted} --extends {domain}"
        )
    files = {} if roles and target.is_dir() else _begun(target, domain, extends)
    for name, text in files.items():
        (target / name).write_text(text, encoding="utf-8")
    return [*(target / name for name in files), *(_own(target, PromptRole(role)) for role in roles)]


def _begun(target: Path, domain: str, extends: str) -> dict[str, str]:
    """What a new pack begins with, in an empty folder: file name -> text."""
    if not NAME.fullmatch(domain):
        raise PromptError(f"{domain!r} cannot name a domain; use small letters, digits and hyphens")
    if target.exists():
        raise PromptError(f"{target.as_posix()} exists already; choose another name, or edit it")
    if extended_folder(target.parent, extends) is None:
        known = extendable_names(target.parent)
        raise PromptError(
            f"{target.as_posix()} cannot extend {extends}, which is neither in {target.parent} nor ships; there are "
            f"{listed(known)}{did_you_mean(extends, known)}"
        )
    target.mkdir(parents=True)
    title, gates = domain.replace("-", " ").capitalize(), ", ".join(Gate)
    text = _BEGINNING.format(title=title, extends=extends, gates=gates)
    return {DOMAIN_FILE: text, KUSTOMIZATION_FILE: _KUSTOMIZATION.format(domain=domain, file=DOMAIN_FILE)}


def _own(folder: Path, role: PromptRole) -> Path:
    """Copy an inherited prompt into the pack, to be changed there, and list it in its kustomization.yaml.

    Raises PromptError when the pack does not load, has the file already, or has no such prompt.
    """
    target = folder / role.file_name
    pack = load_pack(folder)
    if target.exists():
        raise PromptError(f"{target.as_posix()}: is in the pack already; edit it")
    text = pack.files().get(role.file_name)
    if text is None:
        raise PromptError(f"{pack.domain.name} needs no {role} prompt, so there is none to take a copy of")
    target.write_text(text, encoding="utf-8")
    listing = folder / KUSTOMIZATION_FILE
    if listing.is_file():
        kustomization = listing.read_text(encoding="utf-8")
        mapping = read_mapping(kustomization, KUSTOMIZATION_FILE)
        # `load_pack` has checked it.
        assert isinstance(mapping, YamlMapping), mapping
        generators = mapping.values["configMapGenerator"]
        assert isinstance(generators, list)
        last = mapping.line("configMapGenerator", 0, "files", len(generators[0]["files"]) - 1)
        lines = kustomization.split("\n")
        lines.insert(last, f"{lines[last - 1].partition('-')[0]}- {role.file_name}")
        listing.write_text("\n".join(lines), encoding="utf-8")
    return target


_BEGINNING = """\
title: {title}
extends: {extends}

# Write below, and as further files in this folder, only what differs from {extends}.
# `scope prompts check` tells what is wrong; `scope prompts diff` shows what differs.
#
# corpus: where the source documents come from
# gates: [{gates}]
# task_types:
#   troubleshooting:
#     description: Find the cause of a described fault and give the steps that mend it.
#     weight: 2
#   writing:
#     enabled: false
"""

_KUSTOMIZATION = """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
configMapGenerator:
  - name: prompts-{domain}
    files:
      - {file}
generatorOptions:
  disableNameSuffixHash: true
"""
