"""Stage D: what an iteration was worth, on held-out tasks that no policy is trained on.

`pairings` (whose answers are shown together) - `held_out` (scores with intervals, asked and hidden criteria apart, by
family) - `strengths` (comparisons become ratings with intervals) - `promotion` (promote, keep or stop) - `rating` (all
of it and the comparison graph as one `ratings.json`). All pure but the judge's call.
"""
