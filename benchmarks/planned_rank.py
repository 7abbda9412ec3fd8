"""One rank of a plan of `benchmarks.ranks`: trains a tiny policy on made-up rollouts, notes what it comes to and what
the ranks have agreed, and fails where the plan says so. A fork of a process that has imported everything.
"""

import asyncio
import gc
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.ranks import ALL, CODES, Plan


def preload() -> None:
    from scope_selfplay.base.terminal import quiet_libraries

    quiet_libraries()
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import transformers.models.qwen3.modeling_qwen3

    import scope_selfplay.training.loop
    import scope_selfplay.training.model

    assert torch and transformers and scope_selfplay
    # Forks end several times faster.
    gc.freeze()


def run(arguments: Sequence[str]) -> None:
    """A plan, its folder, the policy, and the process that launched it; ends as a job does."""
    import click

    from scope_selfplay.base.terminal import end_on_sigterm, run_command

    plan, folder, policy, launcher = arguments
    rank = _Rank(Plan.read(plan), Path(folder), Path(policy), int(launcher))
    end_on_sigterm()
    run_command(click.Command("rank", callback=rank.work), "rank")


class _Rank:
    def __init__(self, plan: Plan, folder: Path, policy: Path, launcher: int) -> None:
        self.plan, self.folder, self.policy, self.launcher = plan, folder, policy, launcher
        self.number, self.training, self.step, self.armed = int(os.environ["RANK"]), 0, 0, False
        self.ranks = _noting_ranks(self.number, plan.ranks, folder / f"trace-{self.number}")

    def work(self) -> None:
        from benchmarks.gpu.made_up import NoEngine, job_of
        from scope_selfplay.config.training import SolverConfig
        from scope_selfplay.store import folder as receipts
        from scope_selfplay.training import checkpoint, job
        from scope_selfplay.training.job import TrainingCallbacks
        from scope_selfplay.training.loop import TrainingLoop, load

        plan, write, found = self.plan, receipts.write_atomic, hashlib.sha256()

        def written(path: Path, text: str) -> None:
            places = {".staging": "publishing", "final": "export"}
            self.at("saving" if path.name.startswith(".sums") else places.get(path.parent.name, ""))
            write(path, text)

        receipts.write_atomic = written
        checkpoint.damage_of = self.watched("reading", checkpoint.damage_of)
        job.Appender.append = self.watched("metrics", job.Appender.append)
        fixed = {"learning_rate": 1e-3, "warmup_ratio": 0.0, "max_response": 64, "save_every": 1}
        sizes = {"steps": plan.steps, "batch": plan.share * plan.ranks, "group_size": plan.group}
        settings = SolverConfig.model_validate({**fixed, **sizes, **plan.settings})
        callbacks = TrainingCallbacks(
            on_step=lambda step, line, accounts: self.at("on_step"),
            account=lambda: self.at("account"),
            say=lambda line: None,
        )
        for number in range(plan.trainings):
            self.training, self.armed = number, number + 1 == plan.trainings
            with self.ranks:
                folder = self.folder / f"training-{number}"
                job = replace(job_of(self.policy, folder, settings, callbacks=callbacks), ranks=self.ranks)
                model = load(job)
                loop = TrainingLoop(job, model, NoEngine(self.taken), self.sample)
                model.score = self.watched("pass", model.score)
                model.refer = self.watched("refer", model.refer)
                loop.optimizer.step = self.watched("optimizer", loop.optimizer.step)
                loop.run()
                for name, weight in model.whole_weights(next(iter(model.trained.values())).dtype):
                    found.update(name.encode() + weight.numpy().tobytes())
        (self.folder / f"weights-{self.number}").write_text(found.hexdigest())

    def taken(self, model: Any, step: int) -> None:
        """Gathers the whole weights for every step, as engines of their own do."""
        from scope_selfplay.training.engines import whole_weights

        self.step = step
        self.at("take")
        with whole_weights(model) as weights:
            for _ in weights:
                self.at("push")

    async def sample(self, records: Sequence[str], step: int, sampled: Callable[[Any], None]) -> Any:
        from scope_selfplay.training.engines import StepResult

        self.step, rng, fault = step, random.Random(f"{self.plan.seed}/{step}"), self.plan.fault
        for turn in range(self.plan.rounds):
            asked = [f"{self.training}/{step}/{turn}/{rng.randrange(3)}" for _ in range(3)]
            made = [self.ranks.once(name, partial(self.made, name)) for name in asked]
            await asyncio.gather(self.ranks.gather(f"round {turn}", len(records)), *made)
        await asyncio.sleep(random.random() * 0.05)
        if fault and self.armed and step == fault.step and fault.rank not in (self.number, ALL):
            await asyncio.sleep(60 if fault.slow == "awaits" else 0)
            time.sleep(60 if fault.slow == "blocks" else 0)
        self.at("sampling")
        groups = [self.group(random.Random(f"{self.plan.seed}/{record}")) for record in records]
        result = StepResult(groups, {"rubric": 0.5})
        if rng.random() < 0.7:
            sampled(result.rows)
        await asyncio.sleep(random.random() * 0.05)
        self.at("judging")
        return result

    async def made(self, name: str) -> str:
        await asyncio.sleep(random.random() * 0.02)
        return f"{name} by {self.number}"

    def group(self, rng: random.Random) -> list[Any]:
        """Rows of any number and length; rollouts without a reward, groups that are flat or have no rows."""
        from scope_selfplay.training.passes import RewardedRollout, TrainingRow

        flat, empty, rollouts = rng.random() < 0.2, rng.random() < 0.1, []
        for _ in range(self.plan.group):
            sizes = [rng.randint(1, 40) for _ in range(0 if empty else rng.choice((0, 1, 1, 2, 4)))]
            sampled = [[rng.randrange(60, 90) for _ in range(size)] for size in sizes]
            rows = [TrainingRow([40, 41, 42], ids, [1] * len(ids), [-5.0] * len(ids)) for ids in sampled]
            reward = None if rng.random() < 0.15 else 0.5 if flat else rng.random()
            rollouts.append(RewardedRollout(rows, reward))
        return rollouts

    def watched(self, moment: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            self.at(moment)
            return call(*arguments, **options)

        return called

    def at(self, moment: str) -> None:
        """The fault of the plan, if it is now."""
        fault = self.plan.fault
        if not self.armed or fault is None or moment != fault.moment or fault.rank not in (self.number, ALL):
            return
        if fault.step != self.step and moment not in ("reading", "export"):
            return
        self.armed = False
        (self.folder / "fault").write_text(repr(time.time()))
        match fault.kind:
            case "term" | "term all" | "hung":
                os.kill(os.getpid() if fault.kind == "term" else self.launcher, signal.SIGTERM)
            case "ctrl-c":
                os.kill(os.getpid(), signal.SIGINT)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(CODES["exit"])
            case kind:
                raise _error_of(kind)(f"a planned fault in {moment}")
        # A signal takes a moment to come.
        time.sleep(60 if fault.kind == "hung" else 0.2)


def _error_of(kind: str) -> type[Exception]:
    import torch

    from scope_selfplay.base.errors import ConfigError, InferenceError

    errors = {"user": ConfigError, "outside": InferenceError, "bug": RuntimeError}
    return errors.get(kind, torch.OutOfMemoryError)


def _noting_ranks(number: int, processes: int, file: Path) -> Any:
    """Ranks that write down what they come to, and what they know then."""
    from scope_selfplay.training.ranks import Ranks

    lines = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(stream: str, what: str, *known: object) -> None:
        told = [hashlib.sha256(repr(each).encode()).hexdigest()[:12] for each in known]
        os.write(lines, (json.dumps([stream, what, *told]) + "\n").encode())

    class Noting(Ranks):
        def agree(self, what: str, own: Any, **options: Any) -> list[Any]:
            note("loop", what)
            found = super().agree(what, own, **options)
            note("loop", what, found)
            return found

        async def gather(self, what: str, own: Any) -> list[Any]:
            note("rollouts", what)
            found = await super().gather(what, own)
            note("rollouts", what, found)
            return found

        async def once(self, name: str, make: Any) -> Any:
            found = await super().once(name, make)
            note("once", name, found)
            return found

        def add_up(self, gradients: Any) -> None:
            note("loop", "gradients")
            super().add_up(gradients)

    sys.argv = ["rank"]
    return Noting(number, processes)
