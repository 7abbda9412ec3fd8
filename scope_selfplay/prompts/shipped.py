"""Where prompt packs lie: one rule for every command and setting that names a pack.

A name with a slash (or `.`, `..`) is a folder. A bare name is a pack that ships with the package, else
`prompts/<name>` below the current folder. So a shipped name means the same texts wherever a command runs.
"""

from pathlib import Path

from scope_selfplay.errors import PromptError, did_you_mean
from scope_selfplay.prompts.domain import DOMAIN_FILE
from scope_selfplay.prompts.problems import listed

OWN_PACKS = Path("prompts")
"""Where a bare name that does not ship is looked for, below the current folder."""


def pack_path(domain: str, mounted: Path | None = None) -> Path:
    """The folder of the pack that a user named. Raises PromptError when there is none.

    A pack below `mounted`, where a cluster puts its ConfigMaps, goes before one that ships.
    """
    if mounted is not None and domain in names_in(mounted):
        return mounted / domain
    if "/" in domain or domain in ("", ".", ".."):
        if domain and Path(domain).is_dir():
            return Path(domain)
        raise PromptError(
            f"{domain or 'an empty name'}: no such folder; give the folder of a prompt pack, or the bare name "
            "of one"
        )
    shipped = names_in(shipped_prompts())
    if domain in shipped:
        return shipped_prompts() / domain
    if (OWN_PACKS / domain).is_dir():
        return OWN_PACKS / domain
    known = sorted({*shipped, *names_in(OWN_PACKS)})
    here = f"; ./{domain} is a folder, so write ./{domain}" if Path(domain).is_dir() else ""
    raise PromptError(
        f"{domain}: no such prompt pack; there are {listed(known)}{did_you_mean(domain, known)}; a folder "
        f"elsewhere is given with a slash{here}"
    )


def shipped_prompts() -> Path:
    """`prompts/` of a checkout, or what an installed wheel holds of it."""
    package = Path(__file__).parent.parent
    checkout = package.parent / "prompts"
    # Beside an installed package lie other people's packages, one of which may be called prompts.
    return checkout if (checkout / "wikipedia" / DOMAIN_FILE).is_file() else package / "prompt_packs"


def names_in(folder: Path) -> list[str]:
    """The packs in a folder of packs, sorted."""
    return sorted(file.parent.name for file in folder.glob(f"*/{DOMAIN_FILE}"))
