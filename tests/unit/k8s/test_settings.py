"""What a run's config asks and no cluster can do: one clear problem each."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from scope_selfplay.k8s.check import check_folder
from scope_selfplay.k8s.objects import ManifestProblem
from tests.unit.k8s.conftest import QWEN, REPOSITORY, with_components

ONE_GPU = REPOSITORY / "k8s/runs/one-gpu"


def problems_of(top: Path, source: Path, change: dict[str, Any], *components: str) -> list[ManifestProblem]:
    run = yaml.safe_load((source / "setup" / "run.yaml").read_text())
    for key, value in change.items():
        place = run
        *way, last = key.split(".")
        for step in way:
            place = place[step]
        place[last] = value
    return check_folder(with_components(top, source, *components, text=yaml.safe_dump(run))).problems


@pytest.mark.parametrize(
    ("source", "change", "where", "message"),
    [
        (QWEN, {"name": "1run"}, "name", "is '1run'; on a cluster a run's id begins with a letter"),
        (ONE_GPU, {"cluster.judge": {"gpus": 0}}, "cluster.judge", "articles of the embedded world"),
        (
            ONE_GPU,
            {"cluster.train_solver": {"gpus": 0}},
            "cluster.train_solver",
            "has no GPU, and model.engine vllm_colocated samples on the trainer's",
        ),
    ],
    ids=["name", "judge", "engine"],
)
def test_what_no_cluster_can_do_is_one_problem(
    source: Path, change: dict[str, Any], where: str, message: str, tmp_path: Path
) -> None:
    assert problems_of(tmp_path / "before", source, {}) == []
    (problem,) = problems_of(tmp_path / "after", source, change)
    assert problem.where == where and message in problem.message


def test_a_quota_in_the_folder_is_compared_with_what_the_other_components_take(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "eight", QWEN, {}, "eight-gpus", "quota") == []
    (problem,) = problems_of(tmp_path / "more", QWEN, {}, "multi-node", "quota")
    assert problem.where == "ResourceQuota/scope"
    assert "allows 8 requests.nvidia.com/gpu" in problem.message
    assert problem.message.endswith("the stage train-solver takes 10")
