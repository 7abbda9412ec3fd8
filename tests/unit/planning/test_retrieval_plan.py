"""Encoding a corpus is planned together with its searches, from named rates."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from scope_selfplay.cli import cli
from scope_selfplay.config.load import load_config
from scope_selfplay.plan.load import retrieval_plan
from scope_selfplay.plan.size import Assumptions

QWEN = Path(__file__).parents[3] / "k8s" / "runs" / "qwen3-8b" / "run.yaml"


def test_wikipedia_takes_about_a_thousand_core_hours_or_two_hours_of_a_gpu() -> None:
    """5.5 passages/s a core is measured (docs/retrieval.md), 3,000/s of a GPU is not."""
    found = retrieval_plan(load_config(QWEN), Assumptions())
    assert found is not None and found.passages == 21_015_324
    assert 900 < found.core_hours < 1_100
    assert (found.encoded_by, round(found.encode_hours, 1)) == ("1 GPU", 1.9)
    on_cpus = retrieval_plan(load_config(QWEN, ["cluster.prepare.index_job.gpus=0"]), Assumptions())
    assert on_cpus is not None and on_cpus.encoded_by == "16 CPUs"
    # Longer than the 48 hours after which the Job once ended.
    assert on_cpus.encode_hours == pytest.approx(found.core_hours / 16) and on_cpus.encode_hours > 48


def test_the_searches_of_a_step_take_the_retrievers_cpus() -> None:
    """SCOPE, Table 9: 256 prompts of 8 rollouts; three searches each are an assumption."""
    halves = [
        retrieval_plan(load_config(QWEN, [f"cluster.retriever.cpu='{cpu}'"]), Assumptions())
        for cpu in (8, 16)
    ]
    assert all(halves) and [each.searches for each in halves if each] == [6_144, 6_144]
    seconds = [each.search_seconds for each in halves if each]
    assert seconds[0] == pytest.approx(2 * seconds[1]) and seconds[1] == pytest.approx(6_144 / 22 / 16)


@pytest.mark.parametrize(
    "setting", ["corpus.path=none", "search.url=http://search:80", "cluster.prepare.encoder=null"]
)
def test_what_is_not_built_is_not_planned(setting: str) -> None:
    settings = [setting, *(["corpus.sample=null"] if setting == "corpus.path=none" else [])]
    assert retrieval_plan(load_config(QWEN, settings), Assumptions()) is None


def test_the_command_prints_it_and_an_assumption_changes_it() -> None:
    def printed(*more: str) -> str:
        return CliRunner().invoke(cli, ["plan", "--config", str(QWEN), *more]).output

    assert "encoding 21,015,324 passages once: 1.9 h by 1 GPU (1,061 core-hours on CPUs)" in printed()
    assert "once: 0.1 h by 1 GPU" in printed("--assume", "passages=1000000")


def test_the_servers_memory_is_planned_from_its_processes_and_the_profile_and_too_little_is_said() -> None:
    def planned(*settings: str) -> float:
        found = retrieval_plan(load_config(QWEN, list(settings)), Assumptions())
        assert found is not None
        return found.memory_gib

    usual = planned()
    assert 20 < usual < 30
    # Another search process has an encoder of its own; a flat index is in memory as a whole.
    assert 0.9 < planned("cluster.retriever.cpu='17'") - usual < 1.2
    assert planned("cluster.prepare.index=[--profile, flat]") - usual > 50
    assert planned("cluster.retriever.args=[--workers=3]") < usual - 10
    for run in QWEN.parents[1].glob("*/run.yaml"):
        found = retrieval_plan(load_config(run), Assumptions())
        # Enough, and not so much that nodes are kept from others for nothing.
        assert found is None or found.memory_gib < found.requested_gib < 2 * found.memory_gib, run
    short = retrieval_plan(load_config(QWEN, ["cluster.retriever.memory=16Gi"]), Assumptions())
    assert short is not None and short.is_short
