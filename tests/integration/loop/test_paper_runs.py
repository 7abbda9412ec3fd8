"""The papers' run folders, made small: the random policy, a judge that answers at random, two queries, one step."""

import json
import random
from pathlib import Path

import pytest

from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Comparison, Rubric, Score, Selection
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.corpus.world import make_documents
from scope_selfplay.driver.local import run_all
from scope_selfplay.judge.served import random_judge_app
from scope_selfplay.net.serve import serving
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.run.begin import open_run
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.testing.random_policy import write_random_policy
from tests.integration.serving.threads import in_thread

REPOSITORY = Path(__file__).parents[3]
SMALL = """
    model.dialect=qwen2.5 model.engine=in_process model.slots=16 model.max_length=4000 model.deterministic=true
    corpus.path=embedded corpus.sample=64
    solver.steps=1 solver.batch=2 solver.group_size=4 solver.max_prompt=3000 solver.max_response=800
    solver.max_turn=100 solver.learning_rate=1e-3 judge.endpoint.context=null compare.tasks=2
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    packs = [
        load_pack(REPOSITORY / "prompts" / name)
        for name in ("open-travel", "open-deepresearch", "open-writing")
    ]
    texts = [prompt.body for pack in packs for prompt in pack.prompts]
    return write_random_policy(
        tmp_path_factory.mktemp("policy"), make_documents(random.Random(0), 64, source="w"), texts
    )


def small(name: str, policy: Path, folder: Path, judge: str, *changes: str) -> RunConfig:
    """The run of a folder with everything that costs made small; its design, prompts and sampling stay."""
    tasks = folder / "queries.jsonl"
    tasks.write_text("".join(json.dumps({"question": text}) + "\n" for text in ("Where to?", "And why?")))
    places = [f"model.path={policy}", f"judge.endpoint.base_url={judge}"]
    given = [f"solver.tasks={tasks}", f"compare.given={tasks}"]
    file = REPOSITORY / "k8s" / "runs" / name / "run.yaml"
    return load_config(file, [*SMALL.split(), *places, *given, *changes])


def run_small(name: str, policy: Path, folder: Path, *changes: str) -> RunFolder:
    with in_thread(serving(random_judge_app())) as judge:
        config = small(name, policy, folder, judge, *changes)
        run_all(open_run(config, folder / "runs", Progress()))
    return RunFolder(folder / "runs" / config.name)


def test_tournament_grpo_runs_with_its_own_settings(policy: Path, tmp_path: Path) -> None:
    folder = run_small("tournament-grpo", policy, tmp_path)
    stage = folder.stage(1, Stage.SOLVER)
    assert stage.manifest is not None and folder.stage(1, Stage.COMPARE).manifest is not None
    selections = read_records(stage.selections, Selection)
    assert selections and {each.repeat for each in selections} <= set(range(4))
    lengths = {len(rubric.criteria) for rubric in read_records(stage.rubrics, Rubric)}
    assert lengths and lengths <= {5, 6, 7}


@pytest.mark.parametrize("domain", ["open-travel", "open-deepresearch"])
def test_arenarl_runs_with_its_own_settings(policy: Path, tmp_path: Path, domain: str) -> None:
    folder = run_small("arenarl", policy, tmp_path, f"domain={domain}")
    stage = folder.stage(1, Stage.SOLVER)
    assert stage.manifest is not None and folder.stage(1, Stage.COMPARE).manifest is not None
    pairs = {(each.first_id, each.second_id) for each in read_records(stage.comparisons, Comparison)}
    # Both orders.
    assert pairs and all((other, one) in pairs for one, other in pairs)


@pytest.mark.parametrize("reward", ["arenarl", "arenarl_pointwise"])
def test_arenarl_writes_without_tools(policy: Path, tmp_path: Path, reward: str) -> None:
    changes = "domain=open-writing solver.max_search_turns=0 solver.loss=gspo".split()
    stage = run_small("arenarl", policy, tmp_path, *changes, f"solver.reward={reward}").stage(1, Stage.SOLVER)
    assert stage.manifest is not None
    scales = {each.scale for each in read_records(stage.scores, Score)} if stage.scores.exists() else set()
    assert scales == ({"answer"} if reward == "arenarl_pointwise" else set())
