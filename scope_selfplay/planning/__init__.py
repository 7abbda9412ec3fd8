"""What a run will take before it takes it: `plan` (rollouts, judge calls, tokens, hours), `memory` (GiB of each pod).

Arithmetic over a RunConfig; every number that is not in the config is an assumption with a name, shown with the
result.
"""
