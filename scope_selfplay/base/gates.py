"""The gates: yes-or-no questions that a judge answers about a proposed task before anything is spent on it.

To add a gate, give it a member and a row of `GATES` here, and write its prompt `gate_<name>.md`; a pack that uses it
names it under `gates:` in its domain.yaml and in its kustomization.yaml. The rest of the code follows: the prompt's
contract, the judge's request, the rejection reason, the columns of the store, the share that the health report watches.
Canaries of it are asked once `judge.canaries` knows a task that it must refuse.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Gate(StrEnum):
    """The value is the name in configs, prompt packs and records; the prompt is `gate_<value>.md`."""

    ENTITY = "entity"
    SOURCE = "source"
    SAFETY = "safety"

    @property
    def label(self) -> str:
        """`gate_<name>`: the gate's prompt role, rejection reason and health signal."""
        return f"gate_{self}"


@dataclass(frozen=True)
class GateTerms:
    """What a gate is shown, and what a low share of passing tasks means."""

    shows: tuple[str, ...]
    """Prompt inputs that the judge sees, in the order of the contract: `task`, and perhaps `document`."""
    healthy_share: float
    """The health report warns when a smaller share of the tasks passes."""
    low_share_means: str
    budget_tokens: int = 2000
    """The most tokens that the prompt's own words may take."""
    default: bool = False
    """Whether a domain that names no gates uses it."""


GATES: Mapping[Gate, GateTerms] = {
    Gate.ENTITY: GateTerms(("task",), 0.2, "tasks do not name what they ask about", default=True),
    Gate.SOURCE: GateTerms(("document", "task"), 0.2, "tasks leave their source document", default=True),
    Gate.SAFETY: GateTerms(("task",), 0.8, "look at the tasks that were refused"),
}

DEFAULT_GATES = tuple(gate for gate in Gate if GATES[gate].default)
