"""Mistakes that a schema takes and an API server does not, each planted into the objects of a run and found without a
cluster; `tests/cluster` plants the same and asks a real server."""

from collections.abc import Callable

import pytest

from scope_selfplay.cluster.check_pods import reference_problems, rule_problems
from tests.unit.k8s.planted import PLANTED, Objects, tiny_objects


def test_a_run_of_the_repository_breaks_no_rule() -> None:
    assert rule_problems(tiny_objects()) == []


@pytest.mark.parametrize(("fault", "message"), PLANTED.values(), ids=PLANTED)
def test_a_planted_fault_is_found_without_a_cluster(fault: Callable[[Objects], None], message: str) -> None:
    planted = tiny_objects()
    fault(planted)
    found = [str(problem) for problem in [*rule_problems(planted), *reference_problems(planted)]]
    assert any(message in each for each in found), found
