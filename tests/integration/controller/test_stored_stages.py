"""The stages of a run, each on a disk of its own with a store between them, as its pods are told to do it: one attempt
of each training is ended in its midst, and what comes out is what one process makes.
"""

import subprocess
import time
from pathlib import Path

import pytest
import yaml

from scope_selfplay.base.terminal import Progress
from scope_selfplay.cluster.fetch import StoredRun, fetch
from scope_selfplay.cluster.pods import RunStage
from scope_selfplay.cluster.prepare import stage_pulls
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.driver.parts import RunStore, read_inputs, read_volume, steps_of
from scope_selfplay.prompts.folder import shipped_prompts
from scope_selfplay.store.folder import RunFolder
from tests.cluster.test_pods import SHORT, same_results_as_at_home
from tests.unit.k8s.conftest import TINY

pytestmark = pytest.mark.timeout(900)


def test_stages_that_are_cut_go_on_elsewhere_and_make_what_one_process_makes(
    tmp_path: Path, forked: list[str]
) -> None:
    settings = yaml.safe_load((TINY / "setup" / "run.yaml").read_text()) | {"judge": {"kind": "lexical"}}
    for group, values in SHORT.items():
        settings[group] = settings[group] | values if isinstance(values, dict) else values
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    config, folder = load_config(tmp_path / "run.yaml"), RunFolder(tmp_path / "controller/runs/tiny")
    read_inputs(tmp_path / "run.yaml", folder.path.parent, shipped_prompts(), ())
    store, attempts = RunStore(f"file://{tmp_path}/store", folder), dict[str, int]()
    for step in steps_of(config):
        store.look(config)
        done = read_volume(folder, config)
        assert len(done.done) == len(attempts), "the one before was published"
        attempts[step.name] = attempted(tmp_path, config, step, done.promoted, [*forked, "jobs"])
        store.publish(step, attempts[step.name])
    assert [attempts[f"i01-train-{role}"] for role in ("challenger", "solver")] == [2, 2]
    store.store_logs()
    run = StoredRun(f"file://{tmp_path}/store", "tiny")
    fetch(run, "tiny", tmp_path / "fetched", Progress(), checkpoints=True, force=False)
    same_results_as_at_home(RunFolder(tmp_path / "fetched/tiny"), tmp_path / "run.yaml", tmp_path / "home")


def attempted(
    top: Path, config: RunConfig, step: RunStage, promoted: tuple[bool, ...], jobs: list[str]
) -> int:
    """The attempt that ended well; of a training the first is told to end as soon as there are records."""
    part = f"runs/tiny/iteration-{step.iteration:02d}/{step.stage.value}"
    for attempt in (1, 2):
        disk = top / f"{step.name}-{attempt}"
        stored = ["--store", f"file://{top}/store", "--volume", str(disk)]
        subprocess.run([*jobs, "pull", *stored, *stage_pulls(config, step, promoted)], check=True)
        told = ["--config", top / "run.yaml", "--root", disk / "runs", "--prompts", shipped_prompts()]
        told += ["--iteration", step.iteration, "--attempt", attempt]
        words = ["keep", *stored, "--attempt", attempt, part, "--", *jobs, step.stage.job_name, *told]
        process = subprocess.Popen([*jobs, *map(str, words)])
        while attempt == 1 and step.stage.job_name.startswith("train") and process.poll() is None:
            if any(file.stat().st_size for file in (disk / part).glob("[mcr]*.jsonl")):
                process.terminate()
                break
            time.sleep(0.1)
        if (code := process.wait()) == 0:
            return attempt
        assert code == 143
    raise AssertionError("cut twice")
