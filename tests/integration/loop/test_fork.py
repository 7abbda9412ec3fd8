"""A forked run ends as one that had its settings from the start, and the run that it came from stays as it was."""

from pathlib import Path

from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Candidate
from scope_selfplay.config.load import load_config
from scope_selfplay.driver.local import run_all
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.fork import fork_run
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import RunFolder, Stage, read_manifest
from tests.integration.loop.test_run import config_of

FROZEN = ("challenger.freeze_after=1", "compare.stop=never")


def made_in(folder: RunFolder, iteration: int) -> list[tuple[str, str, float | None]]:
    kept = read_records(folder.stage(iteration, Stage.TASKS).candidates, Candidate)
    return [(each.id, each.task.text if each.task else "", each.mean) for each in kept]


def manifests(folder: RunFolder) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.path.glob("iteration-*/*/manifest.json"))}


def test_a_challenger_frozen_in_a_fork_is_the_ablation_from_the_start(
    finished: RunFolder, speaking_policy: Path, tmp_path: Path
) -> None:
    """Figure 3: both conditions share iteration 1."""
    before = manifests(finished)
    made = fork_run(finished.path, tmp_path / "forked", load_config(finished.config, FROZEN), after=1)
    summary = run_all(open_run(load_config(made.folder / "run.yaml"), tmp_path / "forked", Progress()))
    forked = RunFolder(made.folder)
    assert summary["shared"] == {"run": "tiny", "after": 1}
    assert manifests(finished) == before
    assert not forked.stage(2, Stage.CHALLENGER).path.exists()
    (writer,) = {
        each.provenance.challenger
        for each in read_records(forked.stage(2, Stage.TASKS).candidates, Candidate)
    }
    assert writer.startswith("C_1-")

    run_all(open_run(config_of(speaking_policy, *FROZEN), tmp_path / "from-the-start", Progress()))
    alone = RunFolder(tmp_path / "from-the-start" / "tiny")
    assert [made_in(forked, number) for number in (0, 1, 2)] == [
        made_in(alone, number) for number in (0, 1, 2)
    ]
    trained = [read_manifest(each.stage(2, Stage.SOLVER).path) for each in (forked, alone)]
    weights = [each.outputs["checkpoint/model.safetensors"] for each in trained if each]
    assert len(weights) == 2 and weights[0] == weights[1]
