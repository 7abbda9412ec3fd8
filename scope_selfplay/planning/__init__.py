"""What a run will take before it takes it: `plan` (counts, tokens, memory per pod, hours), `sizes` (of a model).

Arithmetic over a RunConfig; every number that is not in the config is an assumption with a name, shown with the
result.
"""

from scope_selfplay.planning.plan import Assumptions, ResourcePlan, make_plan

__all__ = ["Assumptions", "ResourcePlan", "make_plan"]
