"""The maths domain: problems with exact answers, and a run on them that needs no judge.

`problems` (graded problems, made by rule; pure), `boxed_answers` (the verifier of final answers, a process of its own),
`cli` (`scope math`).
"""
