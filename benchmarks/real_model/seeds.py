"""A seed of the bench on disk, by the commands that a user types: `python -m jobs warm-start`, then `scope run`.

    ROOT/questions/            the training and the held-out questions, as `solver.tasks` reads them
    ROOT/seed-N/traces.jsonl   what the supervised start learnt from
    ROOT/seed-N/start/         the supervised start: S_0
    ROOT/seed-N/solver/        the run whose Solver stage makes S_1 of it
    ROOT/seed-N/answers-T.jsonl   what S_T answered to the held-out questions

What is finished is not done again; killed at any moment, the same command goes on.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.real_model.traces import Script, write_traces
from benchmarks.real_model_answers import FACTBOOK, read_lines
from benchmarks.scope_command import run_python, run_scope
from scope_selfplay.config.load import load_config
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.store.files import write_atomic

HERE = Path(__file__).parent
CONFIG, PACK = HERE / "run.yaml", HERE / "pack"
SOLVER_TRACES, CHALLENGER_TRACES = 54, 10
LEARNING = ("--epochs", "1", "--learning-rate", "5e-5", "--batch", "4", "--micro-batch", "4")
"""Of the supervised start: few enough steps that about a third of the sampled answers are right."""


@dataclass(frozen=True)
class Seed:
    number: int
    root: Path
    model: str = "smollm2"
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return self.root / f"seed-{self.number}"

    @property
    def start(self) -> Path:
        return self.folder / "start"

    @property
    def run(self) -> Path:
        return self.folder / "solver"

    def questions(self, name: str) -> Path:
        return self.root / "questions" / f"{name}.jsonl"

    @property
    def settings(self) -> list[str]:
        """What this seed's run has otherwise than run.yaml."""
        return [
            f"model.path={self.start}",
            f"domain={PACK}",
            f"corpus.path={FACTBOOK / 'passages.jsonl'}",
            f"solver.tasks={self.questions('train')}",
            f"compare.given={self.questions('held_out')}",
            *self.overrides,
        ]


def make_seed(seed: Seed) -> None:
    """The supervised start and the Solver that is trained from it. Raises SystemExit where a command fails."""
    for name in ("train", "held_out"):
        write_questions(seed.questions(name), name)
    make_start(seed)
    settings = [part for each in seed.settings for part in ("--set", each)]
    place = ["--root", str(seed.folder), "--name", seed.run.name, "--seed", str(seed.number)]
    run_scope(["run", "--config", str(CONFIG), *place, *settings], seed.folder / "solver.log")


def make_start(seed: Seed) -> None:
    if seed.start.exists():
        return
    base = policy_path(seed.model)
    script = Script(load_pack(PACK), ChatCodec.load(base), load_config(CONFIG).search.max_tokens)
    traces = seed.folder / "traces.jsonl"
    write_traces(traces, script.traces(seed.number, solver=SOLVER_TRACES, challenger=CHALLENGER_TRACES))
    places = ["--start", str(base), "--out", str(seed.start), "--trajectories", str(traces)]
    protocol = ["--dialect", "qwen2.5", "--max-length", "512", "--seed", str(seed.number)]
    run_python(["-m", "jobs", "warm-start", *places, *protocol, *LEARNING], seed.folder / "start.log")


def write_questions(path: Path, name: str) -> None:
    """As `solver.tasks` and `compare.given` read them: the right answer is compared by rule."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "id": row["id"],
            "question": row["question"],
            "answer": row["answers"][0],
            "check": "text",
            "type": row["group"],
        }
        for row in read_lines(name)
    ]
    write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
