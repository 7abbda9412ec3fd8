"""How many rollouts and judge calls one iteration takes, before any is made.

Upper bounds of the full method, as if every task passed its gates: what a cost plan starts from.
"""

from typing import NamedTuple


class IterationVolume(NamedTuple):
    """Counts for one iteration: rollouts, judge calls, and in `tasks_kept` the target of task making."""

    challenger_rollouts: int
    difficulty_rollouts: int
    challenger_judge_calls: int
    tasks_kept: int
    solver_rollouts: int
    solver_grade_calls: int


def candidate_judge_calls(rollouts: int, criteria: int, gates: int = 2) -> int:
    """Judge calls for one candidate that passes: gates, one rubric, one grade per rollout and criterion.

    SCOPE section 3.1 and figure 11. Raises ValueError for a negative count.
    """
    if min(rollouts, criteria, gates) < 0:
        raise ValueError(
            f"counts must not be negative: {rollouts} rollouts, {criteria} criteria, {gates} gates"
        )
    return gates + 1 + rollouts * criteria


def iteration_volume(
    *,
    steps: int = 20,
    challenger_prompts: int = 64,
    solver_prompts: int = 256,
    group_size: int = 8,
    difficulty_rollouts: int = 8,
    criteria: int = 4,
) -> IterationVolume:
    """The volume of training both roles for `steps` updates (SCOPE Table 9 and appendix G).

    `challenger_prompts` and `solver_prompts` are prompts per update, `group_size` rollouts per prompt,
    `difficulty_rollouts` Solver rollouts per Challenger task, `criteria` per rubric. Candidates of task
    making are not counted: how many it needs depends on the acceptance rate.
    """
    challenger_rollouts = steps * challenger_prompts * group_size
    tasks_kept = steps * solver_prompts
    solver_rollouts = tasks_kept * group_size
    return IterationVolume(
        challenger_rollouts=challenger_rollouts,
        difficulty_rollouts=challenger_rollouts * difficulty_rollouts,
        challenger_judge_calls=challenger_rollouts * candidate_judge_calls(difficulty_rollouts, criteria),
        tasks_kept=tasks_kept,
        solver_rollouts=solver_rollouts,
        solver_grade_calls=solver_rollouts * criteria,
    )
