"""Calls of tools in lists, at the terminal, in the browser and in parquet."""

import pytest

from scope_selfplay.base.values import Rollout, ToolCall, ToolFault, Turn
from scope_selfplay.report.record import describe_task, whole_task
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.reader import RunReader
from tests.unit.store.runs import finish, rewrite, write_run
from tests.unit.viewer.conftest import viewed

CALL = ToolCall(
    tool="search_flights",
    arguments='{"origin": "<b>Orsk</b>"}',
    result="FL101 08:10\n\x1b[31mred",
    sources=("p7",),
    seconds=1.25,
)
FAILED = ToolCall(tool="shell", result="There is no tool 'shell'.", fault=ToolFault.UNKNOWN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The first attempt on one task called two tools; the other searched, in an episode that only searches."""
    made = write_run(tmp_path_factory.mktemp("calls") / "demo")
    stage = made.stage(1, Stage.TASKS)
    called = (Turn(text="a", call=CALL), Turn(text="b", call=FAILED), Turn(text="<answer>x</answer>"))
    searched = (Turn(text="s", query="dam"), Turn(text="<answer>x</answer>"))
    turns = {"task-1-003": called, "task-1-004": searched}
    done: set[str] = set()

    def with_calls(rollout: Rollout) -> Rollout:
        if rollout.subject_id in done or rollout.subject_id not in turns:
            return rollout
        done.add(rollout.subject_id)
        return rollout.model_copy(update={"turns": turns[rollout.subject_id]})

    rewrite(stage.rollouts, Rollout, with_calls)
    assert done == set(turns)
    finish(made, 1, Stage.TASKS)
    return made


def test_a_call_comes_back_from_parquet_and_is_shown_with_arguments_result_time_and_fault(
    folder: RunFolder,
) -> None:
    with RunReader(folder.path) as reader:
        turns = reader.task("task-1-003").attempts[0].rollout.turns
        assert [turn.call for turn in turns] == [CALL, FAILED, None]
        record = whole_task(reader, "task-1-003")
    text = "\n".join(describe_task(record))
    assert 'search_flights {"origin": "<b>Orsk</b>"} (1.250 s)' in text and "FL101 08:10" in text
    assert "shell {} (0.000 s, unknown_tool)" in text and "\x1b" not in text


def test_the_page_of_a_task_shows_its_calls_escaped(folder: RunFolder) -> None:
    with viewed(folder.path) as client, RunReader(folder.path) as reader:
        own = reader.task("task-1-003").candidate.id
        page = client.get(f"/tasks/1/tasks/{own}").text
    assert "search_flights" in page and "&lt;b&gt;Orsk" in page and "<b>Orsk" not in page
    assert "FL101 08:10" in page and "unknown_tool" in page
