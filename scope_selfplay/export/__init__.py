"""The accepted tasks of a run in the shapes that other trainers and evaluators read.

`formats` (pure: a task becomes a row of each format) - `writing` (files, split by split; the command `scope export`).
"""
