"""Reward designs: a group's rollouts in, one reward or None for each of them out; several ways to get there.

Reading order: `groups` (a task with its rollouts, some still on their way), `answers` (who enters, and the format
parts; pure), `desk` (asks the judge and keeps the books), `design` (the one interface), then the designs:
`pointwise`, `tournaments`, `group_tournaments`, `live`; `rewarding` (a whole step: routing, masks, numbers) and
`catalogue` (settings to design). None of it knows a policy, a trainer or a file.
"""

from scope_selfplay.judge.metered import JudgeRecords, MeteredJudge
from scope_selfplay.reward_designs.answers import whole_structure
from scope_selfplay.reward_designs.design import Design, Judged
from scope_selfplay.reward_designs.groups import Arrivals, RolloutGroup, finished_group
from scope_selfplay.reward_designs.step_rewards import Rewarding, StepRewards, open_design, open_rewarding

__all__ = [
    "Arrivals",
    "JudgeRecords",
    "Design",
    "MeteredJudge",
    "RolloutGroup",
    "Judged",
    "Rewarding",
    "StepRewards",
    "finished_group",
    "open_design",
    "open_rewarding",
    "whole_structure",
]
