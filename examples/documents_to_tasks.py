"""Documents to tasks: a Challenger searches and writes tasks, gates and a rubric judge them.

    python examples/documents_to_tasks.py

The documents, the policy and the judge are those of the embedded world; a run of your own names others in its config
(docs/start/own-domain.md). The same command again goes on where it was stopped, and shows what is there.
"""

from contextlib import closing
from pathlib import Path

from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.base.terminal import Progress
from scope_selfplay.config.load import load_config
from scope_selfplay.run.begin import open_run
from scope_selfplay.stages.tasks import make_tasks
from scope_selfplay.store.query import TaskQuery
from scope_selfplay.store.reader import RunReader

SETTINGS = ["name=tasks", "compare.given=null", "compare.tasks=4"]
"""Four tasks of iteration 0, which are for comparisons; later ones are also chosen by the Solver's mean score."""


def main() -> None:
    config = load_config(DEFAULT_CONFIG, SETTINGS)
    with closing(open_run(config, Path("runs"), Progress())) as run:
        make_tasks(run, iteration=0)
    with RunReader(run.folder.path) as reader:
        for line in reader.tasks(TaskQuery(limit=100)).lines:
            print(f"{line.status:9} {line.reason:12} {line.text}")
            if line.task_id is not None and line.status == "accepted":
                rubric = reader.task(line.id).candidate.rubric
                for criterion in rubric.criteria if rubric else ():
                    print(f"{'':22} {criterion.priority}: {criterion.text}")


if __name__ == "__main__":
    main()
