"""When the controller's Job ends, as Kubernetes' rules of `podFailurePolicy` are read, and servers that lack it."""

from pathlib import Path
from typing import Any

import pytest

from jobs.__main__ import exit_code_of
from scope_selfplay.base.errors import ExitCode
from scope_selfplay.cluster.check import VERSIONS, schema_problems
from scope_selfplay.cluster.check_cluster import OLDEST
from tests.unit.k8s.conftest import QWEN, RUNS, Answers, cluster_check, rendered, with_components
from tests.unit.k8s.test_check_cluster import enough_but_quota


def action(policy: dict[str, Any], code: int, *, drained: bool) -> str:
    """What becomes of a Job after a pod that ended so: the first rule that fits, else one of its restarts is used."""
    for rule in policy["rules"]:
        if code in rule.get("onExitCodes", {}).get("values", ()):
            return str(rule["action"])
        if drained and any(each["type"] == "DisruptionTarget" for each in rule.get("onPodConditions", ())):
            return str(rule["action"])
    return "Count"


@pytest.mark.parametrize(
    ("verdict", "drained", "becomes"),
    [
        (ExitCode.USER, False, "FailJob"),
        (ExitCode.BUG, False, "FailJob"),
        (ExitCode.USER, True, "FailJob"),
        (ExitCode.TERMINATED, True, "Ignore"),
        (ExitCode.OUTSIDE, False, "Count"),
        # No verdict: the process crashed, and is started again.
        (None, False, "Count"),
    ],
)
def test_the_job_ends_with_every_run_that_failed_and_with_nothing_else(
    verdict: ExitCode | None, drained: bool, becomes: str
) -> None:
    (job,) = [body for body in rendered(QWEN) if body["kind"] == "Job"]
    code = 1 if verdict is None else exit_code_of(verdict)
    assert action(job["spec"]["podFailurePolicy"], code, drained=drained) == becomes
    assert schema_problems([job]) == []


@pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run.name))
def test_every_run_ends_so_but_the_one_for_any_server(run: Path) -> None:
    for folder in (run, run / "iteration-01"):
        (job,) = [body for body in rendered(folder) if body["kind"] == "Job"]
        assert ("podFailurePolicy" in job["spec"]) is (run.name != "tiny")


@pytest.mark.parametrize(
    ("version", "components", "lacks", "old"),
    [
        ("v1.20.2", (), ["spec.podFailurePolicy"], True),
        ("v1.23.0", ("older-kubernetes", "multi-node"), ["spec.completionMode"], True),
        ("v1.23.0", ("older-kubernetes",), [], True),
        ("v1.27.3-gke.1", (), [], True),
        ("v1.29.9-gke.1", (), [], True),
        ("v1.30.0", (), [], False),
        ("v2.0", (), [], False),
        ("what", (), [], False),
    ],
)
def test_a_server_too_old_for_a_run_is_named_with_what_to_do(
    answers: Answers, tmp_path: Path, version: str, components: tuple[str, ...], lacks: list[str], old: bool
) -> None:
    answers.run_version(version)
    enough_but_quota(answers)
    found = cluster_check(with_components(tmp_path / "run", QWEN, *components))
    assert found.problems == [each for each in found.problems if version in each.what]
    assert sorted({each.what.split()[1].strip(",") for each in found.problems}) == lacks
    told = [note for note in found.notes if version in note]
    assert len(told) == old and VERSIONS[0] == OLDEST
