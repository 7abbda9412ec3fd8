"""Where packs meet the disk: read a domain's folders, check, load, begin a new one.

`extends` names a domain beside the folder that says so, else one that ships with the package: a user's pack
needs no copy of what it extends.
"""

from collections.abc import Iterator
from pathlib import Path

from scope_selfplay.errors import PromptError
from scope_selfplay.prompts.blank import starting_files
from scope_selfplay.prompts.contracts import PromptRole
from scope_selfplay.prompts.domain import DOMAIN_FILE, NAME, extended_domain
from scope_selfplay.prompts.folder import names_in, shipped_prompts
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.problems import PackProblem, YamlMapping, did_you_mean, listed, read_mapping
from scope_selfplay.prompts.prompt_file import Checking, CountTokens, quarter_of_bytes
from scope_selfplay.prompts.resolve import (
    KUSTOMIZATION_FILE,
    Layer,
    Origin,
    Resolution,
    origins,
    resolve,
    with_listed,
)


def load_pack(
    folder: Path | str, *, budget_tokens: int | None = None, count_tokens: CountTokens = quarter_of_bytes
) -> Pack:
    """The pack in `folder`, with all that it extends. Raises PromptError with the first of its problems."""
    pack, problems = _examine(Path(folder), Checking(budget_tokens, count_tokens))
    if pack is None:
        more = (
            f" (and {len(problems) - 1} more: `scope prompts check` shows all)" if len(problems) > 1 else ""
        )
        raise PromptError(f"{problems[0]}{more}")
    return pack


def pack_origins(folder: Path | str) -> list[Origin]:
    """Where everything in a pack comes from. Raises PromptError as `load_pack` does."""
    domain = load_pack(folder).domain
    return origins([step for step in _chain(Path(folder)) if isinstance(step, Layer)], domain)


def check_pack(
    folder: Path | str, *, budget_tokens: int | None = None, count_tokens: CountTokens = quarter_of_bytes
) -> list[PackProblem]:
    """Every problem of the pack in `folder`, in the order in which to mend them; empty when it loads.

    `budget_tokens` is one ceiling for every prompt, instead of each contract's own; `count_tokens` is the
    policy's tokenizer when there is one. Values are not counted, only the pack's own text.
    """
    return list(_examine(Path(folder), Checking(budget_tokens, count_tokens)).problems)


def pack_chain(folder: Path | str) -> list[str]:
    """The names of the pack in `folder` and of all that it extends, nearest first. Raises PromptError."""
    names = []
    for step in _chain(Path(folder)):
        if isinstance(step, PackProblem):
            raise PromptError(str(step))
        names.append(step.name)
    return names


def new_pack(folder: Path | str, domain: str, extends: str | None = "wikipedia") -> list[Path]:
    """Begin `folder`/`domain`, extending another domain or with a blank of every file; returns its files.

    Raises PromptError when the name is none or that of a shipped pack, the folder exists, or `extends` does
    not.
    """
    target = Path(folder) / domain
    if not NAME.fullmatch(domain):
        raise PromptError(f"{domain!r} names no domain; use small letters, digits and hyphens")
    if target.exists():
        raise PromptError(f"{target.as_posix()} exists already; choose another name, or edit it")
    if domain in names_in(shipped_prompts()):
        raise PromptError(
            f"{domain} is the name of a pack that ships; choose another, so that it stays plain"
        )
    if extends is not None and _extended(Path(folder), extends) is None:
        known = _extendable(Path(folder))
        raise PromptError(
            f"{target.as_posix()} cannot extend {extends}, which is neither in {folder} nor ships; there are "
            f"{listed(known)}{did_you_mean(extends, known)}"
        )
    target.mkdir(parents=True)
    files = starting_files(domain, extends)
    for name, text in files.items():
        (target / name).write_text(text, encoding="utf-8")
    return [target / name for name in files]


def own_prompt(folder: Path | str, role: PromptRole) -> Path:
    """Copy an inherited prompt into the pack, to be changed there, and list it in its kustomization.yaml.

    Raises PromptError when the pack does not load, has the file already, or has no such prompt.
    """
    target = Path(folder) / role.file_name
    pack = load_pack(folder)
    if target.exists():
        raise PromptError(f"{target.as_posix()}: is in the pack already; edit it")
    text = pack.files().get(role.file_name)
    if text is None:
        raise PromptError(f"{pack.domain.name} needs no {role} prompt, so there is none to take a copy of")
    target.write_text(text, encoding="utf-8")
    listing = Path(folder) / KUSTOMIZATION_FILE
    if listing.is_file():
        listed_too = with_listed(listing.read_text(encoding="utf-8"), role.file_name)
        listing.write_text(listed_too, encoding="utf-8")
    return target


def _examine(folder: Path, checking: Checking) -> Resolution:
    layers: list[Layer] = []
    for step in _chain(folder):
        if isinstance(step, PackProblem):
            return Resolution(None, (step,))
        layers.append(step)
    return resolve(layers, checking)


def _chain(folder: Path) -> Iterator[Layer | PackProblem]:
    """The domain's folder, then what it extends; ends with a PackProblem where the chain breaks."""
    placed = folder if folder.name not in ("", "..") else folder.resolve()
    if not placed.is_dir():
        known = names_in(placed.parent)
        there = f"; beside it are {', '.join(known)}{did_you_mean(placed.name, known)}" if known else ""
        yield PackProblem(folder.as_posix(), 1, f"is no folder, so no prompt pack{there}")
        return
    layer = _read_layer(folder, placed.name)
    seen = [placed.resolve()]
    while True:
        yield layer
        marked = _domain_file(layer)
        extends = extended_domain(marked) if marked else None
        if marked is None or extends is None:
            return
        found = _extended(placed.parent, extends)
        if found is None:
            known = [name for name in _extendable(placed.parent) if name != layer.name]
            message = f"extends {extends}, which is no folder beside it and does not ship"
            hint = did_you_mean(extends, known)
            yield marked.problem(f"{message}{hint}; add that domain, or correct the name", "extends")
            return
        if found.resolve() in seen:
            circle = [each.name for each in seen[seen.index(found.resolve()) :]]
            path = " -> ".join([*circle, circle[0]])
            yield marked.problem(f"extends in a circle: {path}; take out one of these lines", "extends")
            return
        placed = found
        seen.append(placed.resolve())
        layer = _read_layer(placed, extends)


def _extended(beside: Path, name: str) -> Path | None:
    return next((each / name for each in (beside, shipped_prompts()) if (each / name).is_dir()), None)


def _extendable(beside: Path) -> list[str]:
    return sorted({*names_in(beside), *names_in(shipped_prompts())})


def _read_layer(folder: Path, name: str) -> Layer:
    """Hidden entries are left alone: a mounted ConfigMap keeps its versions in folders named `..*`."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    files = {entry.name: entry.read_bytes() for entry in entries if entry.is_file()}
    return Layer(folder.as_posix(), name, files, tuple(entry.name for entry in entries if entry.is_dir()))


def _domain_file(layer: Layer) -> YamlMapping | None:
    text = layer.files.get(DOMAIN_FILE, b"").decode("utf-8-sig", errors="replace")
    marked = read_mapping(text, layer.path(DOMAIN_FILE))
    return marked if isinstance(marked, YamlMapping) else None
