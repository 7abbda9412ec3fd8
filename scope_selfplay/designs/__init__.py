"""Verdicts on a group become one reward per rollout, by the design that the config names."""
