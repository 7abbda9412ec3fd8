"""Every run folder of the repository, shrunken: its own rewards, loss and rules, with a policy of random words."""

import json
from pathlib import Path

import pytest

from scope_selfplay.base.terminal import Progress
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.driver.local import run_all
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.schedule import stages_of
from scope_selfplay.store.folder import RunFolder, read_manifest
from tests.integration.loop.test_run import SETTINGS

REPOSITORY = Path(__file__).parents[3]
# Their queries are no world's, so that only a random judge can judge them: test_paper_runs.py.
OTHER_JUDGE = {"arenarl", "tournament-grpo"}
RUNS = [
    file for file in sorted(REPOSITORY.glob("k8s/runs/*/run.yaml")) if file.parent.name not in OTHER_JUDGE
]

# What a laptop lacks: GPUs, servers, a corpus of millions, a judge that is a model. Everything else is the run's.
HERE = """
    stop_after=null iterations=1 domain=embedded model.dialect=qwen2.5 model.engine=in_process model.deterministic=true
    corpus.path=embedded corpus.sample=null corpus.held_out_path=null search.url=null
    partners.challenger.base_url=null partners.solver.base_url=null compare.stop=never tasks.max_candidates=200
    challenger.max_turn=null solver.max_turn=null
"""


def shrunk(file: Path, policy: Path, folder: Path) -> RunConfig:
    """The run's own config, as small as the loop's other tests; questions that it names are made up."""
    whole = load_config(file)
    kept = [
        each
        for each in SETTINGS.split()
        if not each.startswith(("name=", "solver.group_size", "iterations="))
    ]
    settings = [*kept, *HERE.split(), f"model.path={policy}"]
    if whole.judge.kind == "model":
        settings.append("judge.kind=lexical")
    for setting in ("solver.tasks", "compare.given"):
        section, name = setting.split(".")
        if getattr(getattr(whole, section), name) is not None:
            questions = folder / f"{setting}.jsonl"
            lines = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(8)]
            questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
            settings.append(f"{setting}={questions}")
    return load_config(file, settings)


@pytest.mark.parametrize("file", RUNS, ids=lambda file: file.parent.name)
def test_the_shrunken_run_ends_with_every_stage(file: Path, speaking_policy: Path, tmp_path: Path) -> None:
    config, whole = shrunk(file, speaking_policy, tmp_path), load_config(file)
    assert (config.solver.reward, config.solver.loss) == (whole.solver.reward, whole.solver.loss)
    summary = run_all(open_run(config, tmp_path, Progress()))
    folder = RunFolder(tmp_path / config.name)
    for iteration, stage in stages_of(config):
        assert read_manifest(folder.stage(iteration, stage).path) is not None, (iteration, stage)
    assert set(summary["held_out"]) <= {"S_0", "S_1"}
