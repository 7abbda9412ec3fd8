"""One accepted task as a row of each format. Pure.

Every format carries the rubric in the place where its consumer looks for what an answer is measured by. A known
right answer (`Task.reference`) is passed on; none is made up where there is none. To add a format, write its row
function and give it an entry in `FORMATS`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from scope_selfplay.schemas import Candidate, Criterion, Rubric, Task

Row = dict[str, Any]

SOURCE = "scope-selfplay"
ABILITY = "research"


@dataclass(frozen=True)
class Example:
    """An accepted task with its rubric, and its index in its split."""

    task: Task
    rubric: Rubric
    mean: float | None
    iteration: int
    split: str
    index: int


@dataclass(frozen=True)
class ExportFormat:
    """How a task becomes a row, and in one sentence how its consumer reads the files."""

    row: Callable[[Example], Row]
    use: str
    is_lines: bool = False
    """JSON lines instead of parquet."""
    environment: str = ""
    """A module of this package that lies beside the files: it makes an environment of them."""

    def columns(self) -> pa.Schema:
        """The columns of its parquet: those of a task in which every field has a value."""
        return pa.Table.from_pylist([self.row(_COMPLETE)]).schema


def example_of(candidate: Candidate, split: str, index: int) -> Example:
    assert candidate.task and candidate.rubric, "only tasks with a rubric are exported"
    iteration = candidate.provenance.iteration
    return Example(candidate.task, candidate.rubric, candidate.mean, iteration, split, index)


def trl_row(example: Example) -> Row:
    """TRL: a conversational `prompt`; every other column reaches the reward functions."""
    return {
        "prompt": _messages(example.task),
        "task_id": example.task.id,
        "task_type": example.task.type,
        "rubric": _criteria(example.rubric),
        "reference": example.task.reference,
        "mean_score": example.mean,
        "iteration": example.iteration,
    }


def verl_row(example: Example) -> Row:
    """verl: `reward_model.ground_truth` is what a custom reward function gets: the rubric, as JSON."""
    return {
        "data_source": SOURCE,
        "prompt": _messages(example.task),
        "ability": ABILITY,
        "reward_model": {"style": "model", "ground_truth": _rubric_json(example)},
        "extra_info": _extra(example),
    }


def verifiers_row(example: Example) -> Row:
    """verifiers: a chat `prompt`, `answer` a string, `info` JSON, as its environments parse it."""
    info = {**_extra(example), "rubric": _criteria(example.rubric)}
    return {
        "id": example.task.id,
        "prompt": _messages(example.task),
        "answer": example.task.reference or "",
        "info": json.dumps(info, ensure_ascii=False),
    }


def open_instruct_row(example: Example) -> Row:
    """open-instruct: `dataset` names the verifier; its rubric verifier reads query, description and weight."""
    rubrics = [
        {"description": criterion.text, "weight": criterion.weight} for criterion in example.rubric.criteria
    ]
    truth = {"query": example.task.text, "rubrics": rubrics}
    return {
        "messages": _messages(example.task),
        "ground_truth": [json.dumps(truth, ensure_ascii=False)],
        "dataset": ["rubric"],
        "id": example.task.id,
    }


def search_r1_row(example: Example) -> Row:
    """Search-R1: `golden_answers` for exact match; empty for an open task, whose rubric is in `extra_info`."""
    golden = [example.task.reference] if example.task.reference else []
    return {
        "id": example.task.id,
        "question": example.task.text,
        "golden_answers": golden,
        "data_source": SOURCE,
        "prompt": _messages(example.task),
        "ability": ABILITY,
        "reward_model": {"style": "rule", "ground_truth": {"target": golden}},
        "extra_info": {**_extra(example), "rubric": _rubric_json(example)},
    }


def inspect_row(example: Example) -> Row:
    """Inspect: `target` is what a model-graded scorer compares with: the criteria, one a line."""
    criteria = "\n".join(f"- {criterion.text}" for criterion in example.rubric.criteria)
    return {
        "id": example.task.id,
        "input": example.task.text,
        "target": example.task.reference or criteria,
        "metadata": {**_extra(example), "rubric": _criteria(example.rubric)},
    }


def _messages(task: Task) -> list[dict[str, str]]:
    return [{"role": "user", "content": task.text}]


def _criteria(rubric: Rubric) -> list[Row]:
    return [
        {"text": criterion.text, "priority": criterion.priority.value, "weight": criterion.weight}
        for criterion in rubric.criteria
    ]


def _rubric_json(example: Example) -> str:
    return json.dumps(_criteria(example.rubric), ensure_ascii=False)


def _extra(example: Example) -> Row:
    return {
        "split": example.split,
        "index": example.index,
        "task_id": example.task.id,
        "task_type": example.task.type,
        "search_turns": example.task.search_turns,
        "mean_score": example.mean,
        "iteration": example.iteration,
    }


_COMPLETE = Example(
    task=Task(id="id", text="task", type="type", document_id="document", reference="answer"),
    rubric=Rubric(task_id="id", criteria=(Criterion(text="criterion"),)),
    mean=0.5,
    iteration=1,
    split="train",
    index=0,
)

FORMATS: Mapping[str, ExportFormat] = {
    "trl": ExportFormat(
        trl_row,
        "GRPOTrainer(train_dataset=load_dataset(FOLDER, split='train'), ...); a reward function gets `rubric`",
    ),
    "verl": ExportFormat(
        verl_row,
        "data.train_files=FOLDER/train.parquet with a custom reward function; ground_truth is the rubric as JSON",
    ),
    "verifiers": ExportFormat(
        verifiers_row,
        "PYTHONPATH=FOLDER vf-eval scope_tasks --no-push (see its first lines); or TaskData rows, the rubric in `info`",
        environment="scope_tasks.py",
    ),
    "open-instruct": ExportFormat(
        open_instruct_row, "dataset_mixer_list FOLDER 1.0; graded by its rubric verifier"
    ),
    "search-r1": ExportFormat(
        search_r1_row,
        "data.train_files=FOLDER/train.parquet; open tasks have no golden answer, so exact match gives them 0: "
        "use the rubric in extra_info",
    ),
    "inspect": ExportFormat(
        inspect_row,
        "json_dataset('FOLDER/test.jsonl') with a model-graded scorer; `target` is the rubric",
        is_lines=True,
    ),
}
