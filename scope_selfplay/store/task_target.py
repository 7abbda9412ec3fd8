"""`target.json` of task making: how many tasks it accepted of those that it was to accept."""

from scope_selfplay.schemas import Value
from scope_selfplay.store.files import read_value
from scope_selfplay.store.folders import RunFolder, Stage


class TaskTarget(Value):
    accepted: int
    target: int

    @property
    def missed(self) -> bool:
        return self.accepted < self.target


def read_task_target(folder: RunFolder, iteration: int) -> TaskTarget | None:
    """None where the stage has not ended. Raises RecordError where the file is damaged."""
    file = folder.stage(iteration, Stage.TASKS).target
    return read_value(file, TaskTarget, "restore it, or remove the stage folder")
