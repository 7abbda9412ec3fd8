"""What a checkpoint is worth: on benchmarks, and on the held-out tasks that no policy is trained on (stage D).

Benchmarks: `rows` (the files that authors publish) - `items` - `benchmark` (what one is) - `benchmarks` (a file each) -
`catalogue` (found by name). Scores: `scoring` (what a scorer is) - `judge_scorers` - `scorers`.
Stage D: `pairings` (whose answers are shown together) - `held_out` (scores with intervals, asked and hidden criteria
apart, by family) - `strengths` (comparisons become ratings with intervals) - `rating` (all of it as one `ratings.json`,
with the comparison graph and the decision to promote, keep or stop). All pure but the judge's call, and `rows`, which
reads files.
"""
