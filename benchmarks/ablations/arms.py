"""An arm of an ablation becomes a run on disk, by the commands that a user types: `scope run` and `scope fork`.

A finished run is not run again, a killed one goes on: `scope run` resumes, and a fork is whole or absent.
"""

from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from benchmarks.options import read_options
from benchmarks.scope_command import ROOT, run_scope
from benchmarks.warm_start import POLICY, WORDY, train
from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig, changed_settings
from scope_selfplay.run.schedule import stages_of
from scope_selfplay.store.folder import RunFolder, Stage, read_manifest


@dataclass(frozen=True)
class Arm:
    """One condition. With `of` it shares that arm's iterations up to `after`; else it is a run of its own.

    With `tasks_of` it trains on the tasks of that arm's iteration 1, so that only `solver` and `compare` are its own. A
    `wordy` one starts from a policy that often says what nobody asked for.
    """

    name: str
    settings: tuple[str, ...] = ()
    of: Optional["Arm"] = None
    after: int = 0
    tasks_of: Optional["Arm"] = None
    wordy: bool = False

    @property
    def needs(self) -> tuple["Arm", ...]:
        return tuple(arm for arm in (self.of, self.tasks_of) if arm is not None)


CO_EVOLVING = Arm("co-evolving")
"""`scope run` as it ships."""
FROZEN_AFTER_1 = Arm("frozen-c1", ("challenger.freeze_after=1",), of=CO_EVOLVING, after=1)
"""The paper's ablation: from iteration 2 on, C_1 writes all tasks."""
FROZEN_FROM_START = Arm("frozen-c0", ("challenger.freeze_after=0",), of=CO_EVOLVING)
"""C_0 writes all tasks: many depths, untouched by what the Solver can do."""


@dataclass(frozen=True)
class Laboratory:
    """Where the runs of all seeds lie, and what all of them have otherwise than the embedded run."""

    root: Path
    overrides: tuple[str, ...] = ()

    def folder(self, arm: Arm, seed: int) -> Path:
        return self.root / f"seed-{seed}" / arm.name

    @property
    def wordy_policy(self) -> Path:
        return self.root / "wordy" / "policy"

    def settings(self, arm: Arm, seed: int) -> list[str]:
        """What the arm has otherwise than the run that it begins with."""
        own = list(arm.settings)
        if arm.tasks_of is not None:
            tasks = RunFolder(self.folder(arm.tasks_of, seed)).stage(1, Stage.TASKS).candidates
            own += ["iterations=1", f"solver.tasks={tasks.resolve()}"]
        if arm.wordy:
            own.append(f"model.path={self.wordy_policy}")
        return own if arm.of is not None else [*self.overrides, *own]

    def config(self, arm: Arm, seed: int) -> RunConfig:
        """The config of the arm's run; that of a fork needs the run that it comes from."""
        settings = self.settings(arm, seed)
        if arm.of is not None:
            return load_config(self.folder(arm.of, seed) / "run.yaml", settings, options={"name": arm.name})
        return load_config(DEFAULT_CONFIG, settings, options={"name": arm.name, "seed": seed})


def read_laboratory(doc: str | None, names: Sequence[str]) -> Namespace:
    """Options of a benchmark over arms and seeds, and its `laboratory`; `jobs` are seeds side by side."""
    given = {"seeds": [1, 2, 3, 4, 5], "jobs": 1, "root": ROOT / "bench-out" / "embedded", "set": []}
    options = read_options(doc, choices={"only": names}, write=False, **given)
    options.laboratory = Laboratory(options.root.resolve(), tuple(options.set))
    return options


def make_all(arms: Sequence[Arm], seeds: Sequence[int], laboratory: Laboratory, jobs: int) -> None:
    """Every arm under every seed, behind what it needs."""
    if any(arm.wordy for arm in arms) and not laboratory.wordy_policy.exists():
        train(laboratory.wordy_policy.parent, WORDY, POLICY)

    def make_seed(seed: int) -> None:
        for arm in _in_order(arms):
            make(arm, seed, laboratory)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(make_seed, seeds))


def _in_order(arms: Sequence[Arm]) -> list[Arm]:
    found: dict[Arm, None] = {}
    for arm in arms:
        found |= dict.fromkeys((*_in_order(arm.needs), arm))
    return list(found)


def make(arm: Arm, seed: int, laboratory: Laboratory) -> None:
    """Raises SystemExit where the folder holds a run of other settings, or where a command fails."""
    folder, config = laboratory.folder(arm, seed), laboratory.config(arm, seed)
    settings = [part for each in laboratory.settings(arm, seed) for part in ("--set", each)]
    log = folder.parent / f"{arm.name}.log"
    if (folder / "run.yaml").exists():
        check_same(folder, config)
        run = RunFolder(folder)
        done = all(read_manifest(run.stage(*stage).path) for stage in stages_of(load_config(run.config)))
        if run.summary.exists() and done:
            return
    elif arm.of is not None:
        source = str(laboratory.folder(arm.of, seed))
        run_scope(["fork", source, "--after", str(arm.after), "--name", arm.name, *settings], log)
    place = ["--root", str(folder.parent)]
    if arm.of is not None:
        run_scope(["run", "--config", str(folder / "run.yaml"), *place], log)
    else:
        run_scope(["run", *place, "--name", arm.name, "--seed", str(seed), *settings], log)


def check_same(folder: Path, config: RunConfig) -> None:
    before = load_config(folder / "run.yaml")
    if before.hash != config.hash or before.iterations != config.iterations:
        changed = ", ".join(changed_settings(before, config)) or "iterations"
        raise SystemExit(
            f"{folder}: was made with other settings ({changed}); give another --root, or remove the folder"
        )
