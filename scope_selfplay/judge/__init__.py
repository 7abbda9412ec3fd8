"""The frozen Judge: gates tasks, writes rubrics, grades answers, compares candidates.

`protocol` (what a judge is asked; pure) - `grading` (a rollout's answer against a whole rubric) - `fences`
(untrusted text in a prompt; pure) - `parsing` (a completion's verdict, or None; pure) - `lexical` (the
embedded world's judge: facts by rule, no model) - `verifier` (boxed answers against the reference, no model).
"""

from scope_selfplay.judge.fences import Fencer, fence_key, same_text
from scope_selfplay.judge.grading import grade_rollout
from scope_selfplay.judge.lexical import LexicalJudge
from scope_selfplay.judge.parsing import (
    drop_thinking,
    parse_correctness,
    parse_preference,
    parse_rating,
    parse_rubric,
    parse_score,
    parse_two_scores,
    parse_winners,
)
from scope_selfplay.judge.protocol import Judge, PointwiseScore, Scale, Selected, Style
from scope_selfplay.judge.verifier import VerifierJudge

__all__ = [
    "Fencer",
    "Judge",
    "LexicalJudge",
    "PointwiseScore",
    "Scale",
    "Selected",
    "Style",
    "VerifierJudge",
    "drop_thinking",
    "fence_key",
    "grade_rollout",
    "parse_correctness",
    "parse_preference",
    "parse_rating",
    "parse_rubric",
    "parse_score",
    "parse_two_scores",
    "parse_winners",
    "same_text",
]
