"""Reward designs: a group's rollouts in, one reward or None for each of them out; several ways to get there.

Reading order: `groups` (a task with its rollouts, some still being generated), `design` (the one interface), then the
designs: `per_rollout`, `tournaments`, `live`. Behind them: `answers` (who enters, and the format parts; pure),
`step_rewards` (a whole step: routing, masks, metrics). None of it
knows a policy, a trainer or a file.
"""
