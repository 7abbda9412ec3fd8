"""The Role in `k8s/shared` against the calls that the controller's code makes; `tests/cluster` asks a server."""

import yaml

from scope_selfplay.cluster.folder import shipped_kustomize
from scope_selfplay.driver.api import VERBS


def test_the_role_grants_the_verbs_that_the_controller_uses_and_no_other() -> None:
    role, binding = yaml.safe_load_all((shipped_kustomize() / "shared" / "role.yaml").read_text())
    granted: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        assert rule.keys() == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                granted.setdefault((group, resource), set()).update(rule["verbs"])
    assert granted == VERBS
    assert (role["kind"], binding["roleRef"]["name"]) == ("Role", role["metadata"]["name"])
    assert [each["name"] for each in binding["subjects"]] == ["scope-controller"]
