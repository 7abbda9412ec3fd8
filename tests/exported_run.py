"""A small finished run and its exports, for the tests that load them with other libraries."""

from pathlib import Path

from scope_selfplay.report.export import FORMATS, export_tasks
from scope_selfplay.store.card import CARD, run_card
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.reader import RunReader
from tests.unit.store.runs import finish, write_run


def write_finished_run(path: Path) -> RunFolder:
    """24 accepted tasks of training and 12 held-out ones, each stage with parquet, card and manifest."""
    made = write_run(path)
    for iteration in range(3):
        for stage in (Stage.TASKS, Stage.COMPARE):
            finish(made, iteration, stage)
    (made.path / CARD).write_text(run_card(made, "demo"))
    return made


def write_exports(run: RunFolder, root: Path) -> dict[str, Path]:
    """The run in every format, each in a folder of its own below `root`."""
    with RunReader(run.path) as reader:
        for form in FORMATS:
            export_tasks(reader, form, root / form)
    return {form: root / form for form in FORMATS}
