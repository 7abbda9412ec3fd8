"""Options of a benchmark, by their defaults."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def read_options(
    doc: str | None, *, choices: Mapping[str, Sequence[str]] | None = None, **defaults: Any
) -> argparse.Namespace:
    """`--name VALUE` of its default's type: several values for a list (words for an empty one), none for False, a
    path for None.

    `choices`: options that take some of these values, and all of them where they are left out.
    """
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=form)
    for name, known in (choices or {}).items():
        parser.add_argument(f"--{name}", nargs="*", choices=known, default=list(known), metavar="NAME")
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        match default:
            case False:
                parser.add_argument(option, action="store_true")
            case list():
                kind = type(default[0]) if default else str
                parser.add_argument(option, type=kind, nargs="+", default=default)
            case _:
                kind = Path if default is None else type(default)
                parser.add_argument(option, type=kind, default=default)
    return parser.parse_args()
