"""The frozen Judge: gates tasks, writes rubrics, grades answers, compares candidates.

`protocol` (what a judge is asked; pure) - `grading` (a rollout's answer against a whole rubric) - `lexical`
(the embedded world's judge: facts by rule, no model).
"""

from scope_selfplay.judge.grading import grade_rollout
from scope_selfplay.judge.lexical import LexicalJudge
from scope_selfplay.judge.protocol import Judge, Scale, Style

__all__ = ["Judge", "LexicalJudge", "Scale", "Style", "grade_rollout"]
