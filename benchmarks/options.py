"""Options of a benchmark, by their defaults."""

import argparse
from pathlib import Path
from typing import Any


def read_options(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """`--name VALUE` of its default's type: several values for a list, none for False, a path for None."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=form)
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        match default:
            case False:
                parser.add_argument(option, action="store_true")
            case [first, *_]:
                parser.add_argument(option, type=type(first), nargs="+", default=default)
            case _:
                kind = Path if default is None else type(default)
                parser.add_argument(option, type=kind, default=default)
    return parser.parse_args()
