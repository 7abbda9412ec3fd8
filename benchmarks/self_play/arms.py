"""An arm of a seed becomes a run by the command that a user types, is asked the held-out questions, and is kept."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from benchmarks.factbook import read_lines
from benchmarks.scope_command import run_python, run_scope
from benchmarks.self_play.results import read_arm
from benchmarks.self_play.traces import Script
from scope_selfplay.base.machine import folder_lock
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
from scope_selfplay.store.files import read_records, write_atomic, write_records

HERE = Path(__file__).parent
CONFIG, PACK = HERE / "run.yaml", HERE / "pack"
ARMS = {
    "trained": (),
    "untrained": ("challenger.freeze_after=0",),
    "ungated": ("challenger.freeze_after=0", "tasks.answer_gates=[]"),
    "narrow": ("challenger.reward=difficulty", "tasks.largest_share=1"),
    "people": ("solver.tasks={given}/train.jsonl",),
}
"""What each has otherwise than the run; `people` is trained on questions with answers, which the others never see."""
TRACES = {"solver": 30, "challenger": 26, "reader": 8}
LEARNING = ("--epochs", "1", "--learning-rate", "5e-5", "--batch", "4", "--micro-batch", "4")
"""Of the supervised start: few enough steps that about a third of the sampled answers are right."""
TINY = """
    challenger.steps=1 challenger.batch=2 challenger.group_size=2 tasks.target=4 tasks.low=0 tasks.high=1
    tasks.largest_share=1 tasks.max_candidates=40 solver.steps=2 solver.batch=2 solver.group_size=2 compare.tasks=2
""".split()
TINY_QUESTIONS = 16


def write_given(folder: Path) -> None:
    """Passages about countries that held-out questions are about are searched by all, and asked about by nobody."""
    held_out = {row["id"].partition("-")[0] for row in read_lines("held_out")}
    files: dict[str, list[dict[str, str]]] = {"passages": [], "held_out_passages": []}
    for row in read_lines("passages"):
        files["held_out_" * (row["id"].partition("-")[0] in held_out) + "passages"].append(row)
    for name in ("train", "held_out"):
        files[name] = [
            {"id": row["id"], "question": row["question"], "answer": row["answers"][0], "check": "text"}
            for row in read_lines(name)
        ]
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        write_records(folder / f"{name}.jsonl", rows)


def make_arm(root: Path, kept: Path, tiny: bool, seed: int, arm: str) -> None:
    """A run of its own, and what it keeps."""
    file, given, folder = kept / f"seed-{seed}-{arm}.json", root / "given", root / f"seed-{seed}"
    start = root.parent / f"start-{seed}"
    if file.exists():
        return
    start.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    with folder_lock(start, start / "lock", work="making a start", say=print, timeout=7200):
        make_start(start, seed)
    settings = [f"model.path={start}/policy", f"domain={PACK}", f"corpus.path={given}/passages.jsonl"]
    settings += [f"corpus.held_out_path={given}/held_out_passages.jsonl"]
    settings += [f"compare.given={given}/held_out.jsonl"]
    settings += [each.format(given=given) for each in ARMS[arm]] + (TINY if tiny else [])
    told = [part for each in settings for part in ("--set", each)]
    run = ["run", "--config", str(CONFIG), "--root", str(folder), "--name", arm, "--seed", str(seed)]
    try:
        run_scope([*run, *told], folder / f"{arm}.log")
    except SystemExit as ended:
        # Documents ran out before there were tasks for a step: the arm ends with the Solver that it has.
        if "candidates were accepted" not in str(ended):
            raise
    keep(folder, arm, file, TINY_QUESTIONS if tiny else None)


def make_start(folder: Path, seed: int) -> None:
    if (folder / "policy").exists():
        return
    base, traces = policy_path("smollm2"), folder / "traces.jsonl"
    script = Script(load_pack(PACK), ChatCodec.load(base), load_config(CONFIG).search.max_tokens)
    script.write(traces, seed, **TRACES)
    places = ["--start", str(base), "--out", str(folder / "policy"), "--trajectories", str(traces)]
    protocol = ["--dialect", "qwen2.5", "--max-length", "768", "--seed", str(seed)]
    run_python(["-m", "jobs", "warm-start", *places, *protocol, *LEARNING], folder / "log")


def keep(folder: Path, arm: str, kept: Path, count: int | None) -> None:
    """What every Solver answers to the first `count` held-out questions, greedily and at the run's temperature."""
    config = load_config(folder / arm / "run.yaml")
    given = read_given_tasks(str(config.compare.given))[:count]
    tasks = {each.task.id: each.task for each in given if each.task is not None}
    run = open_run(config, folder, Progress())
    try:
        answers, trained = [], [*run.folder.path.glob("iteration-*/solver/manifest.json")]
        for iteration in range(len(trained) + 1):
            # By the weights: all arms of a seed start from the same.
            file = folder / f"answers-{run.solver(iteration).identity}.jsonl"
            if not file.exists():
                write_records(file, asyncio.run(_answers(run, iteration, list(tasks.values()))))
            answers.append(read_records(file, Rollout))
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(kept, read_arm(run, arm, answers, tasks).model_dump_json(indent=1) + "\n")
    finally:
        run.close()


async def _answers(run: Run, iteration: int, tasks: Sequence[Task]) -> list[Rollout]:
    policy = run.solver(iteration)
    engine = run.engine(policy, Role.SOLVER)
    formats = [run.policy_format(policy, Role.SOLVER, greedy=greedy) for greedy in (True, False)]

    async def answer(task: Task, number: int) -> Rollout:
        key = (run.config.seed, "held out", iteration, task.id, number)
        return (await run.context.answer(Player(engine, formats[number]), key, task)).without_ids()

    asked = [(task, number) for number in range(len(formats)) for task in tasks]
    return list(await asyncio.gather(*(answer(*each) for each in asked)))
