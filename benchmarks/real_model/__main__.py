"""A pretrained model learns to search and to answer, on two cores: the tables of docs/how/evidence/real-model.md.

    python -m benchmarks.real_model [--seeds 1 2 3] [--root FOLDER] [--keep]

Needs `scope models smollm2`. The Solver of each seed is trained, and asked the held-out questions before and after.
Killed at any moment, the same command goes on. With --keep what is finished replaces what the repository keeps, and
the tables of the page.

    ROOT/questions/            the training and the held-out questions, as `solver.tasks` reads them
    ROOT/seed-N/traces.jsonl   what the supervised start learnt from
    ROOT/seed-N/start/         the supervised start: S_0
    ROOT/seed-N/solver/        the run whose Solver stage makes S_1 of it
    ROOT/seed-N/answers-T.jsonl   what S_T answered to the held-out questions
"""

import asyncio
import json
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.options import read_options
from benchmarks.real_model.page import sections, write_page
from benchmarks.real_model.results import KEPT, keep_seed
from benchmarks.real_model.traces import Script
from benchmarks.real_model_answers import FACTBOOK, read_lines
from benchmarks.scope_command import ROOT, run_python, run_scope
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Role, Rollout, Task
from scope_selfplay.config.load import load_config
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.policy.episodes import Player
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.given import read_given_tasks
from scope_selfplay.run.run import Run
from scope_selfplay.store.files import write_atomic, write_records

HERE = Path(__file__).parent
CONFIG, PACK = HERE / "run.yaml", HERE / "pack"
SOLVER_TRACES, CHALLENGER_TRACES = 54, 10
LEARNING = ("--epochs", "1", "--learning-rate", "5e-5", "--batch", "4", "--micro-batch", "4")
"""Of the supervised start: few enough steps that about a third of the sampled answers are right."""
SAMPLES = 1
"""Sampled answers to each held-out question."""


def main() -> None:
    given = {"seeds": [1, 2, 3], "root": ROOT / "bench-out" / "real-model", "model": "smollm2"}
    options = read_options(__doc__, keep=False, **given)
    root = options.root.resolve()
    kept = KEPT if options.keep else root / "kept"
    kept.mkdir(parents=True, exist_ok=True)
    questions = root / "questions"
    for name in ("train", "held_out"):
        write_questions(questions / f"{name}.jsonl", name)
    settings = [f"domain={PACK}", f"corpus.path={FACTBOOK / 'passages.jsonl'}"]
    settings += [f"compare.given={questions / 'held_out.jsonl'}", f"solver.tasks={questions / 'train.jsonl'}"]
    for number in options.seeds:
        folder = root / f"seed-{number}"
        make_start(folder, number, options.model)
        own = [f"--set={each}" for each in (f"model.path={folder / 'start'}", *settings)]
        place = ["--root", str(folder), "--name", "solver", "--seed", str(number)]
        run_scope(["run", "--config", str(CONFIG), *place, *own], folder / "solver.log")
        answer(folder, questions / "held_out.jsonl")
        keep_seed(number, folder, kept)
    if options.keep:
        write_page()
    print("\n\n".join(sections(kept).values()))


def make_start(folder: Path, number: int, model: str) -> None:
    if (folder / "start").exists():
        return
    base, traces = policy_path(model), folder / "traces.jsonl"
    script = Script(load_pack(PACK), ChatCodec.load(base), load_config(CONFIG).search.max_tokens)
    script.write(traces, number, solver=SOLVER_TRACES, challenger=CHALLENGER_TRACES)
    places = ["--start", str(base), "--out", str(folder / "start"), "--trajectories", str(traces)]
    protocol = ["--dialect", "qwen2.5", "--max-length", "512", "--seed", str(number)]
    run_python(["-m", "jobs", "warm-start", *places, *protocol, *LEARNING], folder / "start.log")


def write_questions(path: Path, name: str) -> None:
    """As `solver.tasks` and `compare.given` read them: the right answer is compared by rule."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for row in read_lines(name):
        asked = {"id": row["id"], "question": row["question"], "answer": row["answers"][0], "check": "text"}
        lines.append(json.dumps({**asked, "type": row["group"]}, ensure_ascii=False) + "\n")
    write_atomic(path, "".join(lines))


def answer(folder: Path, questions: Path) -> None:
    """What S_0 and S_1 answer to the held-out questions by the run's own episodes, each in a file of its own: greedily,
    and `SAMPLES` times at the run's temperature.
    """
    tasks = [each.task for each in read_given_tasks(str(questions)) if each.task is not None]
    run = open_run(load_config(folder / "solver" / "run.yaml"), folder, Progress())
    try:
        for iteration in (0, 1):
            file = folder / f"answers-{iteration}.jsonl"
            if not file.exists():
                made = asyncio.run(_answers(run, iteration, tasks))
                write_records(file, [each.without_ids() for each in made])
    finally:
        run.close()


async def _answers(run: Run, iteration: int, tasks: list[Task]) -> list[Rollout]:
    policy = run.solver(iteration)
    engine = run.engine(policy, Role.SOLVER)
    formats = [run.policy_format(policy, Role.SOLVER, greedy=greedy) for greedy in (False, True)]

    async def answered(task: Task, number: int) -> Rollout:
        key = (run.config.seed, "held out", iteration, task.id, number)
        return await run.context.answer(Player(engine, formats[number == 0]), key, task)

    asked = [(task, number) for number in range(1 + SAMPLES) for task in tasks]
    return list(await asyncio.gather(*(answered(*each) for each in asked)))


if __name__ == "__main__":
    main()
