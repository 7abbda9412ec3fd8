"""Stage D: what an iteration was worth, on held-out tasks that no policy is trained on.

`pairings` (whose answers are shown together) - `held_out` (scores with intervals, asked and hidden criteria apart, by
family) - `strengths` (comparisons become ratings with intervals) - `rating` (all of it as one `ratings.json`, with the
comparison graph and the decision to promote, keep or stop). All pure but the judge's call.
"""
