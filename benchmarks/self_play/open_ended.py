"""The method of the paper itself on two cores: open-ended tasks with rubrics, and a judge that was examined.

    python -m benchmarks.self_play.open_ended [--root FOLDER] [--tasks 40] [--held-out 30] [--documents 110 40]

Needs `scope models qwen2.5-coder-1.5b`, `qwen2.5-coder-0.5b` and 20 GB of memory. The larger model writes tasks and
rubrics as in `benchmarks.real_corpus` and then judges; the smaller one is a Solver that is trained by rubric
scores for two iterations of eight steps. Killed at any moment, the same command goes on.

    ROOT/made/      the run that made the tasks
    ROOT/solver/    the run that trains; `scope report` has the held-out scores of S_0 to S_2 with intervals, and
                    `scope play judge ROOT/solver S_0 S_2` shows their answers without names
"""

from pathlib import Path

from benchmarks import real_corpus
from benchmarks.options import read_options
from benchmarks.real_corpus.__main__ import drawn
from benchmarks.real_vllm import served
from benchmarks.scope_command import ROOT, run_python, run_scope
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.run.given import read_given_tasks
from scope_selfplay.store.files import write_atomic, write_records


def main() -> None:
    place = ROOT / "bench-out" / "open-ended"
    options = read_options(__doc__, root=place, tasks=40, held_out=30, documents=[110, 40])
    root, model = options.root.resolve(), policy_path("qwen2.5-coder-1.5b")
    root.mkdir(parents=True, exist_ok=True)
    documents, log = root / "corpus.jsonl", root / "log"
    write_atomic(documents, "".join(drawn(*options.documents)))
    with served(model, root, dtype="bfloat16", cores=2, cache=1) as url:
        common = [f"corpus.path={documents}", f"judge.endpoint.base_url={url}"]
        making = [*common, "name=made", f"model.path={model}", f"compare.tasks={sum(options.documents)}"]
        # Its gate for safety refuses one harmless task in five.
        making += ["judge.gates=[entity, source]"]
        making += [f"partners.{role}.base_url={url}" for role in ("challenger", "solver")]
        config = Path(real_corpus.__file__).with_name("run.yaml")
        command = f"-m jobs make-tasks --config {config} --root {root} --iteration 0".split()
        run_python([*command, *(f"--set={each}" for each in making)], log)
        accepted = read_given_tasks(f"{root}/made/iteration-00/tasks/candidates.jsonl")
        wanted = options.tasks + options.held_out
        if len(accepted) < wanted:
            raise SystemExit(f"{len(accepted)} of {wanted} tasks were accepted; give more --documents")
        write_records(root / "held_out.jsonl", accepted[: options.held_out])
        write_records(root / "train.jsonl", accepted[options.held_out : wanted])
        training = [*common, f"solver.tasks={root}/train.jsonl", f"compare.given={root}/held_out.jsonl"]
        config = Path(__file__).with_name("open_ended.yaml")
        command = f"run --config {config} --root {root} --name solver".split()
        run_scope([*command, *(f"--set={each}" for each in training)], log)
    run_scope(["report", str(root / "solver")], log)


if __name__ == "__main__":
    main()
