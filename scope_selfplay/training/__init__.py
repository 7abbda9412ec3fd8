"""Training of the two roles: a loop of our own in plain torch (docs/how/training.md says why and how).

`rows`, `loss` and `passes` are pure: what is trained on, what it weighs, how it is cut. `ranks` keeps processes in
step, `model` and `checkpoint` hold weights, `engines` sample, `loop` is a step; `challenger`, `solver` and `sft` are
what is trained. torch is imported by `model` alone, and within functions.
"""
