"""Prompt packs on the disk: which folder a name means, and how it is read, checked and loaded.

A name with a slash (or `.`, `..`) is a folder. A bare name is a pack that ships with the package, else
`prompts/<name>` below the current folder. So a shipped name means the same texts wherever a command runs.
`extends` names a domain in the same parent folder, else one that ships: a user's pack needs no copy of what it
extends.
"""

from collections.abc import Iterator
from pathlib import Path

from scope_selfplay.errors import PromptError, did_you_mean
from scope_selfplay.prompts.domain import DOMAIN_FILE, NAME
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.problems import PackProblem, YamlMapping, listed
from scope_selfplay.prompts.prompt_file import CountTokens, quarter_of_bytes
from scope_selfplay.prompts.resolve import Layer, Origin, origins, resolve

SHIPPED = (
    *("embedded", "math", "open-deepresearch", "open-travel", "open-writing"),
    *("reworded", "support", "wikipedia"),
)
"""The packs that are the same for everybody; in a checkout, packs of one's own may lie beside them."""
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


def load_pack(folder: Path | str) -> Pack:
    """The pack in `folder`, with all that it extends. Raises PromptError with the first of its problems."""
    pack, problems = _examine(Path(folder))
    if pack is None:
        others = f" (and {len(problems) - 1} more: `scope prompts check` shows all)"
        raise PromptError(f"{problems[0]}{others if len(problems) > 1 else ''}")
    return pack


def check_pack(folder: Path | str, count_tokens: CountTokens = quarter_of_bytes) -> list[PackProblem]:
    """Every problem of the pack in `folder`, in the order in which to correct them; empty when it loads.

    `count_tokens` is the policy's tokenizer when there is one. Values are not counted, only the pack's own text.
    """
    return _examine(Path(folder), count_tokens)[1]


def pack_origins(folder: Path | str) -> list[Origin]:
    """Where everything in a pack comes from. Raises PromptError as `load_pack` does."""
    domain = load_pack(folder).domain
    return origins([step for step in _chain(Path(folder)) if isinstance(step, Layer)], domain)


def pack_chain(folder: Path | str) -> list[str]:
    """The names of the pack in `folder` and of all that it extends, nearest first. Raises PromptError."""
    names = []
    for step in _chain(Path(folder)):
        if isinstance(step, PackProblem):
            raise PromptError(str(step))
        names.append(step.name)
    return names


def extended_folder(parent: Path, name: str) -> Path | None:
    """The folder that `extends: name` means in a pack whose folder is in `parent`."""
    return next((packs / name for packs in (parent, shipped_prompts()) if (packs / name).is_dir()), None)


def extendable_names(parent: Path) -> list[str]:
    return sorted({*names_in(parent), *names_in(shipped_prompts())})


def _examine(
    folder: Path, count_tokens: CountTokens = quarter_of_bytes
) -> tuple[Pack | None, list[PackProblem]]:
    layers: list[Layer] = []
    for step in _chain(folder):
        if isinstance(step, PackProblem):
            return None, [step]
        layers.append(step)
    return resolve(layers, count_tokens)


def _chain(folder: Path) -> Iterator[Layer | PackProblem]:
    """The domain's folder, then what it extends; ends with a problem where the chain breaks."""
    placed = folder if folder.name not in ("", "..") else folder.resolve()
    if not placed.is_dir():
        known = names_in(placed.parent)
        there = f"; beside it are {', '.join(known)}{did_you_mean(placed.name, known)}" if known else ""
        yield PackProblem(folder.as_posix(), 1, f"is not a folder, so not a prompt pack{there}")
        return
    layer = _read_layer(folder, placed.name)
    seen = [placed.resolve()]
    while True:
        yield layer
        mapping = layer.domain_file
        if not isinstance(mapping, YamlMapping):
            return
        extends = mapping.values.get("extends")
        if not isinstance(extends, str) or not NAME.fullmatch(extends):
            return
        found = extended_folder(placed.parent, extends)
        if found is None:
            known = [name for name in extendable_names(placed.parent) if name != layer.name]
            message = f"extends {extends}, which is not a folder beside it and does not ship"
            hint = did_you_mean(extends, known)
            yield mapping.problem(f"{message}{hint}; add that domain, or correct the name", "extends")
            return
        if found.resolve() in seen:
            circle = [path.name for path in seen[seen.index(found.resolve()) :]]
            path = " -> ".join([*circle, circle[0]])
            yield mapping.problem(f"extends in a circle: {path}; take out one of these lines", "extends")
            return
        placed = found
        seen.append(placed.resolve())
        layer = _read_layer(placed, extends)


def _read_layer(folder: Path, name: str) -> Layer:
    """Hidden entries are left alone: a mounted ConfigMap keeps its versions in folders named `..*`."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    files = {entry.name: entry.read_bytes() for entry in entries if entry.is_file()}
    return Layer(folder.as_posix(), name, files, tuple(entry.name for entry in entries if entry.is_dir()))
