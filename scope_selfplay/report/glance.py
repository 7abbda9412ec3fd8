"""A run at a glance, what one asks of it first; and two runs beside each other."""

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain

from scope_selfplay.base.errors import ConfigError, RecordError
from scope_selfplay.base.intervals import Estimate
from scope_selfplay.base.terminal import Table, scope_command
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.judge.account import read_account
from scope_selfplay.report.health import gpu_hours
from scope_selfplay.report.record import CheckpointDiff, diff_checkpoints, task_changes
from scope_selfplay.report.sections import Bar, Figure, Section
from scope_selfplay.run.schedule import stages_of, stop_message
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.ratings import kept_solver, read_ratings
from scope_selfplay.store.reader import RunReader


@dataclass
class Glance:
    """`written`: when the newest file was, in seconds since the epoch; `ended`: how candidates of task making ended;
    `gain`: the kept Solver's over S_0, or the newest's, by the `evidence` that rules; `following`: the command that
    continues it, and what it does.
    """

    stage: str
    written: float
    ended: Counter[str]
    calls: int
    gpu_hours: float
    kept: str = ""
    held_out: Mapping[str, Estimate] = field(default_factory=dict)
    gain: CheckpointDiff | None = None
    evidence: str = "scores"
    following: tuple[str, str] | None = None


def glance(reader: RunReader) -> Glance:
    """Raises RecordError for a damaged file."""
    folder, stages, kept = reader.folder, reader.stages(), kept_solver(reader.folder)
    found = Glance(
        stage=next(("iteration {}, {}".format(*place) for place, done in stages.items() if not done), "done"),
        written=max(file.stat().st_mtime for file in (folder.config, *folder.path.glob("iteration-*/*/*"))),
        ended=ended_as(reader, {*reader.iterations()} - {0}),
        calls=sum(read_account(folder.stage(*place).path).calls for place in stages),
        gpu_hours=sum(gpu_hours(reader, number) or 0 for number in reader.iterations()),
    )
    ratings = read_ratings(folder, kept.ruled_in) if kept else None
    if kept and ratings:
        groups = ratings.held_out
        found.kept = kept.solver
        found.held_out = {name: each["all"] for name, each in groups.items() if "all" in each}
        first, last = next(iter(groups)), kept.solver if kept.iteration else next(reversed(groups))
        with suppress(RecordError):
            if first != last:
                found.gain = diff_checkpoints(first, last, task_changes(reader, reader.scores(), first, last))
            # The interval that a ruling goes by, else this page and the ruling could say two things.
            evidence = (reader.settings.get("compare") or {}).get("evidence", "ratings")
            if found.gain and evidence == "ratings" and last in ratings.intervals:
                (low, high), items = ratings.intervals[last], found.gain.gain.items
                above = Estimate(value=ratings.ratings[last], low=low, high=high, items=items)
                found.gain, found.evidence = found.gain.model_copy(update={"gain": above}), evidence
    # What an older version wrote may be no config of this one's.
    with suppress(ConfigError):
        config, ruled = load_config(folder.config), kept.ruled_in if kept else 0
        has_stopped = bool(ruled and ratings and stop_message(config, ruled, ratings))
        found.following = going_on(config, folder, ruled, has_stopped=has_stopped)
        left = [place for place in stages_of(config) if not stages.get(place)]
        found.stage = "iteration {}, {}".format(*left[0]) if left else f"done after iteration {ruled}"
        if has_stopped:
            found.stage = f"stopped after iteration {ruled}"
    return found


def ended_as(reader: RunReader, iterations: Collection[int]) -> Counter[str]:
    """How many candidates of the task making of these iterations ended how."""
    found = Counter[str]()
    for count in reader.funnel():
        if count.iteration in iterations and count.stage is Stage.TASKS:
            found[count.reason.value] += count.count
    return found


def going_on(config: RunConfig, folder: RunFolder, last: int, *, has_stopped: bool) -> tuple[str, str]:
    """The command that continues a run whose newest comparison is that of iteration `last`, and what it does."""
    command, why = (f"{scope_command()} continue {shlex.quote(str(folder.path))}", "the iterations left")
    if last >= config.iterations:
        command, why = f"{command} --iterations {last + 1}", "one more iteration"
    # What in the run's own config would end the command at once.
    if has_stopped:
        command += " --set compare.stop=never"
    return command, why


def beside(runs: Mapping[str, Sequence[Section]]) -> Iterator[Section]:
    """The tables and curves of two runs: rows with the cells of both, and the last iterations of both in one figure."""
    found = dict[str, dict[str, list[tuple[str, Table | Figure]]]]()
    for name, section in ((name, section) for name, sections in runs.items() for section in sections):
        for part in section.parts:
            if isinstance(part, Table | Figure):
                parts = found.setdefault(section.title.partition(":")[0], {})
                parts.setdefault(part.title, []).append((name, part))
    for title, parts in found.items():
        yield Section(title, [_together(list(runs), each) for each in parts.values()])


def _together(names: Sequence[str], parts: Sequence[tuple[str, Table | Figure]]) -> Table | Figure:
    """Columns that say the same of both stand once."""
    first, rows = parts[0][1], dict[str, dict[str, dict[str, str]]]()
    if isinstance(first, Figure):
        lasts = [(name, part.lines[-1]) for name, part in parts if isinstance(part, Figure)]
        return replace(first, lines=tuple(replace(line, name=name) for name, line in lasts))
    for name, table in ((name, part) for name, part in parts if isinstance(part, Table)):
        for cells in table.rows:
            # As a plain text: its link is of one run's pages.
            own = rows.setdefault(str(cells[0]).partition(" (")[0], {})
            for place, cell in enumerate(cells[1:], start=1):
                if not isinstance(cell, Bar):
                    own.setdefault(table.head[place] or " " * place, {})[name] = cell
    columns: list[tuple[str, ...]] = [(first.head[0], *rows)]
    for head in dict.fromkeys(chain(*rows.values())):
        both = {name: [own.get(head, {}).get(name, "") for own in rows.values()] for name in names}
        one, *others = both.values()
        for name, column in [("", one)] if others == [one] else both.items():
            columns.append((f"{head.strip()} {name}".strip(), *column))
    titles, *lines = zip(*columns, strict=True)
    return Table(first.title, titles, tuple(lines))
