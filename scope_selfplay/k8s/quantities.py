"""Kubernetes quantities, and what pods ask for in them. Pure."""

from collections import defaultdict
from typing import Any

from scope_selfplay.k8s.objects import Body

_SUFFIXES = {
    **{f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGTPE", start=1)},
    **{letter: 1e3**power for power, letter in enumerate("kMGTPE", start=1)},
    "m": 1e-3,
    "u": 1e-6,
    "n": 1e-9,
}
Amounts = defaultdict[str, float]
"""Resource as a ResourceQuota calls it -> amount."""


def amount(quantity: Any) -> float:
    """A Kubernetes quantity as a number: `500m` is 0.5, `1Gi` 1073741824."""
    text = str(quantity)
    for suffix, factor in _SUFFIXES.items():
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text)


def readable(number: float) -> str:
    gibi = 2.0**30
    return f"{number / gibi:.0f}Gi" if number >= gibi else f"{number:g}"


def count_pods(found: Amounts, spec: Body, count: int) -> None:
    """Add `count` pods of this spec to `found`."""
    found["pods"] += count
    found["count/pods"] += count
    for kind in ("requests", "limits"):
        # Containers run together; of those before them the largest counts, where it is larger than all.
        together = Amounts(float)
        for container in spec.get("containers") or []:
            for resource, quantity in ((container.get("resources") or {}).get(kind) or {}).items():
                together[resource] += amount(quantity)
        for container in spec.get("initContainers") or []:
            for resource, quantity in ((container.get("resources") or {}).get(kind) or {}).items():
                together[resource] = max(together[resource], amount(quantity))
        for resource, quantity in together.items():
            found[f"{kind}.{resource}"] += quantity * count
            if kind == "requests" and resource in ("cpu", "memory"):
                found[resource] += quantity * count
