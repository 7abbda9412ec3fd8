"""`scope run --gpus 1`: a whole iteration of the one driver, with its servers and trainers on one GPU.

The policy says random sentences of the embedded world, the judge answers at random, and the library's own servers take
vLLM's place, so that what is measured is where memory and time go.
"""

import re
import subprocess
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.part import PartContext
from benchmarks.gpu.policies import forget_the_gpu, speaking_policy
from benchmarks.scope_command import run_scope
from scope_selfplay.config.load import load_config
from scope_selfplay.driver.local import read_slots
from scope_selfplay.plan.placement import place
from scope_selfplay.store.files import read_rows
from scope_selfplay.store.folder import RunFolder

WITHIN = 0.15
"""How far what a trainer took of the GPU may be from what the run said that it takes."""
SETTINGS = """name=one domain=embedded iterations=1 seed=4 corpus.path=embedded corpus.sample=40 search.topk=1
    search.max_tokens=48 model.max_length=256 model.slots=16 judge.kind=model judge.gates=[] tasks.in_flight=8
    judge.endpoint.base_url=http://one-judge:8000/v1 cluster.judge.args=[--rehearsal] cluster.tiny=true
    cluster.solver.args=[--fast] cluster.challenger.args=[--fast] challenger.rollouts=2
    tasks.target=4 compare.tasks=4"""


def one_gpu(context: PartContext) -> None:
    scale = replace(context.scale, whole=context.scale.sharded)
    scale = replace(scale, episodes=scale.episodes._replace(thought=8, length=256))
    given = [*SETTINGS.split(), f"model.path={speaking_policy(scale, context.folder / 'policy')}"]
    trained = {"steps": 2, "batch": 2, "group_size": scale.group, "micro_tokens": 2048, "save_every": 100}
    trained |= {"max_prompt": 120, "max_response": 136, "learning_rate": 1e-6}
    given += [f"{role}.{key}={value}" for role in ("challenger", "solver") for key, value in trained.items()]
    forget_the_gpu()
    gpus, taken, ended = "1" if scale.on_gpu else "cpu:1", Counter[str](), threading.Event()
    watch = threading.Thread(target=_watch, args=(taken, ended))
    watch.start()
    command = ["run", "--root", str(context.folder), "--gpus", gpus, *(f"--set={each}" for each in given)]
    try:
        run_scope(command, context.folder / "run.log")
    finally:
        ended.set()
        watch.join()
        context.note(server_gib=taken["serve-model"] / 1024)
        for part in place(load_config(None, given), read_slots(gpus)).parts:
            if part.title != "trainer":
                continue
            name, gib = part.stage.job_name, taken[part.stage.job_name] / 1024
            for step in read_rows(RunFolder(context.folder / "one").stage(1, part.stage).metrics)[-1:]:
                tokens = 2 * scale.group * step["completion_tokens"]
                context.note(**{f"{name}_sampled_per_second": tokens / step["rollout_seconds"]})
                context.note(**{f"{name}_step_seconds": step["step_seconds"]})
            if scale.on_gpu:
                context.note(**{f"{name}_gib": gib, f"{name}_planned_gib": part.gib})
                said = f"{name} took {gib:.1f} GiB at most, the run said {part.gib:.1f}"
                context.claim(abs(gib / part.gib - 1) <= WITHIN, f"{said}; expected within {WITHIN:.0%}")


def _watch(taken: Counter[str], ended: threading.Event) -> None:
    """The most MiB of the GPU that each program took at once."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    while not ended.wait(0.3):
        with suppress(OSError, ValueError):
            for row in subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines():
                pid, mebi = row.split(", ")
                if name := re.search(r"train-\w+|serve-model", Path(f"/proc/{pid}/cmdline").read_text()):
                    taken[name[0]] = max(taken[name[0]], int(mebi))
