"""GRPO on both roles. The only package with torch, transformers and trl, all imported when training starts.

`rows` (a rollout as exact token rows; pure) - `grpo` (the one seam to TRL) - `challenger`, `solver` (what a
role's rollouts and rewards are) - `policy` (loading and naming checkpoints).
"""
