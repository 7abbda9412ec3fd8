"""Canaries: questions whose right verdict is known, mixed into a stage's judge calls.

- `cases`: a task, a criterion, a right and a wrong answer, made from a run's own documents or read from a file
- `questions`: a case becomes a question for any role of a judge, with the verdict that it must get (pure)
- `watch`: a judge around another one, which asks a canary beside every n-th call and stops a stage whose judge fails

A canary is asked beside a call and never instead of it: what the stage gets is what it would have got without any.
"""

from scope_selfplay.canaries.cases import cases_of
from scope_selfplay.canaries.watch import CanaryWatch

__all__ = ["CanaryWatch", "cases_of"]
