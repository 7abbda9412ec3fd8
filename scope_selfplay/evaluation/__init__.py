"""Stage D: what an iteration was worth, on held-out tasks that no policy is trained on.

`held_out` (scores with intervals, asked and hidden criteria apart, by family) - `ratings` (comparisons of
checkpoints, pair by pair).
"""
