"""Benchmarks by name: each is a module in `benchmarks/` with a `BENCHMARK`; and one's own, by file."""

import importlib.util
import pkgutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType

from scope_selfplay.errors import ConfigError, did_you_mean
from scope_selfplay.evaluation import benchmarks
from scope_selfplay.evaluation.benchmark import Benchmark, LoadedBenchmark
from scope_selfplay.evaluation.items import Item
from scope_selfplay.evaluation.rows import Row, read_rows
from scope_selfplay.keys import rng_from


@cache
def built_in() -> MappingProxyType[str, Benchmark]:
    """Every benchmark of the package, by name."""
    modules = pkgutil.iter_modules(benchmarks.__path__, f"{benchmarks.__name__}.")
    found = [_benchmark_in(importlib.import_module(module.name)) for module in modules]
    return MappingProxyType(
        {benchmark.name: benchmark for benchmark in sorted(found, key=lambda each: each.name)}
    )


def load_benchmark(
    asked: str, *, data: Path | None = None, most: int | None = None, seed: int = 0
) -> LoadedBenchmark:
    """A benchmark with its items.

    `asked` is a name (its file in `data`), `NAME=FILE`, a file of questions of one's own, or a Python file with a
    `BENCHMARK` (`my.py=FILE`). Items beyond `most`, or the benchmark's own number, are left out by chance. Raises
    ConfigError.
    """
    name, _, given = asked.partition("=")
    path = data or (Path(given) if given else None)
    known = built_in()
    if name in known:
        benchmark = known[name]
    elif name.endswith(".py"):
        benchmark = _from_file(Path(name))
    elif path is None and (Path(name).exists() or "/" in name or "." in name):
        benchmark, path = known["own"], Path(name)
    else:
        raise ConfigError(
            f"no benchmark {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}, or give a file"
        )
    if path is None:
        raise ConfigError(
            f"benchmark {name}: give its file, {name}=FILE; it is published as {benchmark.source}"
        )
    items = _items_of(benchmark, path)
    limit = benchmark.most_items if most is None else most
    return LoadedBenchmark(benchmark, _sampled(items, limit, seed))


def _items_of(benchmark: Benchmark, path: Path) -> tuple[Item, ...]:
    places: dict[str, str] = {}
    items: dict[str, Item] = {}
    for row in _joined(read_rows(path), benchmark.join):
        item = benchmark.read(row)
        # Some published files hold a question twice.
        if item is None or items.get(item.id) == item:
            continue
        if item.id in places:
            raise ConfigError(f"{row.where}: id {item.id} was given at {places[item.id]}; ids must differ")
        places[item.id], items[item.id] = row.where, item
    if not items:
        raise ConfigError(f"{path}: no items for benchmark {benchmark.name}; expected {benchmark.source}")
    return tuple(_instructed(item, benchmark.instruction) for item in items.values())


def _joined(rows: Iterable[Row], name: str) -> Iterable[Row]:
    """Rows that agree in the field of this name, as one; without a name all as they are."""
    if not name:
        return rows
    found: dict[str, Row] = {}
    for row in rows:
        key = str(row.value(name))
        found[key] = found[key].joined(row) if key in found else row
    return found.values()


def _instructed(item: Item, instruction: str) -> Item:
    if not instruction:
        return item
    return item.model_copy(update={"question": f"{item.question}\n\n{instruction}"})


def _sampled(items: tuple[Item, ...], most: int | None, seed: int) -> tuple[Item, ...]:
    """At most `most` of them, in their order; a larger sample holds every smaller one of the same seed."""
    if most is None or len(items) <= most:
        return items
    order = sorted(range(len(items)), key=lambda place: rng_from(seed, "sample", items[place].id).random())
    return tuple(items[place] for place in sorted(order[:most]))


def _from_file(path: Path) -> Benchmark:
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: not a file; give a Python file with a BENCHMARK")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return _benchmark_in(module)


def _benchmark_in(module: ModuleType) -> Benchmark:
    found = getattr(module, "BENCHMARK", None)
    if not isinstance(found, Benchmark):
        raise ConfigError(f"{module.__file__}: BENCHMARK must be a Benchmark, found {type(found).__name__}")
    return found
