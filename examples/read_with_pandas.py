"""A run's corpus in pandas: the task funnel, and every rollout with its task.

    python examples/read_with_pandas.py runs/demo

A finished stage is also plain Parquet: `pandas.read_parquet("runs/demo/iteration-01/tasks/candidates.parquet")`.
"""

import sys

import pandas as pd

from scope_selfplay.store.reader import RunReader, find_run


def main(run: str) -> None:
    with RunReader(find_run(run)) as reader:
        # Views of the whole run: candidates, rollouts, grades, comparisons ... with `iteration` and `stage`.
        candidates = pd.DataFrame(reader.sql("SELECT * FROM candidates WHERE stage = 'tasks'"))
        rollouts = pd.DataFrame(reader.sql("SELECT * FROM rollouts WHERE stage = 'tasks'"))
    print(candidates.groupby(["iteration", "status", "reason"]).size().to_string())
    tasks = candidates[candidates.status == "accepted"]
    tasks = pd.DataFrame({"subject_id": tasks.task.str["id"], "question": tasks.task.str["text"]})
    answers = tasks.merge(rollouts, on="subject_id")
    print(answers[["iteration", "question", "answer"]].head(5).to_string(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
