"""What a cluster says of a run's volume: volumes that are kept for its claim, and what a probe has shown."""

from typing import Any

import pytest

from scope_selfplay.base.errors import State
from scope_selfplay.cluster.commands import examine
from scope_selfplay.cluster.kubectl import Kubectl
from tests.unit.k8s.conftest import QWEN, Answers, cluster_check


def volume(name: str, claim: str | None = "scope-data", **spec: Any) -> dict[str, Any]:
    kept = {"claimRef": {"namespace": "default", "name": claim}} if claim else {}
    whole = {"capacity": {"storage": "2Ti"}, "accessModes": ["ReadWriteMany"], **kept, **spec}
    return {"metadata": {"name": name}, "spec": whole, "status": {"phase": "Available"}}


def claim_problems_of(answers: Answers, *volumes: dict[str, Any]) -> list[str]:
    answers.give("storageclasses")
    answers.give("persistentvolumes", *volumes)
    found = cluster_check(QWEN).problems
    return [each.what for each in found if each.where == "PersistentVolumeClaim/scope-data"]


@pytest.mark.parametrize(
    ("found", "is_enough"),
    [
        (volume("kept"), True),
        (volume("kept", storageClassName="nfs"), True),
        (volume("free", claim=None), True),
        (volume("others", claim="their-data"), False),
        (volume("small", capacity={"storage": "1Gi"}), False),
        (volume("one-node", accessModes=["ReadWriteOnce"]), False),
        (volume("classed", claim=None, storageClassName="nfs"), False),
    ],
    ids=lambda each: each["metadata"]["name"] if isinstance(each, dict) else None,
)
def test_a_volume_that_waits_for_the_claim_needs_no_storage_class(
    answers: Answers, found: dict[str, Any], is_enough: bool
) -> None:
    problems = claim_problems_of(answers, found)
    assert problems == [] if is_enough else ["names no StorageClass" in each for each in problems] == [True]


def test_who_may_not_see_volumes_is_asked_for_a_class(answers: Answers) -> None:
    answers.give("storageclasses")
    (problem,) = [each for each in cluster_check(QWEN).problems if "StorageClass" in each.what]
    assert "make a PersistentVolume for it" in problem.what


def test_a_doctor_names_the_volume_that_waits_for_the_claim(answers: Answers) -> None:
    answers.give("storageclasses")
    answers.give("persistentvolumes", volume("others", claim="their-data"))
    (finding,) = [each for each in examine(Kubectl()) if each.where == "storage"]
    assert finding.state is State.WARNING and finding.what == "no StorageClass"
    answers.give("persistentvolumes", volume("kept"))
    (finding,) = [each for each in examine(Kubectl()) if each.where == "storage"]
    assert finding.state is State.OK and finding.what == "the PersistentVolume kept waits for scope-data"


def probe(line: str, code: int, at: str) -> dict[str, Any]:
    ended = {"terminated": {"finishedAt": at, "message": f"{line}\n", "exitCode": code}}
    return {"metadata": {"name": at}, "spec": {}, "status": {"containerStatuses": [{"state": ended}]}}


def test_check_and_doctor_tell_what_the_newest_probe_has_shown(answers: Answers) -> None:
    answers.give("pods")
    assert [each for each in cluster_check(QWEN).notes if "was not probed yet" in each]
    lacks = (
        "/data: the volume cannot link (Operation not permitted): manifests are published without, forks copy"
    )
    answers.give("pods", probe(lacks, 0, "2026-01-02T00:00:00Z"), probe("older", 64, "2026-01-01T00:00:00Z"))
    checked = cluster_check(QWEN)
    assert lacks in checked.notes and "the volume" not in [each.where for each in checked.problems]
    (finding,) = [each for each in examine(Kubectl()) if each.where == "volume"]
    assert finding.state is State.OK and finding.what == lacks

    broken = "/data: the volume cannot write (Read-only file system): no run can work on it"
    answers.give("pods", probe(lacks, 0, "2026-01-02T00:00:00Z"), probe(broken, 64, "2026-01-03T00:00:00Z"))
    assert [each.what for each in cluster_check(QWEN).problems if each.where == "the volume"] == [broken]
    (finding,) = [each for each in examine(Kubectl()) if each.where == "volume"]
    assert finding.state is State.WARNING
