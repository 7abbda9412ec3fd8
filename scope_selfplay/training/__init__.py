"""Training of the two roles: a loop of our own in plain torch (docs/how/training.md says why and how).

`loss` and `passes` are pure: what a row weighs, how rollouts are cut. `ranks` keeps processes in
step, `model` and `checkpoint` hold weights, `engines` sample, `loop` is a step; `samplers` give what is
trained on. torch is imported by `model` alone, and within functions.
"""
