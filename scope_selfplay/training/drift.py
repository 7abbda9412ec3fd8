"""How far the engine that sampled is from the model that is trained: the same weights, other kernels and precision.

Both give every sampled token a log-probability. Where they differ, the update is not quite on policy: it is measured in
every step, and can be weighed by the capped ratio of both (truncated importance sampling).
"""

from typing import Any

import torch

from scope_selfplay.training.batches import Batch


def drift_of(logps: Any, part: Batch) -> Any:
    """Trained minus sampled log-probability, (rows, completion); 0 where nothing was sampled or the engine said NaN."""
    sampled = part["tool_mask"] > 0
    difference = (logps.float() - part["sampling_per_token_logps"]).nan_to_num(nan=0.0)
    return torch.where(sampled, difference, 0.0)


class SamplingDrift:
    """Collects a step's differences over its passes, and over the processes when it is asked for them."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._found: list[Any] = []

    def add(self, difference: Any, sampled: Any) -> None:
        """`difference` as `drift_of` gives it; `sampled` are the tokens that count."""
        size = difference.abs()
        self._found.append(torch.stack([size.sum(), sampled.sum().float(), size.amax()]))

    def metrics(self) -> dict[str, float]:
        """Of the step that ends: mean and greatest absolute difference. A collective call: all processes make it."""
        if not self._found:
            return {}
        own = torch.stack(self._found)
        self._found = []
        own = torch.cat([own[:, :2].sum(dim=0), own[:, 2].amax().view(1)])
        everyone = self._accelerator.gather(own).view(-1, 3)
        total, tokens = (float(each) for each in everyone[:, :2].sum(dim=0))
        if not tokens:
            return {}
        return {"sampling_drift": total / tokens, "sampling_drift_max": float(everyone[:, 2].amax())}
