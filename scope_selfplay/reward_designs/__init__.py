"""Reward designs: a group's rollouts in, one reward or None for each of them out.

Reading order: `groups` (a task with its rollouts, some still being generated), `design` (the one interface), then the
designs: `per_rollout`, `tournaments`, `live`. Behind them: `answers` (which rollouts enter a comparison, and the format
parts; pure), `step_rewards` (a whole step: routing, masks, metrics). No module knows a policy, a trainer or a file.
"""
