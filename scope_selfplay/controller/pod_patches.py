"""A strategic-merge patch of a pod's template, by the merge keys of Kubernetes' own API. Pure.

kustomize does the same to the pods that it renders; this is for the pods that the controller makes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_MERGE_KEYS = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "env", "imagePullSecrets"), "name"),
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""Lists whose items are told apart by a field; every other list is replaced."""


def patched(body: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`body` with `patch` merged in: mappings by key, lists by merge key; a null deletes."""
    merged = dict(body)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            before = merged.get(key)
            merged[key] = patched(before if isinstance(before, Mapping) else {}, value)
        elif key in _MERGE_KEYS and isinstance(merged.get(key), list):
            merged[key] = _merged_list(merged[key], value, _MERGE_KEYS[key])
        else:
            merged[key] = value
    return merged


def _merged_list(before: Sequence[Any], changes: Sequence[Any], key: str) -> list[Any]:
    by_key = {item.get(key): item for item in before}
    for change in changes:
        by_key[change.get(key)] = patched(by_key.get(change.get(key), {}), change)
    return list(by_key.values())
